"""The call into C that a thread waits in is named as the source has it, from a thread that really waits there."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from stabilityclient.rank_state.calls import call_at
from stabilityclient.rank_state.probe import python_stacks
from support.waiting import wait_until

_HELD = threading.Lock()


class Cache:
    """Something that has locks."""

    lock = _HELD
    shards = (_HELD,)

    def of(self, key: int) -> threading.Lock:
        return self.shards[key % 1]


cache = Cache()


def _by_name() -> None:
    with _HELD:
        pass


def _by_attribute() -> None:
    with cache.lock:
        pass


def _by_index() -> None:
    with cache.shards[0]:
        pass


def _by_call() -> None:
    with cache.of(len("seven")):
        pass


def _by_acquire() -> None:
    if cache.shards[0].acquire(blocking=True):
        cache.shards[0].release()


@pytest.mark.parametrize(
    ("waits", "call"),
    [
        (_by_name, "with _HELD"),
        (_by_attribute, "with cache.lock"),
        (_by_index, "with cache.shards"),
        (_by_call, "with cache.of"),
        (_by_acquire, "cache.shards.acquire"),
    ],
)
def test_a_lock_that_a_thread_waits_for_stands_below_its_innermost_frame(waits: Callable[[], None], call: str) -> None:
    with _HELD:
        thread = threading.Thread(target=waits)
        thread.start()
        wait_until(lambda: f"in {waits.__name__}\n    ~ {call}\n" in python_stacks(), 10, "it waits")
    thread.join(10)


def test_code_that_is_in_no_call_has_none() -> None:
    assert [call_at(_by_name.__code__, at) for at in (-1, 0, 10**6)] == [""] * 3
