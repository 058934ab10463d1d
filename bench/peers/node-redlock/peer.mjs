// node-redlock on one server with its default delays: a waiter retries after 100 to 300 ms, without a timeout.
//
// `REDIS_URL=redis://.. node peer.mjs VERB ..` prints one line of JSON; ../README.md describes the verbs.

import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { Redis } from "ioredis";
import Redlock from "redlock";

/** The TTL of every lock. */
const TTL_MS = 30_000;
/** Locks before the measurement begins. */
const WARM_UP = 5;
/** The uncontended lock. */
const UNCONTENDED = "uncontended";
/** The delay from the start of a wait until it counts as started. */
const WAIT_START_MS = 500;
/**
 * The delay from the start of a wait to the release, 10 to 110 ms: releases hit every phase of a polling interval.
 */
const pauseMs = (no) => 10 + ((no * 37) % 100);

const url = process.env.REDIS_URL;
const version = JSON.parse(readFileSync(new URL("node_modules/redlock/package.json", import.meta.url))).version;
const monotonicUs = () => Number(process.hrtime.bigint() / 1_000n);
const wallUs = () => Math.round((performance.timeOrigin + performance.now()) * 1_000);

const connect = () => {
  const redlock = new Redlock([new Redis(url)], { retryCount: -1 });
  return (name) => redlock.acquire([name], TTL_MS);
};
const lockName = (no) => `hand-over:${no}`;

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

/** Starts a waiter in another process and returns a function that reads when it acquired the next lock. */
const spawnWaiter = async () => {
  const child = spawn(process.execPath, [fileURLToPath(import.meta.url), "take"], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  process.on("exit", () => child.kill("SIGKILL"));
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const next = async () => {
    const { value, done } = await lines.next();
    if (done) throw new Error("the waiter has ended");
    return value;
  };
  const first = await next();
  if (first !== "ready") throw new Error(`the waiter printed ${first}`);
  return async () => JSON.parse(await next());
};

const verbs = {
  async lock(locks) {
    const acquire = connect();
    const millis = [];
    const startUs = monotonicUs();
    for (let at = 0; at < WARM_UP + locks; at += 1) {
      const called = monotonicUs();
      const lock = await acquire(UNCONTENDED);
      await lock.release();
      if (at >= WARM_UP) millis.push((monotonicUs() - called) / 1_000);
    }
    return latencies(locks, startUs, millis);
  },

  async "hand-over"(locks) {
    const acquire = connect();
    let held = await acquire(lockName(0));
    const nextAcquired = await spawnWaiter();
    const millis = [];
    const startUs = monotonicUs();
    for (let no = 0; no < WARM_UP + locks; no += 1) {
      // Acquires the next lock before the waiter can.
      const next = await acquire(lockName(no + 1));
      await sleep(pauseMs(no));
      const called = monotonicUs();
      await held.release();
      const start = await nextAcquired();
      if (start.no !== no) throw new Error(`lock ${start.no} was acquired instead of ${no}`);
      if (no >= WARM_UP) millis.push((start.monotonic_us - called) / 1_000);
      held = next;
    }
    return latencies(locks, startUs, millis);
  },

  async take() {
    const acquire = connect();
    process.stdout.write("ready\n");
    for (let no = 0; ; no += 1) {
      const lock = await acquire(lockName(no));
      process.stdout.write(`${JSON.stringify({ no, monotonic_us: monotonicUs(), wall_us: wallUs() })}\n`);
      await lock.release();
    }
  },

  /** Waits for a lock that it holds itself. */
  async wait() {
    const acquire = connect();
    await acquire(UNCONTENDED);
    const waited = acquire(UNCONTENDED);
    await sleep(WAIT_START_MS);
    process.stdout.write("ready\n");
    await waited;
    throw new Error("the lock expired while this process waited for it");
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
