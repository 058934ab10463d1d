"""litequeue with synchronous=FULL forced: put, pop and done in one loop.

`python peer.py COUNT ARGS_BYTES DIR` prints one line of JSON.
"""

import json
import os
import sys
import time

from litequeue import LiteQueue

BULK = 1000


def open_queue(path):
    queue = LiteQueue(path)
    queue.conn.execute("PRAGMA synchronous = FULL")
    mode = queue.conn.execute("PRAGMA synchronous").fetchone()[0]
    assert mode == 2, f"synchronous is {mode}, not FULL"
    return queue


def main():
    count, size, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    args = json.dumps({"text": "x" * (size - len('{"text": ""}'))})

    queue = open_queue(os.path.join(folder, "single.db"))
    begin = time.monotonic()
    for _ in range(count):
        queue.put(args)
    singles = time.monotonic() - begin

    queue = open_queue(os.path.join(folder, "life.db"))
    begin = time.monotonic()
    for at in range(0, count, BULK):
        with queue.transaction():
            for _ in range(min(BULK, count - at)):
                queue.put(args)
    pushed = time.monotonic() - begin
    ran = 0
    while message := queue.pop():
        json.loads(message.data)
        queue.done(message.message_id)
        ran += 1
    end = time.monotonic() - begin
    assert ran == count, f"only {ran} of {count} jobs ran"
    figures = {
        "peer": "litequeue",
        "jobs": count,
        "single_push_per_s": count / singles,
        "bulk_push_per_s": count / pushed,
        "life_per_s": count / end,
    }
    print(json.dumps(figures), flush=True)


main()
