// A worker for duly in JavaScript: Node 18 or newer, no packages.
//
// duly serve &
// node http/examples/worker.mjs
// curl -H 'Content-Type: application/json' -d '{"kind":"greet","args":{"name":"ada"}}' http://127.0.0.1:7711/api/v1/jobs

import { setTimeout as sleep } from "node:timers/promises";
import { Release, Worker } from "./duly-worker.mjs";

const worker = new Worker({ queues: ["default"], concurrency: 10 });

worker.on("greet", async (job) => {
  if (!job.args.name) throw new Error("has no name");
  console.log("hello", job.args.name, "attempt", job.attempt);
  return { greeted: job.args.name }; // the result, stored with the job
});

// A job that takes a while reports its progress, and stops if it is cancelled or another worker has it.
worker.on("count", async (job) => {
  for (let second = 0; second < job.args.seconds; second++) {
    await job.progress(second / job.args.seconds, `second ${second}`);
    await sleep(1000, undefined, { signal: job.signal }).catch(() => {
      throw new Release();
    });
  }
});

await worker.run();
