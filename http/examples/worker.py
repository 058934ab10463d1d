"""A worker for duly in Python.

duly serve &
python3 http/examples/worker.py
curl -H 'Content-Type: application/json' -d '{"kind":"greet","args":{"name":"ada"}}' http://127.0.0.1:7711/api/v1/jobs
"""

import logging

from duly_worker import Release, Worker

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
worker = Worker(queues=["default"], concurrency=4)


@worker.on("greet")
def greet(job):
    print("hello", job.args["name"], "attempt", job.attempt, flush=True)
    return {"greeted": job.args["name"]}  # the result, stored with the job


@worker.on("count")
def count(job):
    """A job that takes a while reports its progress, and stops if it is cancelled or another worker has it."""
    for second in range(job.args["seconds"]):
        job.progress(second / job.args["seconds"], f"second {second}")
        if job.cancelled.wait(1):
            raise Release


worker.run()
