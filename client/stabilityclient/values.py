"""Turns what people pass as metric values into floats, without ever making the training thread wait for a device."""

from __future__ import annotations

from stabilityclient.spool import name_trouble

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

__all__ = ["MAX_DEFERRED", "Deferred", "as_float", "is_plain_scalar", "on_device", "quick_types", "sort_values"]

#: Types of scalars that are packed as they are; NumPy has about a dozen.
MAX_QUICK_TYPES = 64
#: Rows with values that still live on a device, waiting for the converter thread. Beyond it they are dropped and
#: counted.
MAX_DEFERRED = 1000


def quick_types() -> set[type]:
    """Return the types that can be packed as they are. The caller adds the scalar types that it learns."""
    return {float, int, bool}


def on_device(value: object) -> bool:
    """Whether reading ``value`` could wait for an accelerator (a CUDA tensor, a JAX array on a device)."""
    if getattr(value, "is_cuda", False):
        return True
    device = getattr(value, "device", None)
    if device is None or callable(device):
        return False
    kind = device if isinstance(device, str) else getattr(device, "type", None) or getattr(device, "platform", None)
    return kind is not None and kind != "cpu"


def as_float(name: str, value: Any) -> float:
    """Return ``value`` as a float. NaN and infinities stay what they are.

    Raises:
        ValueError: it is not one number; the text names the metric, what was given and what to do.
    """
    kind = type(value).__name__
    if value is None or isinstance(value, str | bytes | bytearray | complex | dict | list | tuple | set):
        shown = repr(value)
        shown = shown if len(shown) <= 40 else shown[:40] + "..."
        raise ValueError(
            f"metric {name!r} is {shown} ({kind}), expected one number; leave the name out when there is no value"
        )
    if hasattr(value, "to_local") and hasattr(value, "device_mesh"):
        # float() of a distributed tensor can start a collective, which would hang if ranks differ.
        raise ValueError(f"metric {name!r} is a {kind}, expected one number: call .full_tensor() on all ranks first")
    size = _size(value)
    if size is not None and size != 1:
        raise ValueError(
            f"metric {name!r} is a {kind} of {size} elements, expected one number: log its mean or its parts"
        )
    if getattr(getattr(value, "dtype", None), "kind", "f") == "c":
        raise ValueError(f"metric {name!r} is complex, expected one real number")
    try:
        detach = getattr(value, "detach", None)
        if detach is not None:
            value = detach()  # float() of a tensor that requires grad warns
        if size == 1 and hasattr(value, "item"):
            value = value.item()  # NumPy deprecates float() of one-element arrays
        return float(value)
    except Exception as error:
        raise ValueError(f"metric {name!r} is a {kind}, expected one number ({error})") from error


def sort_values(metrics: Mapping[Any, Any], quick: set[type]) -> tuple[dict[str, float], dict[str, Any], list[str]]:
    """Return what of a call can be stored now, what lives on a device, and a sentence for each thing that is refused.

    Args:
        metrics: as given to log(). quick: types that pack as they are; learns new ones.
    """
    good: dict[str, float] = {}
    device: dict[str, Any] = {}
    refused: list[str] = []
    for name, value in metrics.items():
        trouble = name_trouble(name)
        if trouble:
            refused.append(trouble)
        elif type(value) in quick:
            try:
                good[name] = float(value)
            except OverflowError:
                refused.append(f"metric {name!r} is an integer beyond the range of a float")
        elif on_device(value):
            device[name] = value
        else:
            try:
                good[name] = as_float(name, value)
            except ValueError as error:
                refused.append(str(error))
            else:
                if is_plain_scalar(value) and len(quick) < MAX_QUICK_TYPES:
                    quick.add(type(value))
    return good, device, refused


def is_plain_scalar(value: object) -> bool:
    """Whether the type of ``value`` always packs as it is: NumPy's real scalars (by name: NumPy isn't imported)."""
    cls = type(value)
    if not any(base.__name__ == "generic" and base.__module__ == "numpy" for base in cls.__mro__):
        return False
    return getattr(getattr(value, "dtype", None), "kind", "") in "fiub"


def _size(value: Any) -> int | None:
    """Return the number of elements of an array or tensor, None for what is neither."""
    numel = getattr(value, "numel", None)
    if callable(numel):
        return int(numel())
    size = getattr(value, "size", None)
    return size if isinstance(size, int) else None


class Deferred:
    """Converts device values in a thread of its own and hands finished rows on, in order.

    Args:
        store: called as ``store(step, when, metrics)`` with floats, from the thread.
        trouble: called with an exception when a value can't be converted.

    Attributes:
        dropped: rows that did not fit the queue.
    """

    def __init__(
        self, store: Callable[[int, float, dict[str, float]], None], trouble: Callable[[Exception], None]
    ) -> None:
        import queue
        import threading

        self.dropped = 0
        self._store = store
        self._trouble = trouble
        self._queue: queue.Queue[tuple[int, float, dict[str, Any]]] = queue.Queue(MAX_DEFERRED)
        self._full = queue.Full
        threading.Thread(target=self._work, name="stability-values", daemon=True).start()

    def put(self, step: int, when: float, metrics: dict[str, Any]) -> None:
        """Take a copy of each value on its device (no wait) and queue the row; drop it when the queue is full."""
        if self._queue.full():
            self.dropped += 1
            return
        copies = {}
        for name, value in metrics.items():
            # A copy, because the next step may write into the same memory. What can't be changed (JAX) has no clone.
            copies[name] = value.detach().clone() if hasattr(value, "detach") else value
        try:
            self._queue.put_nowait((step, when, copies))
        except self._full:
            self.dropped += 1

    def drain(self, deadline: float, now: Callable[[], float], sleep: Callable[[float], None]) -> bool:
        """Wait until everything queued is stored or monotonic ``deadline`` has come; True when all is stored."""
        while self._queue.unfinished_tasks:
            if now() >= deadline:
                return False
            sleep(0.005)
        return True

    def _work(self) -> None:
        while True:
            step, when, metrics = self._queue.get()
            try:
                good = {}
                for name, value in metrics.items():
                    try:
                        good[name] = as_float(name, value)
                    except ValueError as error:
                        self._trouble(error)
                if good:
                    self._store(step, when, good)
            except Exception as error:  # the thread must live as long as the run
                self._trouble(error)
            finally:
                self._queue.task_done()
