"""Path of ``log()`` for a call that is not plain floats under plain names: sort, hand on, refuse."""

from __future__ import annotations

import sys
import time

from stabilityclient.errors import RefusedError
from stabilityclient.metrics.schemas import MAX_NAMES
from stabilityclient.metrics.values import Types, as_float, sort_values, split

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from stabilityclient.guard import Guard
    from stabilityclient.spool import SpoolWriter

__all__ = ["MAX_DEFERRED", "Deferred", "MetricCoercion"]

#: Rows with values that still live on a device, waiting for the thread. Beyond it they are dropped and counted.
MAX_DEFERRED = 1000


class Deferred:
    """Converts device values in a thread of its own and hands finished rows on, in order.

    Args:
        store: called as ``store(step, when, metrics)`` with floats, from the thread.
        problem: called with an exception when a value can't be converted.
        drop: called for a row that does not fit the queue.
    """

    def __init__(
        self,
        store: Callable[[int, float, dict[str, float]], None],
        problem: Callable[[Exception], None],
        drop: Callable[[], None],
    ) -> None:
        import queue
        import threading

        self._store = store
        self._problem = problem
        self._drop = drop
        self._queue: queue.Queue[tuple[int, float, list[_Single | _Stacked]]] = queue.Queue(MAX_DEFERRED)
        self._full = queue.Full
        threading.Thread(target=self._work, name="stability-values", daemon=True).start()

    def put(self, step: int, when: float, metrics: dict[str, Any]) -> None:
        """Take a copy of each value (no wait) and queue the row; drop it when the queue is full."""
        if self._queue.full():
            self._drop()
            return
        try:
            self._queue.put_nowait((step, when, list(_copies(metrics))))
        except self._full:
            self._drop()

    def drain(self, wait_s: float) -> None:
        """Wait until everything queued is stored, ``wait_s`` seconds at most."""
        deadline = time.monotonic() + wait_s
        while self._queue.unfinished_tasks and time.monotonic() < deadline:
            time.sleep(0.005)

    def _work(self) -> None:
        while True:
            step, when, copies = self._queue.get()
            try:
                good: dict[str, float] = {}
                for copy in copies:
                    try:
                        good.update(copy.read())
                    except ValueError as error:
                        self._problem(error)
                if good:
                    self._store(step, when, good)
            except Exception as error:  # the thread must live as long as the run
                self._problem(error)
            finally:
                self._queue.task_done()


class _Single:
    """One value, copied on its device. An immutable array (JAX) has no clone and needs none."""

    def __init__(self, name: str, value: Any) -> None:
        self._name = name
        self._value = value.detach().clone() if hasattr(value, "detach") else value

    def read(self) -> dict[str, float]:
        """Wait for the value and return it under its name; raise ValueError when it is not one number."""
        return {self._name: as_float(self._name, self._value)}


class _Stacked:
    """CUDA tensors of one device, dtype and shape, on their way into pinned memory.

    ``to("cpu", non_blocking=True)`` of a CUDA tensor allocates pinned memory and returns immediately (PyTorch,
    ``aten/src/ATen/native/TensorConversions.cpp``): its content counts only once the event has come.
    """

    def __init__(self, torch: Any, names: list[str], tensors: list[Any]) -> None:
        self._names = names
        device = tensors[0].device
        with torch.no_grad():
            self._host = torch.stack(tensors).to("cpu", non_blocking=True)
        # Blocking: the thread that waits for it sleeps instead of spinning on a core of the training job.
        self._arrived = torch.cuda.Event(blocking=True)
        self._arrived.record(torch.cuda.current_stream(device))

    def read(self) -> dict[str, float]:
        """Wait for the copy and return the values under their names; raise ValueError when they are no numbers."""
        self._arrived.synchronize()
        values = self._host.reshape(-1).tolist()
        return {name: as_float(name, value) for name, value in zip(self._names, values, strict=True)}


def _copies(metrics: dict[str, Any]) -> Iterator[_Single | _Stacked]:
    """Yield a copy of every value, of CUDA tensors one for all that can be stacked: usually one in all."""
    torch = sys.modules.get("torch")
    groups: dict[tuple[Any, Any, Any], tuple[list[str], list[Any]]] = {}
    for name, value in metrics.items():
        # A distributed tensor is refused with words by as_float(): its stack could start a collective.
        stacks = torch is not None and isinstance(value, torch.Tensor) and value.is_cuda
        if not stacks or hasattr(value, "to_local") or value.numel() != 1:
            yield _Single(name, value)
        else:
            names, tensors = groups.setdefault((value.device, value.dtype, value.shape), ([], []))
            names.append(name)
            tensors.append(value)
    for names, tensors in groups.values():
        yield _Stacked(torch, names, tensors)


#: Refusals named in one message.
MAX_REFUSED_SHOWN = 4
#: Calls whose names fit no row that are remembered.
MAX_SPLIT = 16
#: Seconds that a rollback, finish() and exit wait for values that still live on a device.
DEVICE_WAIT_S = 5.0


class MetricCoercion:
    """The slower way of a row into the spool.

    Args:
        spool: of this process. guard: counts device values that can't be stored.

    Attributes:
        deferred: reads values that live on a device; None before the first one.
    """

    def __init__(self, spool: SpoolWriter, guard: Guard) -> None:
        self.deferred: Deferred | None = None
        self._spool = spool
        self._guard = guard
        self._types = Types()
        #: Names of a call that fit no row -> the sets in which they are stored.
        self._split: dict[tuple[str, ...], list[tuple[str, ...]]] = {}

    def sort(self, step: int, now: float, metrics: Mapping[str, Any]) -> None:
        """Store the host values of a call, hand on those on a device, refuse the rest.

        Raises:
            RefusedError: something was refused.
        """
        types = self._types
        values = metrics.values()
        sets = self._split.get(tuple(metrics)) if self._split and types.all_plain(map(type, values)) else None
        if sets is not None:
            self._store_split(step, now, metrics, sets)
            return
        if types.all_tensors(map(type, values)) and (types.only_cpu or all(map(types.is_cpu, values))):
            # In one stretch, without an own call: with cold caches each costs as much as reading some tensors.
            try:
                self._spool.append_row(tuple(metrics), step, now, map(types.item, values))
                return
            except Exception:  # sort_values() below finds the reason
                pass
        elif types.only_cpu and types.all_known(map(type, values)):
            plain, item = types.plain, types.item
            try:
                row = [value if type(value) in plain else item(value) for value in values]
                self._spool.append_row(tuple(metrics), step, now, row)
                return
            except Exception:  # as above
                pass
        elif self._store_known(step, now, metrics):
            return
        good, device, refused = sort_values(metrics, self._types)
        if good:
            self._store(step, now, good)
        if device:
            self._defer(step, now, device)
        if refused:
            raise RefusedError(refused[:MAX_REFUSED_SHOWN], len(refused) - MAX_REFUSED_SHOWN)

    def _store_known(self, step: int, now: float, metrics: Mapping[str, Any]) -> bool:
        """Store a call with types seen before only; False, and nothing is stored, where a value has to be checked."""
        try:
            found = split(metrics, self._types)
            if found is None:
                return False
            good, device = found
            if good:
                self._spool.append_row(tuple(good), step, now, good.values())
        except Exception:  # as above
            return False
        if device:
            self._defer(step, now, device)
        return True

    def _defer(self, step: int, now: float, device: dict[str, Any]) -> None:
        if self.deferred is None:
            from stabilityclient.metrics.metric_coercion import Deferred  # most jobs never need it

            self.deferred = Deferred(
                self._store,
                lambda error: self._guard.refuse("log()", RefusedError([f"a device value: {error}"])),
                self._spool.drop,
            )
        self.deferred.put(step, now, device)

    def drain(self) -> None:
        """Let the values that still live on a device be stored: those logged before an event belong before it."""
        if self.deferred is not None:
            self.deferred.drain(DEVICE_WAIT_S)

    def _store(self, step: int, now: float, metrics: dict[str, float]) -> None:
        names = tuple(metrics)
        try:
            self._spool.append_row(names, step, now, metrics.values())
        except ValueError:  # more than fits one row, or more than a run can have
            if len(self._split) >= MAX_SPLIT:
                self._split.clear()
            sets = self._split[names] = self._spool.schemas.fitting(names)
            self._store_split(step, now, metrics, sets)

    def _store_split(self, step: int, now: float, metrics: Mapping[str, Any], sets: list[tuple[str, ...]]) -> None:
        for names in sets:
            self._spool.append_row(names, step, now, [metrics[name] for name in names])
        more = len(metrics) - sum(map(len, sets))
        if more:
            raise RefusedError(
                [f"{more} metrics are beyond the {MAX_NAMES:,} names that a run can have: leave the step out of names"],
                more - 1,
            )
