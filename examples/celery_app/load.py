"""Sends tasks, kills pool processes in the middle of them, and tells what came of it."""

import argparse
import os
import signal
import sys
import time


def events(book):
    for line in book.lrange("example:book", 0, -1):
        what, invoice, task, pid, at = line.decode().split()
        yield what, invoice, task, int(pid), float(at)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", nargs="?", help="the Redis of the worker (default: REDIS_URL)")
    parser.add_argument("--lock", choices=["lockwarden", "redis-py"], default="lockwarden")
    parser.add_argument("--tasks", type=int, default=40)
    parser.add_argument("--invoices", type=int, default=2)
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--patience", type=float, default=60, help="how long to wait for all of them, in s")
    options = parser.parse_args()
    if options.url:
        os.environ["REDIS_URL"] = options.url

    from app import app, bill, bill_with_redis_py, book

    if not app.control.ping(timeout=3):
        sys.exit("no worker answers: start one with `celery -A app worker -c 4`")
    keys = ["example:book", *book.scan_iter("example:lock:*")]
    book.delete(*keys)
    task = bill if options.lock == "lockwarden" else bill_with_redis_py
    results = [task.delay(n % options.invoices) for n in range(options.tasks)]

    killed = {}
    until = time.monotonic() + options.patience
    while time.monotonic() < until and not all(result.ready() for result in results):
        running = {}
        for what, invoice, _, pid, _ in events(book):
            if what == "begin":
                running[pid] = invoice
            else:
                running.pop(pid, None)
        alive = [pid for pid in running if pid not in killed]
        done = sum(result.ready() for result in results)
        if alive and len(killed) < options.kills and done >= (len(killed) + 1) * options.tasks // (options.kills + 2):
            killed[alive[0]] = time.monotonic()
            os.kill(alive[0], signal.SIGKILL)
        time.sleep(0.02)

    # Who is inside, by invoice: a second one may only begin when the first has ended, or is dead.
    inside, overlaps, after = {}, 0, []
    for what, invoice, _, pid, at in sorted(events(book), key=lambda it: it[4]):
        if what == "begin":
            before = inside.get(invoice)
            if before in killed and killed[before] < at:
                after.append(at - killed[before])
            elif before is not None:
                overlaps += 1
            inside[invoice] = pid
        elif inside.get(invoice) == pid:
            inside.pop(invoice)
    ended = sum(result.successful() for result in results)
    print(f"tasks that ended well     {ended} of {len(results)}")
    print(f"pool processes killed     {len(killed)}")
    print(f"two at once               {overlaps}")
    print("next one after a kill     " + (", ".join(f"{it * 1e3:.0f} ms" for it in after) or "never"))
    stuck = [pid for pid in killed if pid in inside.values()]
    print(f"invoices that stay locked {len(stuck)}")
    return 0 if ended == len(results) and not overlaps else 1


if __name__ == "__main__":
    sys.exit(main())
