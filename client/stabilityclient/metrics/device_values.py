"""Values that live on a device: copied there or on their way here, and read by a thread that may wait for them.

The training thread never waits. Tensors of one call that lie on one CUDA device are stacked by one kernel and brought
by one copy into pinned memory; an event on the stream tells when it is there.
"""

from __future__ import annotations

import sys
import time

from stabilityclient.metrics.values import as_float

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

__all__ = ["MAX_DEFERRED", "Deferred"]

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
    """One value, copied on its device. What can't be changed (JAX) has no clone and needs none."""

    def __init__(self, name: str, value: Any) -> None:
        self._name = name
        self._value = value.detach().clone() if hasattr(value, "detach") else value

    def read(self) -> dict[str, float]:
        """Wait for the value and return it under its name; raise ValueError when it is not one number."""
        return {self._name: as_float(self._name, self._value)}


class _Stacked:
    """CUDA tensors of one device, dtype and shape, on their way into pinned memory.

    ``to("cpu", non_blocking=True)`` of a CUDA tensor allocates pinned memory and returns at once (PyTorch,
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
