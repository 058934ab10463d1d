"""huey on SQLite with an fsync for each commit and one worker thread in the pushing process.

`python peer.py COUNT ARGS_BYTES DIR` prints one line of JSON.
huey has no bulk push. It removes a job from the file before it runs the job: two commits per job, and a killed worker
loses it.
"""

import json
import logging
import os
import sys
import threading
import time

from huey import SqliteHuey


def main():
    count, size, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    logging.disable(logging.CRITICAL)
    huey = SqliteHuey("bench", filename=os.path.join(folder, "huey.db"), fsync=True, results=False)
    mode = huey.storage.sql("pragma synchronous", results=True)[0][0]
    assert mode == 2, f"synchronous is {mode}, not FULL"
    text = "x" * (size - len('{"text":""}'))
    ran = 0
    all_done = threading.Event()

    @huey.task()
    def noop(text):
        nonlocal ran
        ran += 1
        if ran == count:
            all_done.set()

    begin = time.monotonic()
    for _ in range(count):
        noop(text)
    pushed = time.monotonic()
    consumer = huey.create_consumer(workers=1, periodic=False, initial_delay=0.001, check_worker_health=False)
    consumer.start()
    assert all_done.wait(120), f"only {ran} of {count} jobs ran"
    end = time.monotonic()
    figures = {
        "peer": "huey",
        "jobs": count,
        "single_push_per_s": count / (pushed - begin),
        "bulk_push_per_s": None,
        "life_per_s": count / (end - begin),
    }
    print(json.dumps(figures), flush=True)
    # The consumer would wait for more jobs; no data is left to be saved.
    os._exit(0)


main()
