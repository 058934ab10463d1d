// A worker for duly in JavaScript: Node 18 or newer, no packages.
//
// duly serve &
// node examples/http/worker.mjs
// curl -H 'Content-Type: application/json' -d '{"kind":"greet","args":{"name":"ada"}}' http://127.0.0.1:7711/api/v1/jobs

const URL = (process.env.DULY_URL ?? "http://127.0.0.1:7711") + "/api/v1";
const TOKEN = process.env.DULY_TOKEN;

async function ask(path, body, method = "POST") {
  const headers = { "Content-Type": "application/json" };
  if (TOKEN) headers.Authorization = `Bearer ${TOKEN}`;
  const answer = await fetch(URL + path, { method, headers, body: JSON.stringify(body) });
  const text = await answer.text();
  if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${text}`);
  return text ? JSON.parse(text) : null;
}

const handlers = {
  async greet(job) {
    if (!job.args.name) throw new Error("has no name");
    console.log("hello", job.args.name, "attempt", job.attempt);
  },
};

const node = await ask("/nodes", { queues: ["default"], kinds: Object.keys(handlers), lease_ms: 30_000 });
const held = new Set(); // the beat names them, so that none is lost on its way
let stop = false;

const beating = setInterval(async () => {
  try {
    const told = await ask(`/nodes/${node.id}/beat`, { held: [...held] });
    stop ||= told.stop;
  } catch (error) {
    console.error("no beat:", error.message);
  }
}, node.beat_ms);

async function run(job) {
  held.add(job.id);
  const end = { id: job.id, fence: job.fence, outcome: "ack" };
  try {
    await handlers[job.kind](job);
  } catch (error) {
    // Whatever it was: tried again later, and in the end dead.
    Object.assign(end, { outcome: "retry", error: String(error) });
  }
  await ask(`/nodes/${node.id}/settle`, { ends: [end] });
  held.delete(job.id);
}

for (const signal of ["SIGINT", "SIGTERM"]) process.once(signal, () => (stop = true));
while (!stop) {
  const { jobs } = await ask(`/nodes/${node.id}/claim`, { max: 10, wait_ms: 20_000 });
  await Promise.all(jobs.map(run));
}
clearInterval(beating);
await ask(`/nodes/${node.id}`, {}, "DELETE");
