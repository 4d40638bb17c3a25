#!/usr/bin/env python
"""Places many orders at once with the shop under gunicorn, the right way and the flawed one, and prints one report.

    python load.py --orders 500 --redis redis://127.0.0.1:6379/1

The shop gets a database of its own each time. With --json the report is for programs.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import ctypes
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, Iterator, List, Optional, Tuple

HERE = pathlib.Path(__file__).resolve().parent
CUSTOMERS, PRODUCTS, COUPONS, BRANCHES = 100, 20, 50, 4
STYLES = {"order": "Lockwarden", "flawed": "SETNX, then EXPIRE"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--orders", type=int, default=500, help="all at the same time (500)")
    parser.add_argument("--stock", type=int, help="pieces of all products together; default: one for each order")
    parser.add_argument("--redis", default="redis://127.0.0.1:6379/1", help="where the locks are; of the right way file:DIR, too")
    parser.add_argument("--workers", type=int, default=4, help="processes of gunicorn (4)")
    parser.add_argument("--threads", type=int, default=32, help="threads of each (32)")
    parser.add_argument("--only", choices=STYLES, help="one style; default: both")
    parser.add_argument("--json", action="store_true", help="for programs")
    asked = parser.parse_args()
    stock = asked.orders if asked.stock is None else asked.stock
    styles = [asked.only] if asked.only else list(STYLES)
    report = {"orders": asked.orders, "stock": stock, "workers": asked.workers, "threads": asked.threads}
    report["styles"] = {style: run(style, asked, stock) for style in styles}
    print(json.dumps(report, indent=2) if asked.json else text(report))


def run(style: str, asked: Any, stock: int) -> Dict[str, Any]:
    """One style on a fresh database."""
    with tempfile.TemporaryDirectory(prefix="shop-") as scratch:
        environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "shop.settings",
            "SHOP_DATABASE": os.path.join(scratch, "shop.sqlite3"),
            "SHOP_REDIS": asked.redis,
        }
        subprocess.run([sys.executable, "manage.py", "fill", str(stock)], cwd=HERE, env=environment, check=True)
        with shop(asked, environment) as port:
            asyncio.run(_warm(port, 2 * asked.workers))
            begun = time.monotonic()
            answers = asyncio.run(_all(style, port, asked.orders))
            took = time.monotonic() - begun
        books = subprocess.run(
            [sys.executable, "manage.py", "books", str(stock)], cwd=HERE, env=environment, check=True, stdout=subprocess.PIPE
        )
    return {**_figures(answers, took), **json.loads(books.stdout)}


@contextlib.contextmanager
def shop(asked: Any, environment: Dict[str, str]) -> Iterator[int]:
    """gunicorn on a free port, until the end of the block."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(2048)
        command = [
            sys.executable, "-m", "gunicorn", "shop.wsgi", "--bind", f"fd://{listening.fileno()}",
            "--workers", str(asked.workers), "--threads", str(asked.threads), "--timeout", "120",
            "--graceful-timeout", "5", "--log-level", "warning", "--preload",
        ]  # fmt: skip
        if _has_control_socket():
            command.append("--no-control-socket")  # later versions; nobody controls it here
        process = subprocess.Popen(
            command,
            cwd=HERE,
            env=environment,
            pass_fds=[listening.fileno()],
            stdout=sys.stderr,
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )
        try:
            yield listening.getsockname()[1]
        finally:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _end_with_parent() -> None:
    """Nothing is left running, however this script ends (Linux: PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def _has_control_socket() -> bool:
    from gunicorn.config import KNOWN_SETTINGS

    return any("--no-control-socket" in (setting.cli or ()) for setting in KNOWN_SETTINGS)


async def _all(style: str, port: int, count: int) -> List[Tuple[int, float]]:
    """All orders at once: the status of each (0: no answer), and how long it took, in s."""
    return await asyncio.gather(*(_order(style, port, number) for number in range(count)))


async def _warm(port: int, count: int) -> None:
    """The workers have started, and have imported what they need."""
    await asyncio.gather(*(_post(port, "/") for _ in range(count)))


async def _order(style: str, port: int, number: int) -> Tuple[int, float]:
    path = (
        f"/{style}/{number % CUSTOMERS + 1}/{number * 7 % PRODUCTS + 1}/"
        f"c{number * 3 % COUPONS + 1}/b{number % BRANCHES + 1}/"
    )
    begun = time.monotonic()
    status = await _post(port, path)
    return status, time.monotonic() - begun


async def _post(port: int, path: str) -> int:
    """The status of the answer; 0: none came."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()
        )
        answer = await asyncio.wait_for(reader.read(), 120)
        writer.close()
    except (OSError, asyncio.TimeoutError):
        return 0
    return int(answer[9:12]) if answer.startswith(b"HTTP/1.1 ") else 0


def _figures(answers: List[Tuple[int, float]], took: float) -> Dict[str, Any]:
    statuses = collections.Counter(status for status, _ in answers)
    times = sorted(length for _, length in answers)
    known = {201: "fulfilled", 422: "out_of_stock", 409: "busy", 503: "unavailable", 500: "errors", 0: "no_answer"}
    return {
        **{word: statuses.pop(status, 0) for status, word in known.items()},
        "other": sum(statuses.values()),
        "took_s": round(took, 2),
        "p50_s": round(_percentile(times, 50), 3),
        "p99_s": round(_percentile(times, 99), 3),
        "per_s": round(len(answers) / took, 1),
    }


def _percentile(times: List[float], percent: int) -> float:
    return times[min(len(times) - 1, len(times) * percent // 100)]


def text(report: Dict[str, Any]) -> str:
    rows: List[Tuple[str, Optional[str]]] = [
        ("fulfilled", "fulfilled"), ("refused: out of stock", "out_of_stock"), ("refused: busy", "busy"),
        ("unavailable (503)", "unavailable"), ("server errors (500)", "errors"), ("no answer", "no_answer"),
        ("took, s", "took_s"), ("orders per s", "per_s"), ("p50, s", "p50_s"), ("p99, s", "p99_s"),
        ("orders in the books", "orders"), ("lowest stock", "lowest_stock"), ("sold more than there was", "oversold"),
        ("pieces lost or doubled in the books", "stock_wrong"), ("order numbers given twice", "doubled_numbers"),
        ("coupon uses not counted", "coupons_wrong"), ("locks left behind", "locks_left"),
    ]  # fmt: skip
    styles = report["styles"]
    lines = [
        f"{report['orders']} orders at once, {report['stock']} pieces in stock, "
        f"gunicorn with {report['workers']} workers of {report['threads']} threads",
        "",
        " " * 38 + "".join(f"{STYLES[style]:>20}" for style in styles),
    ]
    for label, key in rows:
        lines.append(f"{label:<38}" + "".join(f"{styles[style][key]:>20}" for style in styles))
    return "\n".join(lines)


if __name__ == "__main__":
    main()
