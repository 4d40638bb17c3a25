"""A server that goes away, comes back, or is emptied."""

import threading
import time

import pytest

import lockwarden
from conftest import eventually


def test_a_server_that_goes_away(own_server, name):
    warden = lockwarden.connect(own_server.url())
    with warden.lock(name, lease=4, if_lost="log") as held:
        own_server.stop()
        began = time.monotonic()
        with pytest.raises(lockwarden.Unavailable):
            with warden.lock(name + "x", wait=1):
                pass
        assert time.monotonic() - began < 20
        assert held.lost.wait(20), "it is lost once its lease is over, or believed until then"
    own_server.start()
    with warden.lock(name, wait=20) as held:
        assert held.check()
    warden.close()


def test_c33_flushed_a_hundred_times(own_server, name):
    """A process that is alone on a server that has been up for long never meets the guard."""
    warden = lockwarden.connect(own_server.url())
    eventually(
        lambda: own_server.redis.info("server")["uptime_in_seconds"] > 4, what="an uptime of 5 s"
    )
    began = time.monotonic()
    for number in range(100):
        with warden.lock(name, wait=0) as held:
            # The grant is the first that it hears of the new epoch: then a beat follows at once.
            eventually(held.check, 1, "belief")
        own_server.redis.flushall() if number % 2 else own_server.redis.flushdb()
    assert time.monotonic() - began < 20
    warden.close()


def test_connections_of_a_process(own_server, name):
    """Two at most, however many clients, loops and threads."""
    import asyncio

    import redis
    import redis.asyncio

    own = own_server.redis.client_list
    before = len(own())
    clients = [redis.Redis(host="127.0.0.1", port=own_server.port) for _ in range(5)]
    wardens = [lockwarden.connect(client) for client in clients]
    wardens.append(lockwarden.connect(redis.asyncio.Redis(host="127.0.0.1", port=own_server.port)))

    def work(number):
        for _ in range(10):
            with wardens[number % 6].lock(f"{name}-{number % 3}"):
                pass

        async def more():
            async with wardens[number % 6].lock(name):
                pass

        asyncio.run(more())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(30)]
    for thread in threads:
        thread.start()
    most = 0
    while any(thread.is_alive() for thread in threads):
        most = max(most, len(own()) - before)
    for thread in threads:
        thread.join()
    assert 1 <= most <= 2
    wardens[0].close()


def test_commands_of_a_cycle(own_server, name):
    warden = lockwarden.connect(own_server.url())
    lock = warden.lock(name)
    with lock:
        pass
    own_server.redis.config_resetstat()
    for _ in range(100):
        with lock:
            pass
    # Besides a beat now and then.
    calls = own_server.redis.info("commandstats")["cmdstat_evalsha"]["calls"]
    assert 200 <= calls <= 206
    warden.close()
