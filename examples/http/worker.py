"""A worker for duly in Python, with nothing but the standard library.

duly serve &
python3 examples/http/worker.py
curl -H 'Content-Type: application/json' -d '{"kind":"greet","args":{"name":"ada"}}' http://127.0.0.1:7711/api/v1/jobs
"""

import json
import os
import threading
import urllib.error
import urllib.request

URL = os.environ.get("DULY_URL", "http://127.0.0.1:7711") + "/api/v1"
TOKEN = os.environ.get("DULY_TOKEN")


def ask(path, body, method="POST"):
    headers = {"Content-Type": "application/json"}
    if TOKEN:
        headers["Authorization"] = "Bearer " + TOKEN
    request = urllib.request.Request(URL + path, json.dumps(body).encode(), headers, method=method)
    with urllib.request.urlopen(request, timeout=90) as answer:
        return json.loads(answer.read() or b"null")


def greet(job):
    print("hello", job["args"]["name"], "attempt", job["attempt"], flush=True)


HANDLERS = {"greet": greet}

node = ask("/nodes", {"queues": ["default"], "kinds": list(HANDLERS), "lease_ms": 30_000})
held = {}  # id of each job in hand: the beat names them, so that none is lost on its way
stop = threading.Event()


def beat():
    while not stop.wait(node["beat_ms"] / 1000):
        try:
            told = ask(f"/nodes/{node['id']}/beat", {"held": list(held)})
            if told["stop"]:
                stop.set()
        except urllib.error.URLError as error:
            print("no beat:", error, flush=True)


threading.Thread(target=beat, daemon=True).start()
try:
    while not stop.is_set():
        for job in ask(f"/nodes/{node['id']}/claim", {"max": 1, "wait_ms": 20_000})["jobs"]:
            held[job["id"]] = job
            end = {"id": job["id"], "fence": job["fence"], "outcome": "ack"}
            try:
                HANDLERS[job["kind"]](job)
            except Exception as error:  # whatever it was: tried again later, and in the end dead
                end.update(outcome="retry", error=repr(error))
            ask(f"/nodes/{node['id']}/settle", {"ends": [end]})
            del held[job["id"]]
finally:
    ask(f"/nodes/{node['id']}", {}, method="DELETE")
