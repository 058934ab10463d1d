"""Redis in Action's delayed tasks (section 6.4.2) with current redis-py, controlled by lines of JSON on stdin.

The functions are the book's, with two changes for current versions: ZADD takes a mapping, and replies are decoded, so that
a lock is released. Environment: REDIS_PORT. Exits at the end of stdin.
"""
import json
import os
import sys
import threading
import time
import uuid

import redis


def connect():
    return redis.Redis(port=int(os.environ["REDIS_PORT"]), decode_responses=True)


def acquire_lock(conn, lockname, acquire_timeout=10):
    identifier = str(uuid.uuid4())

    end = time.time() + acquire_timeout
    while time.time() < end:
        if conn.setnx('lock:' + lockname, identifier):
            return identifier

        time.sleep(.001)

    return False


def release_lock(conn, lockname, identifier):
    pipe = conn.pipeline(True)
    lockname = 'lock:' + lockname

    while True:
        try:
            pipe.watch(lockname)
            if pipe.get(lockname) == identifier:
                pipe.multi()
                pipe.delete(lockname)
                pipe.execute()
                return True

            pipe.unwatch()
            break
        except redis.exceptions.WatchError:
            pass

    return False


def execute_later(conn, queue, name, args, delay=0):
    identifier = str(uuid.uuid4())

    item = json.dumps([identifier, queue, name, args])

    if delay > 0:
        conn.zadd('delayed:', {item: time.time() + delay})
    else:
        conn.rpush('queue:' + queue, item)

    return identifier


def poll_queue(conn):
    while True:
        item = conn.zrange('delayed:', 0, 0, withscores=True)

        if not item or item[0][1] > time.time():
            time.sleep(.01)
            continue

        item = item[0][0]
        identifier, queue, name, args = json.loads(item)

        locked = acquire_lock(conn, identifier)
        if not locked:
            continue

        if conn.zrem('delayed:', item):
            conn.rpush('queue:' + queue, item)

        release_lock(conn, identifier, locked)


def work(conn, queue, got):
    while True:
        popped = conn.blpop(['queue:' + queue], 30)
        if popped:
            got.append(json.loads(popped[1]))


def start(function, *args):
    threading.Thread(target=function, args=args, daemon=True).start()


def main():
    conn, got = connect(), []
    print(json.dumps({"ready": redis.__version__}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        command, value = request["do"], None
        if command == "later":
            value = execute_later(conn, request["queue"], request["name"], request["args"], request.get("delay", 0))
        elif command == "poll":
            start(poll_queue, connect())
        elif command == "work":
            start(work, connect(), request["queue"], got)
        elif command == "pop":
            popped = conn.blpop(['queue:' + request["queue"]], request.get("timeout", 5))
            value = json.loads(popped[1]) if popped else None
        elif command == "dumps":
            value = json.dumps(request["value"])
        elif command == "got":
            value = got
        elif command == "lock":
            value = acquire_lock(conn, request["name"], 0.5)
        print(json.dumps({"id": request["id"], "value": value}), flush=True)


main()
