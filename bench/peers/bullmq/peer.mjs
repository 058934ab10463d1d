// BullMQ, in the fastest settings found: bulk adds of 1,000, done jobs are not kept, one process.
//
// `REDIS_URL=redis://.. node peer.mjs VERB ..` prints one line of JSON; ../README.md describes the verbs.

import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { Queue, Worker } from "bullmq";
import { Redis } from "ioredis";

const QUEUE = "bench";
/** Jobs in one bulk push. */
const BULK = 1_000;
/** The concurrency of a worker that is measured idle. */
const IDLE_CONCURRENCY = 10;
/**
 * Pause between two jobs, 10 to 110 ms: the worker is idle again, and pushes hit every phase of a polling
 * interval.
 */
const pauseMs = (no) => 10 + ((no * 37) % 100);
/** Delay of the first scheduled job. */
const LEAD_MS = 2_000;
/** Longest wait for a start after the last job is due. */
const TIMEOUT_MS = 30_000;

const url = process.env.REDIS_URL;
const bytes = Number(process.env.ARGS_BYTES ?? 200);
const noop = { text: "x".repeat(bytes - '{"text":""}'.length) };
const reportingJob = (no, holdMs) => ({ no, hold_ms: holdMs, text: "" });
const version = JSON.parse(readFileSync(new URL("node_modules/bullmq/package.json", import.meta.url))).version;

const connect = () => new Redis(url, { maxRetriesPerRequest: null });
const openQueue = async () => {
  const queue = new Queue(QUEUE, { connection: connect() });
  await queue.waitUntilReady();
  return queue;
};
const monotonicUs = () => Number(process.hrtime.bigint() / 1_000n);
const wallUs = () => Math.round((performance.timeOrigin + performance.now()) * 1_000);

const rate = (jobs, startUs) => {
  const seconds = (monotonicUs() - startUs) / 1e6;
  return { jobs, seconds, per_s: jobs / seconds };
};

/** A percentile is the smallest sample that at least this percentage does not exceed. */
const latencies = (jobs, startUs, millis) => {
  millis.sort((a, b) => a - b);
  const percentile = (percent) => millis[Math.max(1, Math.ceil((percent / 100) * millis.length)) - 1];
  return {
    jobs,
    seconds: (monotonicUs() - startUs) / 1e6,
    ran: millis.length,
    p50_ms: percentile(50),
    p99_ms: percentile(99),
    earliest_ms: millis[0],
  };
};

const startWorker = async (concurrency) => {
  const run = async ({ data }) => {
    if (data.no === undefined) return;
    process.stdout.write(`${JSON.stringify({ no: data.no, monotonic_us: monotonicUs(), wall_us: wallUs() })}\n`);
    if (data.hold_ms > 0) await sleep(data.hold_ms);
  };
  const kept = { count: 0 };
  const worker = new Worker(QUEUE, run, {
    connection: connect(),
    concurrency,
    removeOnComplete: kept,
    removeOnFail: kept,
    autorun: false,
  });
  await worker.waitUntilReady();
  return worker;
};

/** Starts a worker in another process and returns a function that reads the next start. */
const spawnWorker = async () => {
  const args = [fileURLToPath(import.meta.url), "work", String(IDLE_CONCURRENCY)];
  const child = spawn(process.execPath, args, { stdio: ["ignore", "pipe", "inherit"] });
  process.on("exit", () => child.kill("SIGKILL"));
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const next = async () => {
    const { value, done } = await lines.next();
    if (done) throw new Error("the worker has ended");
    return value;
  };
  const first = await next();
  if (first !== "ready") throw new Error(`the worker printed ${first}`);
  return async () => JSON.parse(await next());
};

const verbs = {
  async push(jobs) {
    const queue = await openQueue();
    const startUs = monotonicUs();
    for (let at = 0; at < jobs; at += BULK) {
      const batch = Array.from({ length: Math.min(BULK, jobs - at) }, () => ({ name: "noop", data: noop }));
      await queue.addBulk(batch);
    }
    return rate(jobs, startUs);
  },

  async "push-one"(jobs) {
    const queue = await openQueue();
    const startUs = monotonicUs();
    for (let at = 0; at < jobs; at += 1) await queue.add("noop", noop);
    return rate(jobs, startUs);
  },

  async drain(jobs, concurrency) {
    const worker = await startWorker(concurrency);
    let done = 0;
    // Emitted once Redis has confirmed that the job is recorded as done.
    const allDone = new Promise((resolve) => worker.on("completed", () => ++done === jobs && resolve()));
    const startUs = monotonicUs();
    worker.run();
    await allDone;
    return { ...rate(jobs, startUs), rss_mb: process.resourceUsage().maxRSS / 1024 };
  },

  async "idle-latency"(jobs) {
    const nextStart = await spawnWorker();
    const queue = await openQueue();
    const millis = [];
    const startUs = monotonicUs();
    // The first job sets up connections and scripts and does not count.
    for (let no = 0; no <= jobs; no += 1) {
      await sleep(pauseMs(no));
      const called = monotonicUs();
      await queue.add("report", reportingJob(no, 0));
      const start = await nextStart();
      if (start.no !== no) throw new Error(`job ${start.no} started instead of ${no}`);
      if (no > 0) millis.push((start.monotonic_us - called) / 1_000);
    }
    return latencies(jobs, startUs, millis);
  },

  async late(jobs, seconds) {
    const nextStart = await spawnWorker();
    const queue = await openQueue();
    const startUs = monotonicUs();
    const timestamp = Date.now();
    // Delays are whole milliseconds.
    const due = (no) => timestamp + LEAD_MS + Math.round((no * seconds * 1_000) / jobs);
    const batch = Array.from({ length: jobs }, (_, no) => ({
      name: "report",
      data: reportingJob(no, 0),
      opts: { timestamp, delay: due(no) - timestamp },
    }));
    await queue.addBulk(batch);
    const timeout = sleep(LEAD_MS + seconds * 1_000 + TIMEOUT_MS, null);
    const millis = [];
    while (millis.length < jobs) {
      const start = await Promise.race([nextStart(), timeout]);
      if (start === null) break;
      millis.push(start.wall_us / 1_000 - due(start.no));
    }
    return latencies(jobs, startUs, millis);
  },

  async hold(jobs, seconds) {
    const queue = await openQueue();
    const startUs = monotonicUs();
    for (let no = 0; no < jobs; no += 1) await queue.add("report", reportingJob(no, seconds * 1_000));
    return rate(jobs, startUs);
  },

  async work(concurrency) {
    const worker = await startWorker(concurrency);
    const running = worker.run();
    await sleep(500);
    process.stdout.write("ready\n");
    await running;
  },
};

const [verb, ...numbers] = process.argv.slice(2);
if (!url || !Object.hasOwn(verbs, verb ?? "")) {
  console.error(`usage: REDIS_URL=.. node peer.mjs ${Object.keys(verbs).join(" | ")}`);
  process.exit(2);
}
const figures = await verbs[verb](...numbers.map(Number));
console.log(JSON.stringify({ peer: `BullMQ ${version}`, ...figures }));
// A worker would continue; no data is left to be saved.
process.exit(0);
