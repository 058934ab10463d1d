// A worker for duly in JavaScript: Node 18 or newer, no packages.
//
// duly serve &
// node http/examples/worker.mjs
// curl -H 'Content-Type: application/json' -d '{"kind":"greet","args":{"name":"ada"}}' http://127.0.0.1:7711/api/v1/jobs

const URL = (process.env.DULY_URL ?? "http://127.0.0.1:7711") + "/api/v1";
const TOKEN = process.env.DULY_TOKEN;

async function call(path, body, method = "POST") {
  const headers = { "Content-Type": "application/json" };
  if (TOKEN) headers.Authorization = `Bearer ${TOKEN}`;
  const response = await fetch(URL + path, { method, headers, body: JSON.stringify(body) });
  const text = await response.text();
  if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${text}`);
  return text ? JSON.parse(text) : null;
}

const handlers = {
  async greet(job) {
    if (!job.args.name) throw new Error("has no name");
    console.log("hello", job.args.name, "attempt", job.attempt);
  },
};

const node = await call("/nodes", { queues: ["default"], kinds: Object.keys(handlers), lease_ms: 30_000 });
const held = new Set(); // each heartbeat names them, so that the server notices a lost reply
let stop = false;

const heartbeats = setInterval(async () => {
  try {
    const reply = await call(`/nodes/${node.id}/heartbeat`, { held: [...held] });
    stop ||= reply.stop;
  } catch (error) {
    console.error("no heartbeat:", error.message);
  }
}, node.heartbeat_ms);

async function run(job) {
  held.add(job.id);
  const outcome = { id: job.id, fence: job.fence, outcome: "ack" };
  try {
    await handlers[job.kind](job);
  } catch (error) {
    // Any error: retried later, and dead after the last attempt.
    Object.assign(outcome, { outcome: "retry", error: String(error) });
  }
  await call(`/nodes/${node.id}/settle`, { outcomes: [outcome] });
  held.delete(job.id);
}

for (const signal of ["SIGINT", "SIGTERM"]) process.once(signal, () => (stop = true));
while (!stop) {
  const { jobs } = await call(`/nodes/${node.id}/claim`, { max: 10, wait_ms: 20_000 });
  await Promise.all(jobs.map(run));
}
clearInterval(heartbeats);
await call(`/nodes/${node.id}`, {}, "DELETE");
