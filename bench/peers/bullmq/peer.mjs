// BullMQ, in the fastest settings found: bulk adds of 1,000, nothing kept of a job that is done, one process.
//
// `REDIS_URL=redis://.. node peer.mjs VERB ..` prints one line of JSON; the verbs are told in ../README.md.

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
/** Jobs at once in a worker that is measured idle. */
const IDLE_CONCURRENCY = 10;
/**
 * Time between two jobs, from 10 to 110 ms: the worker is done with the last one and waits again, and one that looks now
 * and then is met at any point of its turn.
 */
const stepMs = (no) => 10 + ((no * 37) % 100);
/** From now to the first due moment. */
const LEAD_MS = 2_000;
/** Longest wait for a job after the last one is due. */
const PATIENCE_MS = 30_000;

const url = process.env.REDIS_URL;
const bytes = Number(process.env.ARGS_BYTES ?? 200);
const noop = { text: "x".repeat(bytes - '{"text":""}'.length) };
const told = (no, holdMs) => ({ no, hold_ms: holdMs, text: "" });
const version = JSON.parse(readFileSync(new URL("node_modules/bullmq/package.json", import.meta.url))).version;

const connect = () => new Redis(url, { maxRetriesPerRequest: null });
const openQueue = async () => {
  const queue = new Queue(QUEUE, { connection: connect() });
  await queue.waitUntilReady();
  return queue;
};
const monotonicUs = () => Number(process.hrtime.bigint() / 1_000n);
const wallUs = () => Math.round((performance.timeOrigin + performance.now()) * 1_000);

const rate = (jobs, beganUs) => {
  const seconds = (monotonicUs() - beganUs) / 1e6;
  return { jobs, seconds, per_s: jobs / seconds };
};

/** The smallest sample that at least so many percent do not exceed. */
const times = (jobs, beganUs, millis) => {
  millis.sort((a, b) => a - b);
  const percentile = (percent) => millis[Math.max(1, Math.ceil((percent / 100) * millis.length)) - 1];
  return {
    jobs,
    seconds: (monotonicUs() - beganUs) / 1e6,
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

/** A worker in a process of its own, and the lines that it says. */
const spawnWorker = async () => {
  const words = [fileURLToPath(import.meta.url), "work", String(IDLE_CONCURRENCY)];
  const child = spawn(process.execPath, words, { stdio: ["ignore", "pipe", "inherit"] });
  process.on("exit", () => child.kill("SIGKILL"));
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const next = async () => {
    const { value, done } = await lines.next();
    if (done) throw new Error("the worker has ended");
    return value;
  };
  const first = await next();
  if (first !== "ready") throw new Error(`the worker said ${first}`);
  return async () => JSON.parse(await next());
};

const verbs = {
  async push(jobs) {
    const queue = await openQueue();
    const began = monotonicUs();
    for (let at = 0; at < jobs; at += BULK) {
      const batch = Array.from({ length: Math.min(BULK, jobs - at) }, () => ({ name: "noop", data: noop }));
      await queue.addBulk(batch);
    }
    return rate(jobs, began);
  },

  async "push-one"(jobs) {
    const queue = await openQueue();
    const began = monotonicUs();
    for (let at = 0; at < jobs; at += 1) await queue.add("noop", noop);
    return rate(jobs, began);
  },

  async drain(jobs, concurrency) {
    const worker = await startWorker(concurrency);
    let done = 0;
    // Told when Redis has answered that the job is recorded as done.
    const over = new Promise((resolve) => worker.on("completed", () => ++done === jobs && resolve()));
    const began = monotonicUs();
    worker.run();
    await over;
    return { ...rate(jobs, began), rss_mb: process.resourceUsage().maxRSS / 1024 };
  },

  async "idle-latency"(jobs) {
    const nextStart = await spawnWorker();
    const queue = await openQueue();
    const millis = [];
    const began = monotonicUs();
    // The first one pays for connections and compiled scripts.
    for (let no = 0; no <= jobs; no += 1) {
      await sleep(stepMs(no));
      const called = monotonicUs();
      await queue.add("told", told(no, 0));
      const start = await nextStart();
      if (start.no !== no) throw new Error(`job ${start.no} started instead of ${no}`);
      if (no > 0) millis.push((start.monotonic_us - called) / 1_000);
    }
    return times(jobs, began, millis);
  },

  async late(jobs, seconds) {
    const nextStart = await spawnWorker();
    const queue = await openQueue();
    const began = monotonicUs();
    const timestamp = Date.now();
    // Delays are whole milliseconds.
    const due = (no) => timestamp + LEAD_MS + Math.round((no * seconds * 1_000) / jobs);
    const batch = Array.from({ length: jobs }, (_, no) => ({
      name: "told",
      data: told(no, 0),
      opts: { timestamp, delay: due(no) - timestamp },
    }));
    await queue.addBulk(batch);
    const patience = sleep(LEAD_MS + seconds * 1_000 + PATIENCE_MS, null);
    const millis = [];
    while (millis.length < jobs) {
      const start = await Promise.race([nextStart(), patience]);
      if (start === null) break;
      millis.push(start.wall_us / 1_000 - due(start.no));
    }
    return times(jobs, began, millis);
  },

  async hold(jobs, seconds) {
    const queue = await openQueue();
    const began = monotonicUs();
    for (let no = 0; no < jobs; no += 1) await queue.add("told", told(no, seconds * 1_000));
    return rate(jobs, began);
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
// A worker would go on; nothing is left to be saved.
process.exit(0);
