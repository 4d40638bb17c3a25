#!/usr/bin/env python3
"""Lockwarden's Python package beside redis-py's Lock, on one server, in one run.

    .venv/bin/python bench/python/side_by_side.py [--url redis://127.0.0.1:6379/0] [--rounds 5] [--short] [--json]

Each figure is a ratio: both are measured one after the other, round by round, and the median of the rounds' ratios is
told, for a machine is never quiet. Without --url it starts the redis-server of the tests (tools/install-servers) or the
one on the PATH.
"""

import argparse
import asyncio
import json
import os
import pathlib
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import redis
import redis.asyncio

import lockwarden

ROOT = pathlib.Path(__file__).resolve().parents[2]


def precise(seconds: float) -> None:
    """Holds for this long, to the point: a timer of the system would add its own error."""
    until = time.perf_counter() + seconds
    time.sleep(max(0.0, seconds - 0.0003))
    while time.perf_counter() < until:
        pass


def in_threads(count, work):
    """How long it takes until all have done it, in s."""
    start = threading.Barrier(count + 1)

    def run(number):
        start.wait()
        work(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    start.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began


def cycles(lock, count):
    for _ in range(count):
        with lock:
            pass


class Contest:
    def __init__(self, url, short):
        self.url = url
        self.warden = lockwarden.connect(url)
        self.client = redis.Redis.from_url(url)
        self.scale = 4 if short else 1
        self.failed = 0

    def one_thread(self, ours):
        lock = self.warden.lock("bench:one") if ours else self.client.lock("bench:one-r", timeout=30)
        count = 4000 // self.scale
        began = time.perf_counter()
        cycles(lock, count)
        return count / (time.perf_counter() - began)

    def threads_64(self, ours):
        count = (200 if ours else 40) // self.scale
        if ours:
            locks = [self.warden.lock(f"bench:t{number}") for number in range(64)]
        else:
            locks = [self.client.lock(f"bench:r{number}", timeout=30) for number in range(64)]
        return 64 * count / in_threads(64, lambda number: cycles(locks[number], count))

    def asyncio_64(self, ours):
        count = (200 if ours else 60) // self.scale

        async def main():
            client = None if ours else redis.asyncio.Redis.from_url(self.url)

            async def work(number):
                lock = (
                    self.warden.lock(f"bench:a{number}")
                    if ours
                    else client.lock(f"bench:b{number}", timeout=30)
                )
                for _ in range(count):
                    async with lock:
                        pass

            began = time.perf_counter()
            await asyncio.gather(*[work(number) for number in range(64)])
            took = time.perf_counter() - began
            if client is not None:
                await client.aclose()
            return took

        return 64 * count / asyncio.run(main())

    def waiting_threads(self, count):
        """1,000 threads wait for one lock and hold it for 1 ms each: the time it takes, by the time they hold it."""
        lock = self.warden.lock("bench:waiting")

        def work(_):
            try:
                with lock:
                    precise(0.001)
            except lockwarden.Error:
                self.failed += 1

        return in_threads(count, work) / (count * 0.001)

    def waiting_tasks(self, count):
        async def main():
            lock = self.warden.lock("bench:waiting-a")

            async def work():
                try:
                    async with lock:
                        precise(0.001)
                except lockwarden.Error:
                    self.failed += 1

            began = time.perf_counter()
            await asyncio.gather(*[work() for _ in range(count)])
            return time.perf_counter() - began

        return asyncio.run(main()) / (count * 0.001)

    def connections_and_commands(self):
        lock = self.warden.lock("bench:one")
        cycles(lock, 10)
        self.client.config_resetstat()
        count = 1000
        cycles(lock, count)
        calls = self.client.info("commandstats")["cmdstat_evalsha"]["calls"]
        others = {(info["name"], info["addr"]) for info in self.client.client_list()}
        return calls / count, len(others)


def server():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = ROOT / ".servers" / "redis-7.0" / "redis-server"
    name = str(program) if program.exists() else shutil.which("redis-server")
    if name is None:
        sys.exit("side_by_side: no redis-server; run tools/install-servers, or give --url")
    directory = tempfile.TemporaryDirectory()
    process = subprocess.Popen(
        [name, "--port", str(port), "--save", "", "--dir", directory.name], stdout=subprocess.DEVNULL
    )
    client = redis.Redis(port=port)
    while True:
        try:
            client.ping()
            break
        except redis.exceptions.ConnectionError:
            time.sleep(0.01)
    return process, f"redis://127.0.0.1:{port}/0", directory


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--url")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--short", action="store_true", help="a quarter of the size")
    options.add_argument("--json", action="store_true")
    given = options.parse_args()
    process = directory = None
    if given.url is None:
        process, given.url, directory = server()
    try:
        contest = Contest(given.url, given.short)
        contest.one_thread(True)
        rows = []
        for what, measure, wanted in (
            ("acquire and release, one thread", contest.one_thread, 1.2),
            ("the same, 64 threads, a lock each", contest.threads_64, 6.0),
            ("the same, 64 asyncio tasks", contest.asyncio_64, 5.0),
        ):
            pairs = []
            for number in range(given.rounds):
                if sys.stderr.isatty():
                    print(f"\r{what}: round {number + 1} of {given.rounds} ", end="", file=sys.stderr)
                pairs.append((measure(True), measure(False)))
            rows.append({
                "what": what,
                "unit": "cycles/s",
                "ours": round(statistics.median(one for one, _ in pairs)),
                "redis_py": round(statistics.median(other for _, other in pairs)),
                "ratio": round(statistics.median(one / other for one, other in pairs), 2),
                "wanted": f">= {wanted}",
                "is_met": statistics.median(one / other for one, other in pairs) >= wanted,
            })
        waiters = 250 if given.short else 1000
        for what, measure in (("threads", contest.waiting_threads), ("tasks", contest.waiting_tasks)):
            ratio = statistics.median(measure(waiters) for _ in range(min(3, given.rounds)))
            rows.append({
                "what": f"{waiters:,} waiting {what}, 1 ms each",
                "unit": "times the hold",
                "ours": round(ratio, 2),
                "redis_py": None,
                "ratio": None,
                "wanted": "<= 1.5",
                "is_met": ratio <= 1.5 and contest.failed == 0,
            })
        commands, connections = contest.connections_and_commands()
        rows.append({"what": "commands per cycle", "unit": "", "ours": round(commands, 2), "redis_py": None,
                     "ratio": None, "wanted": "<= 2 and beats", "is_met": commands < 2.02})
    finally:
        if process is not None:
            process.kill()
            process.wait()
            directory.cleanup()
    if given.json:
        print(json.dumps({"failed": contest.failed, "results": rows}))
        return
    if sys.stderr.isatty():
        print(file=sys.stderr)
    print(f"{'':42} {'ours':>9} {'redis-py':>9} {'ratio':>6}  wanted")
    for row in rows:
        other, ratio = row["redis_py"], row["ratio"]
        print(
            f"{row['what']:42} {row['ours']:>9,} {other if other is not None else '':>9} "
            f"{ratio if ratio is not None else '':>6}  {row['wanted']:14} {'' if row['is_met'] else 'MISSED'}"
            f" {row['unit']}"
        )
    print(f"failed: {contest.failed}; {os.cpu_count()} cores, Python {sys.version.split()[0]}, redis-py {redis.__version__}")


if __name__ == "__main__":
    main()
