"""Values that lie on a device: read by another thread, in their place, and never waited for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

import stabilityclient
from stabilityclient.wire import PointsBlock
from support.agent.spooled import frames, stored

Start = Callable[..., stabilityclient.Run]


class _DeviceValue:
    """Looks like a CUDA tensor; reading it blocks until the device is done."""

    is_cuda = True

    def __init__(self, value: float, done: threading.Event, reader: list[str]) -> None:
        self._value, self._done, self._reader = value, done, reader

    def detach(self) -> _DeviceValue:
        return self

    def clone(self) -> _DeviceValue:
        return _DeviceValue(self._value, self._done, self._reader)

    def __float__(self) -> float:
        self._reader.append(threading.current_thread().name)
        assert self._done.wait(60)
        return self._value

    def __index__(self) -> int:
        raise AssertionError("a device value was read on the training thread")


def test_a_value_on_a_device_is_read_by_another_thread_with_its_own_step_and_time(start: Start) -> None:
    run = start()
    done, readers = threading.Event(), []
    value = _DeviceValue(0.75, done, readers)
    begin = time.time()
    run.log(5, {"loss": value, "lr": 0.1})
    run.log(6, {"lr": 0.2})
    logged = time.time()
    value._value = 99.0  # the next step writes into the same memory
    done.set()
    run.finish()
    rows = stored(run.folder).rows()
    assert sorted((step, *metrics.items()) for step, _, metrics in rows) == [
        (5, ("loss", 0.75)),
        (5, ("lr", 0.1)),
        (6, ("lr", 0.2)),
    ]
    assert all(begin <= when <= logged for _, when, _ in rows)
    assert readers == ["stability-values"]


def test_a_value_on_a_device_that_was_logged_before_a_rollback_is_stored_before_it(start: Start) -> None:
    run = start()
    done = threading.Event()
    run.log(5, {"loss": _DeviceValue(0.75, done, [])})
    threading.Timer(0.2, done.set).start()
    run.rolled_back(3)
    run.log(4, {"loss": 1.0})
    run.finish()
    blocks = [block for frame in frames(run.folder) for block in frame.blocks]
    order = [block.steps[0] if isinstance(block, PointsBlock) else block.type for block in blocks]
    order.remove("environment")  # reported by the heartbeat thread, at its own time
    assert order == ["start", 5, "segment", "restored", 4, "finish"]


def test_device_values_beyond_the_queue_are_dropped_and_counted(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stabilityclient.metrics.metric_coercion.MAX_DEFERRED", 3)
    run = start()
    done = threading.Event()
    for step in range(10):
        run.log(step, {"loss": _DeviceValue(1.0, done, [])})
    dropped = run._components.spool.dropped
    done.set()
    run.finish()
    assert dropped >= 6
    assert len(stored(run.folder).rows()) == 10 - dropped


def test_a_step_on_a_device_is_refused_instead_of_waited_for(start: Start) -> None:
    with pytest.raises(stabilityclient.RefusedError, match="on a device"):
        start().log(_DeviceValue(1.0, threading.Event(), []), {"a": 1.0})
