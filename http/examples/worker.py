"""A worker for duly in Python, with nothing but the standard library.

duly serve &
python3 http/examples/worker.py
curl -H 'Content-Type: application/json' -d '{"kind":"greet","args":{"name":"ada"}}' http://127.0.0.1:7711/api/v1/jobs
"""

import json
import os
import threading
import urllib.error
import urllib.request

URL = os.environ.get("DULY_URL", "http://127.0.0.1:7711") + "/api/v1"
TOKEN = os.environ.get("DULY_TOKEN")


def call(path, body, method="POST"):
    headers = {"Content-Type": "application/json"}
    if TOKEN:
        headers["Authorization"] = "Bearer " + TOKEN
    request = urllib.request.Request(URL + path, json.dumps(body).encode(), headers, method=method)
    with urllib.request.urlopen(request, timeout=90) as response:
        return json.loads(response.read() or b"null")


def greet(job):
    print("hello", job["args"]["name"], "attempt", job["attempt"], flush=True)


HANDLERS = {"greet": greet}

node = call("/nodes", {"queues": ["default"], "kinds": list(HANDLERS), "lease_ms": 30_000})
held = {}  # running jobs by id: each heartbeat names them, so that the server notices a lost reply
stop = threading.Event()


def send_heartbeats():
    while not stop.wait(node["heartbeat_ms"] / 1000):
        try:
            reply = call(f"/nodes/{node['id']}/heartbeat", {"held": list(held)})
            if reply["stop"]:
                stop.set()
        except urllib.error.URLError as error:
            print("no heartbeat:", error, flush=True)


threading.Thread(target=send_heartbeats, daemon=True).start()
try:
    while not stop.is_set():
        for job in call(f"/nodes/{node['id']}/claim", {"max": 1, "wait_ms": 20_000})["jobs"]:
            held[job["id"]] = job
            outcome = {"id": job["id"], "fence": job["fence"], "outcome": "ack"}
            try:
                HANDLERS[job["kind"]](job)
            except Exception as error:  # any error: retried later, and dead after the last attempt
                outcome.update(outcome="retry", error=repr(error))
            call(f"/nodes/{node['id']}/settle", {"outcomes": [outcome]})
            del held[job["id"]]
finally:
    call(f"/nodes/{node['id']}", {}, method="DELETE")
