"""A worker for duly over HTTP: Python 3.9 or newer, only the standard library. Copy this file into your project.

It runs several jobs at once and survives restarts of the server. It reports what its handlers return, cancels handlers
that lost their job, and finishes running jobs on SIGTERM. worker.py, in the same directory, shows how to use it.
"""

import json
import logging
import os
import random
import signal
import socket
import threading
import time
import urllib.error
import urllib.request

log = logging.getLogger("duly")

CLAIM_WAIT_MS = 20_000
PAUSE_MAX = 10.0  # seconds between attempts to reach the server


class Retry(Exception):
    """Raise it in a handler to run the job again, after `after` seconds if given."""

    def __init__(self, error, after=None):
        super().__init__(error)
        self.after = after


class Bury(Exception):
    """Raise it in a handler if the job can never succeed: it is dead at once."""


class Release(Exception):
    """Raise it in a handler to give the job back without counting an attempt, for example because it was cancelled."""


class Unavailable(Exception):
    """The server cannot be reached, or asks to try again later."""


class NodeGone(Exception):
    """The server does not know this worker any more."""


class Job:
    """A claimed job. Handlers that run for long check `cancelled` now and then, and raise `Release`."""

    def __init__(self, worker, node, data):
        self._worker, self.node = worker, node
        self.id, self.kind, self.queue, self.args = data["id"], data["kind"], data["queue"], data["args"]
        self.attempt, self.fence, self.timeout = data["attempt"], data["fence"], data["timeout_ms"] / 1000
        self.cancelled = threading.Event()
        self.lost = False

    def progress(self, fraction=None, message="", *lines):
        """Records the progress from 0 to 1, and log lines. It never fails: a job does not end for want of a report."""
        body = {"id": self.id, "fence": self.fence, "message": message, "lines": list(lines)}
        if fraction is not None:
            body["fraction"] = fraction
        try:
            if self._worker.call(f"/nodes/{self.node}/progress", body)["lost"]:
                self.cancel(lost=True)
        except (Unavailable, NodeGone) as error:
            log.warning("job %s: progress was not recorded: %s", self.id, error)

    def cancel(self, lost=False):
        self.lost = self.lost or lost
        self.cancelled.set()


class Worker:
    def __init__(self, url=None, token=None, queues=("default",), concurrency=4, lease=30.0, grace=25.0):
        self.url = (url or os.environ.get("DULY_URL", "http://127.0.0.1:7711")).rstrip("/") + "/api/v1"
        self.token = token or os.environ.get("DULY_TOKEN")
        self.queues, self.concurrency, self.lease, self.grace = list(queues), concurrency, lease, grace
        self.handlers = {}
        self.stopping = threading.Event()
        self._changed = threading.Condition()  # guards node, heartbeat and held
        self._node = None
        self._heartbeat = lease / 3
        self._heard = 0.0  # when the server last accepted a heartbeat
        self._held = {}  # running jobs by id

    def on(self, kind):
        """Registers a handler: `@worker.on("greet")`. What it returns is the job's result, if it is not None."""

        def register(handler):
            self.handlers[kind] = handler
            return handler

        return register

    def run(self):
        """Runs jobs until SIGTERM or SIGINT, or until an operator stops the worker."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.stopping.set())
        threading.Thread(target=self._claim_jobs, daemon=True).start()
        threading.Thread(target=self._send_heartbeats, daemon=True).start()
        while not self.stopping.wait(1):
            pass
        with self._changed:
            # Running jobs may finish. The rest goes back when the worker leaves.
            self._changed.wait_for(lambda: not self._held, timeout=self.grace)
            node = self._node
        if node:
            try:
                self.call(f"/nodes/{node}", method="DELETE", timeout=5)
            except (Unavailable, NodeGone) as error:
                log.warning("did not leave: %s", error)

    def call(self, path, body=None, method="POST", timeout=30):
        """Sends a request and returns the response. Raises ValueError if the server rejects the request as wrong."""
        headers = {"Content-Type": "application/json"}
        if self.token:
            headers["Authorization"] = "Bearer " + self.token
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as response:
                return json.loads(response.read() or b"null")
        except urllib.error.HTTPError as error:
            reason = f"{method} {path}: {error.code} {error.read(2000).decode(errors='replace')}"
            if error.code == 404 and path.startswith("/nodes/"):
                raise NodeGone(reason) from None
            if error.code in (408, 429) or error.code >= 500:
                raise Unavailable(reason) from None
            raise ValueError(reason) from None
        except (OSError, ValueError) as error:  # no connection, no response, or half of one
            raise Unavailable(f"{method} {path}: {error}") from None

    def _repeat(self, action, until):
        """Repeats an action while the server is unavailable. Returns None once `until()` holds."""
        pause = 0.1
        while not until():
            try:
                return action()
            except Unavailable as error:
                log.warning("%s; trying again in %.1f s", error, pause)
                time.sleep(pause)
                pause = min(pause * 2, PAUSE_MAX) * random.uniform(0.8, 1.2)
        return None

    def _join(self):
        body = {"queues": self.queues, "kinds": list(self.handlers), "lease_ms": int(self.lease * 1000)}
        body |= {"host": socket.gethostname(), "pid": os.getpid()}
        joined = self._repeat(lambda: self.call("/nodes", body), self.stopping.is_set)
        if joined:
            with self._changed:
                self._node, self._heartbeat = joined["id"], joined["heartbeat_ms"] / 1000
                self._heard = time.monotonic()
                self._changed.notify_all()
            log.info("joined as node %s", joined["id"])

    def _forget(self, node):
        """The server does not know the node: other workers get its jobs, so their handlers here must stop."""
        with self._changed:
            if self._node == node:
                self._node = None
            for job in self._held.values():
                if job.node == node:
                    job.cancel(lost=True)

    def _claim_jobs(self):
        while not self.stopping.is_set():
            with self._changed:
                self._changed.wait_for(lambda: len(self._held) < self.concurrency)
                node, free = self._node, self.concurrency - len(self._held)
            try:
                if node is None:
                    self._join()
                    continue
                claim = {"max": free, "wait_ms": CLAIM_WAIT_MS}
                reply = self._repeat(lambda: self.call(f"/nodes/{node}/claim", claim, timeout=60), self.stopping.is_set)
                for data in reply["jobs"] if reply else []:
                    self._start(Job(self, node, data))
            except NodeGone:
                log.warning("the server does not know this worker any more; joining again")
                self._forget(node)
            except Exception:  # the worker must not stop silently
                log.exception("claiming failed; stopping")
                self.stopping.set()

    def _start(self, job):
        with self._changed:
            self._held[job.id] = job
        if self.stopping.is_set():
            self._settle(job, {"outcome": "release"})
        else:
            threading.Thread(target=self._run, args=(job,), daemon=True).start()

    def _run(self, job):
        try:
            result = self.handlers[job.kind](job)
            outcome = {"outcome": "ack"} if result is None else {"outcome": "ack", "result": result}
            json.dumps(result)
        except Release:
            outcome = {"outcome": "release"}
        except Bury as error:
            outcome = {"outcome": "bury", "error": str(error)}
        except Retry as error:
            outcome = {"outcome": "retry", "error": str(error)}
            if error.after is not None:
                outcome["after_ms"] = int(error.after * 1000)
        except Exception as error:  # any other error: retried later, and dead after the last attempt
            log.exception("job %s failed", job.id)
            outcome = {"outcome": "retry", "error": repr(error)}
        self._settle(job, outcome)

    def _settle(self, job, outcome):
        body = {"outcomes": [{"id": job.id, "fence": job.fence, **outcome}]}
        try:
            # The same request again is safe: a recorded outcome is not recorded twice.
            reply = self._repeat(lambda: self.call(f"/nodes/{job.node}/settle", body), lambda: job.lost)
            if reply is None or reply["lost"]:
                log.warning("job %s was lost before its outcome was recorded", job.id)
        except NodeGone:
            self._forget(job.node)
        except ValueError as error:  # for example a result that is too large
            log.error("job %s: %s", job.id, error)
            if outcome["outcome"] == "ack":
                return self._settle(job, {"outcome": "retry", "error": str(error)})
        finally:
            with self._changed:
                self._held.pop(job.id, None)
                self._changed.notify_all()

    def _send_heartbeats(self):
        while True:
            with self._changed:
                node, pause = self._node, self._heartbeat
                held = [job.id for job in self._held.values() if job.node == node]
            try:
                if node:
                    self._hear(node, self.call(f"/nodes/{node}/heartbeat", {"held": held}, timeout=pause))
            except NodeGone:
                self._forget(node)
            except Exception as error:
                log.warning("no heartbeat: %s", error)
                pause = min(pause, 1.0)
                if time.monotonic() - self._heard > self.lease:
                    self._forget(node)
            time.sleep(pause)

    def _hear(self, node, reply):
        with self._changed:
            self._heard = time.monotonic()
            for name, lost in (("lost", True), ("cancel", False)):
                for id in reply[name]:
                    job = self._held.get(id)
                    if job and job.node == node:
                        job.cancel(lost)
        if reply["stop"]:
            self.stopping.set()
