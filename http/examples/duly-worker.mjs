// A worker for duly over HTTP: Node 18 or newer, no packages. Copy this file into your project.
//
// It runs several jobs at once and survives restarts of the server. It reports what its handlers return, cancels
// handlers that lost their job, and finishes running jobs on SIGTERM. worker.mjs, in the same directory, shows how to
// use it.

import { hostname } from "node:os";

const CLAIM_WAIT_MS = 20_000;
const PAUSE_MAX_MS = 10_000; // between attempts to reach the server

/** Throw it in a handler to run the job again, after `afterMs` if given. */
export class Retry extends Error {
  constructor(message, afterMs) {
    super(message);
    this.afterMs = afterMs;
  }
}
/** Throw it in a handler if the job can never succeed: it is dead at once. */
export class Bury extends Error {}
/** Throw it in a handler to give the job back without counting an attempt, for example because it was cancelled. */
export class Release extends Error {}

/** The server cannot be reached, or asks to try again later. */
class Unavailable extends Error {}
/** The server does not know this worker any more. */
class NodeGone extends Error {}

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** A claimed job. Pass `job.signal` to what the handler waits for: it aborts if the job is cancelled or lost. */
class Job {
  #worker;
  #cancel = new AbortController();
  lost = false;

  constructor(worker, node, data) {
    this.#worker = worker;
    Object.assign(this, { node, ...data, signal: this.#cancel.signal });
  }

  /** Records the progress from 0 to 1, and log lines. It never fails: a job does not end for want of a report. */
  async progress(fraction, message = "", ...lines) {
    try {
      const body = { id: this.id, fence: this.fence, fraction, message, lines };
      if ((await this.#worker.call(`/nodes/${this.node}/progress`, body)).lost.length > 0) this.cancel(true);
    } catch (error) {
      console.error(`job ${this.id}: progress was not recorded:`, error.message);
    }
  }

  cancel(lost) {
    this.lost ||= lost;
    this.#cancel.abort(new Release(lost ? "another worker has the job" : "the job was cancelled"));
  }
}

export class Worker {
  #node = null;
  #heartbeatMs = 1_000;
  #heard = 0; // when the server last accepted a heartbeat
  #held = new Map(); // running jobs by id
  #handlers = new Map();
  #stopping = new AbortController();
  #jobEnded = () => {};

  constructor({ url, token, queues = ["default"], concurrency = 10, leaseMs = 30_000, graceMs = 25_000 } = {}) {
    this.url = (url ?? process.env.DULY_URL ?? "http://127.0.0.1:7711").replace(/\/$/, "") + "/api/v1";
    this.token = token ?? process.env.DULY_TOKEN;
    Object.assign(this, { queues, concurrency, leaseMs, graceMs });
  }

  /** Registers a handler: `worker.on("greet", async (job) => ...)`. What it returns is the job's result. */
  on(kind, handler) {
    this.#handlers.set(kind, handler);
    return this;
  }

  /** Runs jobs until SIGTERM or SIGINT, or until an operator stops the worker. */
  async run() {
    for (const signal of ["SIGINT", "SIGTERM"]) process.once(signal, () => this.#stopping.abort());
    this.#sendHeartbeats();
    await this.#claimJobs();
    // Running jobs may finish. The rest goes back when the worker leaves.
    const graceEnd = Date.now() + this.graceMs;
    while (this.#held.size > 0 && Date.now() < graceEnd) await this.#oneJobEnded(graceEnd - Date.now());
    if (this.#node) {
      const left = this.call(`/nodes/${this.#node}`, undefined, { method: "DELETE", timeoutMs: 5_000 });
      await left.catch((error) => console.error("did not leave:", error.message));
    }
    process.exit(0); // open requests would keep the process running
  }

  /** Sends a request and returns the response. */
  async call(path, body, { method = "POST", timeoutMs = 30_000, signal } = {}) {
    const headers = { "Content-Type": "application/json" };
    if (this.token) headers.Authorization = `Bearer ${this.token}`;
    const request = new AbortController();
    const timer = setTimeout(() => request.abort(new Error(`no response within ${timeoutMs} ms`)), timeoutMs);
    const stop = () => request.abort(new Error("the worker stops"));
    signal?.addEventListener("abort", stop);
    let response, text;
    try {
      const options = { method, headers, body: body && JSON.stringify(body), signal: request.signal };
      response = await fetch(this.url + path, options);
      text = await response.text();
    } catch (error) {
      throw new Unavailable(`${method} ${path}: ${error.cause?.message ?? error.message}`);
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener("abort", stop);
    }
    if (response.ok) return text ? JSON.parse(text) : null;
    const reason = `${method} ${path}: ${response.status} ${text.slice(0, 2_000)}`;
    if (response.status === 404 && path.startsWith("/nodes/")) throw new NodeGone(reason);
    if ([408, 429].includes(response.status) || response.status >= 500) throw new Unavailable(reason);
    throw new Error(reason);
  }

  /** Repeats an action while the server is unavailable. Returns null once `until()` holds. */
  async #repeat(action, until) {
    for (let pause = 100; !until(); pause = Math.min(pause * 2, PAUSE_MAX_MS) * (0.8 + 0.4 * Math.random())) {
      try {
        return await action();
      } catch (error) {
        if (!(error instanceof Unavailable)) throw error;
        if (until()) break;
        console.error(`${error.message}; trying again in ${Math.round(pause)} ms`);
        await sleep(pause);
      }
    }
    return null;
  }

  #isStopping = () => this.#stopping.signal.aborted;

  async #join() {
    const body = { queues: this.queues, kinds: [...this.#handlers.keys()], lease_ms: this.leaseMs };
    Object.assign(body, { host: hostname(), pid: process.pid });
    const joined = await this.#repeat(() => this.call("/nodes", body), this.#isStopping);
    if (joined) {
      [this.#node, this.#heartbeatMs, this.#heard] = [joined.id, joined.heartbeat_ms, Date.now()];
    }
  }

  /** The server does not know the node: other workers get its jobs, so their handlers here must stop. */
  #forget(node) {
    if (this.#node === node) this.#node = null;
    for (const job of this.#held.values()) if (job.node === node) job.cancel(true);
  }

  async #claimJobs() {
    while (!this.#isStopping()) {
      const node = this.#node;
      const free = this.concurrency - this.#held.size;
      try {
        if (!node) {
          await this.#join();
        } else if (free === 0) {
          await this.#oneJobEnded(1_000);
        } else {
          const claim = { max: free, wait_ms: CLAIM_WAIT_MS };
          const options = { timeoutMs: 60_000, signal: this.#stopping.signal };
          const send = () => this.call(`/nodes/${node}/claim`, claim, options);
          const reply = await this.#repeat(send, this.#isStopping);
          for (const data of reply?.jobs ?? []) this.#run(new Job(this, node, data));
        }
      } catch (error) {
        if (!(error instanceof NodeGone)) throw error;
        console.error("the server does not know this worker any more; joining again");
        this.#forget(node);
      }
    }
  }

  async #run(job) {
    this.#held.set(job.id, job);
    let outcome = { outcome: "ack" };
    try {
      const result = await this.#handlers.get(job.kind)(job);
      if (result !== undefined) outcome.result = result;
    } catch (error) {
      outcome = describe(error);
    }
    await this.#settle(job, outcome);
    this.#held.delete(job.id);
    this.#jobEnded();
  }

  async #settle(job, outcome) {
    const body = { outcomes: [{ id: job.id, fence: job.fence, ...outcome }] };
    try {
      // The same request again is safe: a recorded outcome is not recorded twice.
      const reply = await this.#repeat(() => this.call(`/nodes/${job.node}/settle`, body), () => job.lost);
      if (!reply || reply.lost.length > 0) console.error(`job ${job.id} was lost before its outcome was recorded`);
    } catch (error) {
      if (error instanceof NodeGone) return this.#forget(job.node);
      console.error(`job ${job.id}:`, error.message); // for example a result that is too large
      if (outcome.outcome === "ack") await this.#settle(job, { outcome: "retry", error: error.message });
    }
  }

  async #sendHeartbeats() {
    for (;;) {
      const node = this.#node;
      let pause = this.#heartbeatMs;
      try {
        const held = [...this.#held.values()].filter((job) => job.node === node).map((job) => job.id);
        if (node) this.#hear(node, await this.call(`/nodes/${node}/heartbeat`, { held }, { timeoutMs: pause }));
      } catch (error) {
        console.error("no heartbeat:", error.message);
        pause = Math.min(pause, 1_000);
        if (error instanceof NodeGone || Date.now() - this.#heard > this.leaseMs) this.#forget(node);
      }
      await sleep(node ? pause : 100);
    }
  }

  #hear(node, reply) {
    this.#heard = Date.now();
    for (const [ids, lost] of [[reply.lost, true], [reply.cancel, false]]) {
      for (const id of ids) if (this.#held.get(id)?.node === node) this.#held.get(id).cancel(lost);
    }
    if (reply.stop) this.#stopping.abort();
  }

  /** Waits until a job has ended, at most this long. */
  #oneJobEnded(ms) {
    const ended = new Promise((resolve) => (this.#jobEnded = resolve));
    return Promise.race([ended, sleep(ms)]);
  }
}

/** Returns the outcome of an attempt that threw. */
function describe(error) {
  if (error instanceof Release) return { outcome: "release" };
  if (error instanceof Bury) return { outcome: "bury", error: error.message };
  const outcome = { outcome: "retry", error: error instanceof Retry ? error.message : String(error) };
  if (error.afterMs !== undefined) outcome.after_ms = error.afterMs;
  return outcome;
}
