"""Turns logged values into floats. Values on a device are left to ``metric_coercion.py``."""

from __future__ import annotations

import sys

from stabilityclient.metrics.schemas import name_trouble

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

__all__ = ["Types", "as_float", "flat", "is_plain_scalar", "on_device", "sort_values", "split"]

#: Types of scalars that are packed as they are; NumPy has about a dozen.
MAX_PLAIN_TYPES = 64
#: Levels of a dict in a dict that are taken.
MAX_DEPTH = 4


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
    """Return ``value`` as a float. NaN and infinities are unchanged.

    Raises:
        ValueError: it is not one number; the text has the metric, the value given and the remedy.
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
    except OverflowError as error:
        raise ValueError(f"metric {name!r} is an integer beyond the range of a float") from error
    except Exception as error:
        raise ValueError(f"metric {name!r} is a {kind}, expected one number ({error})") from error


class Types:
    """The types of values that were seen and how they are read: learned once, so that a call asks nothing twice.

    Attributes:
        plain: types that pack as they are. all_plain: whether all of some types are such.
        tensors: PyTorch's own tensor types. Their subclasses (distributed, fake) may do anything and stay outside.
        all_tensors: whether all of some types are such. all_known: whether all are such or plain.
        is_cpu, item: PyTorch's own, bound once: a row of tensors is then read without a line of Python for each.
        only_cpu: this PyTorch was built for no device but the CPU: no tensor has to be asked where it lies.
    """

    def __init__(self) -> None:
        self.plain: set[type] = {float, int, bool}
        self.all_plain = self.plain.issuperset
        self.tensors: set[type] = set()
        self.all_tensors = self.tensors.issuperset
        self._known = set(self.plain)
        self.all_known = self._known.issuperset
        self.is_cpu: Callable[[Any], bool] = bool
        self.item: Callable[[Any], Any] = float
        self.only_cpu = False

    def learn(self, value: object) -> None:
        """Remember the type of a value that was read."""
        cls = type(value)
        if is_plain_scalar(value):
            if len(self.plain) < MAX_PLAIN_TYPES:
                self.plain.add(cls)
                self._known.add(cls)
        elif (torch := sys.modules.get("torch")) is not None and cls in (torch.Tensor, torch.nn.Parameter):
            self.is_cpu, self.item = torch.Tensor.is_cpu.__get__, torch.Tensor.item
            self.only_cpu = _built_for_cpu(torch)
            self.tensors.add(cls)
            self._known.add(cls)


def split(metrics: Mapping[str, Any], types: Types) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return the values of a call to pack now, and those on a device; None where a type is still unknown.

    Names and values are not checked here: packing refuses those that are wrong.

    Raises:
        Exception: raised when a tensor is read, for example one of several elements.
    """
    plain, tensors = types.plain, types.tensors
    good: dict[str, Any] = {}
    device: dict[str, Any] = {}
    for name, value in metrics.items():
        kind = type(value)
        if kind in plain:
            good[name] = value
        elif kind not in tensors:
            return None
        elif value.is_cpu:
            good[name] = value.item()  # and not float(), which warns for a tensor that requires grad
        else:
            device[name] = value
    return good, device


def flat(metrics: Mapping[Any, Any], depth: int = MAX_DEPTH, joint: str = "/") -> Iterator[tuple[Any, Any]]:
    """Yield names and values; a dict among the values is taken apart, its names as ``outer/inner``.

    Args:
        joint: separator of the names: W&B writes a dot.
    """
    for name, value in metrics.items():
        if isinstance(value, dict) and depth and isinstance(name, str):
            for inner, one in flat(value, depth - 1, joint):
                yield f"{name}{joint}{inner}", one
        else:
            yield name, value


def sort_values(metrics: Mapping[Any, Any], types: Types) -> tuple[dict[str, float], dict[str, Any], list[str]]:
    """Return the values to store now, those on a device, and a sentence for each value that is refused.

    Args:
        metrics: as given to log(). types: learns those of the values that are read.
    """
    good: dict[str, float] = {}
    device: dict[str, Any] = {}
    refused: list[str] = []
    for name, value in flat(metrics):
        trouble = name_trouble(name)
        if trouble:
            refused.append(trouble)
        elif on_device(value):
            device[name] = value
            types.learn(value)
        else:
            try:
                good[name] = as_float(name, value)
            except ValueError as error:
                refused.append(str(error))
            else:
                types.learn(value)
    return good, device, refused


def is_plain_scalar(value: object) -> bool:
    """Whether the type of ``value`` always packs unchanged: NumPy's real scalars (by name: NumPy isn't imported)."""
    cls = type(value)
    if not any(base.__name__ == "generic" and base.__module__ == "numpy" for base in cls.__mro__):
        return False
    return getattr(getattr(value, "dtype", None), "kind", "") in "fiub"


def _built_for_cpu(torch: Any) -> bool:
    """Whether no tensor of this PyTorch can lie on a device. Asks how it was built, and no driver."""
    accelerator = getattr(torch, "accelerator", None)  # from PyTorch 2.6 on
    built_for = getattr(accelerator, "current_accelerator", None)
    return built_for is not None and built_for() is None and "torch_xla" not in sys.modules


def _size(value: Any) -> int | None:
    """Return the number of elements of an array or tensor, None for other values."""
    numel = getattr(value, "numel", None)
    if callable(numel):
        return int(numel())
    size = getattr(value, "size", None)
    return size if isinstance(size, int) else None
