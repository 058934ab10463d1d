// node-redlock on one server, as it comes: who waits asks again after 100 to 300 ms. It never gives up.
//
// `REDIS_URL=redis://.. node peer.mjs VERB ..` prints one line of JSON; the verbs are told in ../README.md.

import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { Redis } from "ioredis";
import Redlock from "redlock";

/** How long every lock lasts. */
const TTL_MS = 30_000;
/** So many are taken before the measuring begins. */
const WARM = 5;
/** The lock that nobody else wants. */
const LONE = "lone";
/** From the start of a wait until it is said to be under way. */
const SETTLING_MS = 500;
/**
 * From the start of a wait to the release, from 10 to 110 ms: one that looks now and then is met at any point of its
 * turn.
 */
const stepMs = (no) => 10 + ((no * 37) % 100);

const url = process.env.REDIS_URL;
const version = JSON.parse(readFileSync(new URL("node_modules/redlock/package.json", import.meta.url))).version;
const monotonicUs = () => Number(process.hrtime.bigint() / 1_000n);
const wallUs = () => Math.round((performance.timeOrigin + performance.now()) * 1_000);

const connect = () => {
  const redlock = new Redlock([new Redis(url)], { retryCount: -1 });
  return (name) => redlock.acquire([name], TTL_MS);
};
const handed = (no) => `handed:${no}`;

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

/** Somebody in a process of its own who waits for locks, and the moments at which it has got them. */
const spawnTaker = async () => {
  const child = spawn(process.execPath, [fileURLToPath(import.meta.url), "take"], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  process.on("exit", () => child.kill("SIGKILL"));
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const next = async () => {
    const { value, done } = await lines.next();
    if (done) throw new Error("the taker has ended");
    return value;
  };
  const first = await next();
  if (first !== "ready") throw new Error(`the taker said ${first}`);
  return async () => JSON.parse(await next());
};

const verbs = {
  async lock(locks) {
    const acquire = connect();
    const millis = [];
    const began = monotonicUs();
    for (let at = 0; at < WARM + locks; at += 1) {
      const called = monotonicUs();
      const lock = await acquire(LONE);
      await lock.release();
      if (at >= WARM) millis.push((monotonicUs() - called) / 1_000);
    }
    return times(locks, began, millis);
  },

  async "hand-over"(locks) {
    const acquire = connect();
    let held = await acquire(handed(0));
    const nextStart = await spawnTaker();
    const millis = [];
    const began = monotonicUs();
    for (let no = 0; no < WARM + locks; no += 1) {
      // Before the other one can get there.
      const next = await acquire(handed(no + 1));
      await sleep(stepMs(no));
      const called = monotonicUs();
      await held.release();
      const start = await nextStart();
      if (start.no !== no) throw new Error(`lock ${start.no} was got instead of ${no}`);
      if (no >= WARM) millis.push((start.monotonic_us - called) / 1_000);
      held = next;
    }
    return times(locks, began, millis);
  },

  async take() {
    const acquire = connect();
    process.stdout.write("ready\n");
    for (let no = 0; ; no += 1) {
      const lock = await acquire(handed(no));
      process.stdout.write(`${JSON.stringify({ no, monotonic_us: monotonicUs(), wall_us: wallUs() })}\n`);
      await lock.release();
    }
  },

  /** Waits for a lock that it holds itself. */
  async wait() {
    const acquire = connect();
    await acquire(LONE);
    const waited = acquire(LONE);
    await sleep(SETTLING_MS);
    process.stdout.write("ready\n");
    await waited;
    throw new Error("the lock has ended before the wait for it");
  },
};

const [verb, ...numbers] = process.argv.slice(2);
if (!url || !Object.hasOwn(verbs, verb ?? "")) {
  console.error(`usage: REDIS_URL=.. node peer.mjs ${Object.keys(verbs).join(" | ")}`);
  process.exit(2);
}
const figures = await verbs[verb](...numbers.map(Number));
console.log(JSON.stringify({ peer: `node-redlock ${version}`, ...figures }));
process.exit(0);
