"""The cache of decoded arrays: bounded, shared, and each thing read once."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stabilitybackend.storage.archive.cache import ENTRY_BYTES, ByteCache


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3_000))), st.integers(0, 12_000))
def test_it_never_holds_more_than_its_bound_and_what_was_used_last(puts: list[tuple[int, int]], bound: int) -> None:
    cache = ByteCache(bound)
    model: dict[int, int] = {}

    for key, size in puts:
        cache.put(key, size, size)
        model.pop(key, None)
        if size + ENTRY_BYTES <= bound:
            model[key] = size
        while sum(model.values()) + ENTRY_BYTES * len(model) > bound:
            model.pop(next(iter(model)))

    assert cache.bytes == sum(model.values()) + ENTRY_BYTES * len(model) <= bound
    assert {key: found for key in range(10) if (found := cache.get(key)) is not None} == model


def test_what_was_asked_for_last_goes_last() -> None:
    cache = ByteCache(2 * (ENTRY_BYTES + 100))
    cache.put("a", 1, 100)
    cache.put("b", 2, 100)
    cache.get("a")
    cache.put("c", 3, 100)

    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (1, None, 3)


def test_what_many_threads_ask_for_at_once_is_read_once() -> None:
    cache = ByteCache(10_000)
    together = threading.Barrier(8)
    reads: list[int] = []
    results: list[str] = []

    def read() -> tuple[str, int]:
        reads.append(1)
        return "value", 10

    def ask() -> None:
        together.wait()
        results.append(cache.load("key", read))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (results, len(reads)) == (["value"] * 8, 1)


def test_a_read_that_fails_is_tried_again_by_the_next() -> None:
    cache = ByteCache(10_000)

    def fails() -> tuple[str, int]:
        raise OSError("away")

    with pytest.raises(OSError, match="away"):
        cache.load("key", fails)

    assert cache.load("key", lambda: ("value", 10)) == cache.load("key", fails) == "value"


def test_what_is_larger_than_the_bound_is_returned_and_not_kept() -> None:
    cache = ByteCache(500)

    assert cache.load("key", lambda: ("value", 10)) == "value"
    assert (cache.bytes, cache.get("key")) == (0, None)


def test_a_negative_bound_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 0 or more"):
        ByteCache(-1)
