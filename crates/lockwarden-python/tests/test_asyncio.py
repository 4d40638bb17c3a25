"""Locks in asyncio: nothing blocks the loop, and what is cancelled leaves nothing."""

import asyncio
import os
import resource
import time

import pytest

import lockwarden




async def settled(condition, timeout=10.0):
    until = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < until, "it did not come"
        await asyncio.sleep(0.005)


async def test_with(warden, name):
    lock = warden.lock(name)
    async with lock as held:
        assert held.check() and lock.owned
        other = asyncio.create_task(warden.lock(name).acquire_async(blocking=False))
        assert await other is False
    assert not lock.owned


async def test_c40_holder_and_waiter_in_one_loop(warden, name):
    lock = warden.lock(name)
    order = []

    async def one(number):
        async with lock:
            order.append(number)
            await asyncio.sleep(0.001)

    ticks = 0

    async def tick():
        nonlocal ticks
        while len(order) < 50:
            ticks += 1
            await asyncio.sleep(0.001)

    await asyncio.gather(tick(), *[one(number) for number in range(50)])
    assert order == list(range(50)) and ticks > 20


async def test_tasks_are_owners(warden, name):
    lock = warden.lock(name)
    async with lock:
        async with lock:
            pass

        async def other():
            return await lock.acquire_async(timeout=0.05)

        assert await asyncio.create_task(other()) is False


async def test_c58_tasks_that_would_wait_for_each_other(warden, name):
    both = asyncio.Barrier(2) if hasattr(asyncio, "Barrier") else None
    arrived = 0

    async def meet():
        nonlocal arrived
        if both is not None:
            await both.wait()
            return
        arrived += 1
        while arrived < 2:
            await asyncio.sleep(0.001)

    async def nested(first, second):
        async with warden.lock(name + first):
            await meet()
            try:
                async with warden.lock(name + second):
                    return None
            except lockwarden.Deadlock as deadlock:
                return deadlock

    results = await asyncio.gather(nested("1", "2"), nested("2", "1"))
    (deadlock,) = [result for result in results if result]
    assert len(deadlock.cycle) == 2


async def test_c39_what_is_cancelled_leaves_nothing(warden, name, server):
    lock = warden.lock(name)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    async def acquire():
        async with lock:
            pass

    async with warden.lock(name, owner="holder"):
        for _ in range(100):
            tasks = [asyncio.create_task(acquire()) for _ in range(100)]
            await asyncio.sleep(0)
            for number, task in enumerate(tasks):
                # At every point of its way.
                if number % 7 == 0:
                    await asyncio.sleep(0)
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(result, asyncio.CancelledError) for result in results)
        await settled(lambda: not warden.show(name)["queue"])
    # And where it may be granted in that very moment.
    for _ in range(500):
        task = asyncio.create_task(acquire())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await settled(lambda: not server.keys(), 70)
    assert not lock._holds
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 30_000, f"{grown} KiB"


async def test_a_cancelled_release_releases(warden, name, server):
    for _ in range(50):
        lock = warden.lock(name)
        await lock.acquire_async()
        task = asyncio.create_task(lock.release_async())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        # It was another task's: the one that was cancelled may never have begun.
        if lock.owned:
            await lock.release_async()
        await settled(lambda: server.redis.get(name) is None)


async def test_lost_cancels_the_task(warden, name):
    started = asyncio.Event()
    held = None

    async def work():
        nonlocal held
        async with warden.lock(name, cancel_on_lost=True) as held:
            started.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(work())
    await started.wait()
    warden.revoke(name, held.token)
    with pytest.raises(lockwarden.LockLost):
        await asyncio.wait_for(task, 10)


async def test_cancelled_by_others_stays_cancelled(warden, name):
    started = asyncio.Event()

    async def work():
        async with warden.lock(name, cancel_on_lost=True):
            started.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(work())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_lost_can_be_awaited(warden, name):
    told = []
    async with warden.lock(name, if_lost="ignore", on_lost=told.append) as held:
        waits = asyncio.create_task(held.lost.wait_async())
        await asyncio.sleep(0)
        warden.revoke(name, held.token)
        assert "revoked" in await asyncio.wait_for(waits, 10)
        await settled(lambda: told)


async def test_timeout_around_it(warden, name):
    async with warden.lock(name, owner="holder"):
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(warden.lock(name).acquire_async(), 0.05)
        await settled(lambda: not warden.show(name)["queue"])


async def test_decorator(warden, name):
    lock = warden.lock(name)

    @lock
    async def work(number):
        assert lock.owned
        return number + 1

    assert await work(1) == 2


def test_many_loops(warden, name):
    """Each loop has its own mailbox; what a closed one leaves does no harm."""

    async def work(number):
        async with warden.lock(f"{name}-{number % 3}"):
            return number

    async def all_of_them():
        return await asyncio.gather(*[work(number) for number in range(20)])

    for _ in range(30):
        assert asyncio.run(all_of_them()) == list(range(20))
    assert len(os.listdir("/proc/self/fd")) < 200


async def test_close_leaves_nobody_waiting(server, name):
    """Whoever waits when the warden is closed is told so, however close it is."""
    for _ in range(10):
        warden = lockwarden.connect(server.url())
        tasks = [
            asyncio.create_task(warden.lock(f"{name}-{number}").acquire_async())
            for number in range(50)
        ]
        await asyncio.sleep(0)
        warden.close()
        done, waiting = await asyncio.wait(tasks, timeout=10)
        assert not waiting
        for task in done:
            assert task.exception() is None or task.exception().code == "closed"


async def test_waiting_for_a_loss_ends_with_the_release(warden, name):
    held = await warden.lock(name).__aenter__()
    waits = asyncio.create_task(held.lost.wait_async())
    await asyncio.sleep(0)
    await held.release_async()
    assert await asyncio.wait_for(waits, 10) is None


async def test_a_callback_that_fails_does_not_silence_others(warden, name):
    def bad(reason):
        raise RuntimeError("the callback's own fault")

    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    async with warden.lock(name, on_lost=bad, if_lost="ignore") as held:
        warden.revoke(name, held.token)
        # Its grant comes in the same batch, or the next.
        assert await asyncio.wait_for(warden.lock(name + "-other").acquire_async(), 10)


def test_a_loop_that_is_closed_with_something_pending(warden, name):
    lock = warden.lock(name)

    async def begin():
        future = asyncio.ensure_future(lock.acquire_async())
        await asyncio.sleep(0.05)
        return future

    with warden.lock(name, owner="holder"):
        loop = asyncio.new_event_loop()
        pending = loop.run_until_complete(begin())
        loop.close()

        async def look():
            await warden.lock(name + "-x").acquire_async()

        asyncio.run(look())
    del pending
    until = time.monotonic() + 10
    while warden.show(name)["holders"]:
        assert time.monotonic() < until, "a loop that is closed holds it"
        time.sleep(0.01)


async def test_async_generators_may_be_closed_by_another_task(warden, name):
    lock = warden.lock(name)

    async def held():
        async with lock:
            yield

    generator = held()
    await asyncio.create_task(generator.__anext__())
    await asyncio.create_task(generator.aclose())
    assert not lock.locked()
