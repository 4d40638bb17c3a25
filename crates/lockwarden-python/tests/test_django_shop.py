"""The example shop under gunicorn: everybody gets their order, or hears that the stock is out.

500 and 1000 orders at once with ``LOCKWARDEN_TEST_LONG=1``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from conftest import LONG, ROOT, _die_with_us

pytest.importorskip("django")
pytest.importorskip("gunicorn")

SHOP = ROOT / "examples" / "django_shop"
SIZES = [500, 1000] if LONG else [100]


def report(*asked: str) -> dict:
    """What the load script reports, for each style."""
    done = subprocess.run(
        [sys.executable, "load.py", "--json", *asked],
        cwd=SHOP,
        stdout=subprocess.PIPE,
        timeout=600,
        check=True,
        preexec_fn=_die_with_us,
    )
    told = json.loads(done.stdout)
    print(json.dumps(told, indent=2))
    return told["styles"]


def assert_right(style: dict, orders: int, stock: int) -> None:
    sold = min(orders, stock)
    assert style["fulfilled"] == style["orders"] == sold
    assert style["out_of_stock"] == orders - sold
    assert style["busy"] == style["unavailable"] == style["errors"] == style["no_answer"] == style["other"] == 0
    assert style["lowest_stock"] >= 0
    assert style["oversold"] == style["stock_wrong"] == style["doubled_numbers"] == style["coupons_wrong"] == 0
    assert style["locks_left"] == 0
    assert 0 < style["p50_s"] <= style["p99_s"] <= style["took_s"]


@pytest.mark.parametrize("orders", SIZES)
def test_b9_every_order_is_fulfilled_and_the_flawed_way_is_not(own_server, orders):
    styles = report("--orders", str(orders), "--redis", own_server.url())
    assert_right(styles["order"], orders, orders)
    assert styles["flawed"]["busy"] > 0 and styles["flawed"]["fulfilled"] < orders


@pytest.mark.parametrize("orders", SIZES)
def test_b9_who_is_refused_is_refused_for_the_stock(own_server, orders):
    stock = orders * 3 // 5
    styles = report("--only", "order", "--orders", str(orders), "--stock", str(stock), "--redis", own_server.url())
    assert_right(styles["order"], orders, stock)


def test_b9_the_same_on_the_embedded_store(tmp_path):
    styles = report("--only", "order", "--orders", "100", "--redis", f"file:{tmp_path / 'locks'}")
    assert_right(styles["order"], 100, 100)


STALE = """
from shop import orders
from shop.models import Order, Product
asked = dict(customer=1, product=1, coupon="c1", branch="b1")
orders.place(fence=5, **asked)
orders.place(fence=5, **asked)
try:
    orders.place(fence=4, **asked)
except orders.Stale:
    print("stale", Product.objects.get(pk=1).stock, Order.objects.count())
"""


def test_b9_a_late_writer_is_refused_by_the_rows(tmp_path):
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "shop.settings",
        "SHOP_DATABASE": str(tmp_path / "shop.sqlite3"),
        "SHOP_REDIS": f"file:{tmp_path / 'locks'}",
    }

    def manage(*asked: str) -> str:
        command = [sys.executable, "manage.py", *asked]
        return subprocess.run(command, cwd=SHOP, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout

    manage("fill", "100")
    assert manage("shell", "-c", STALE).strip().endswith("stale 3 2")
