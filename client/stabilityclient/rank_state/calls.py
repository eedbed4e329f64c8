"""Calls of a frame outside Python: the lock that it enters, the function in C that it waits in.

A stack shows Python frames alone. ``with cache:`` and ``loss.item()`` have none, and their thread looks like one that
computes at that line. The instruction that the frame is at names the call.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any

__all__ = ["call_at"]

#: Bytes of a function beyond which nothing is read: generated code, whose instructions would take milliseconds.
MAX_CODE_BYTES = 32_768
#: Longest name, characters.
MAX_CALL_CHARS = 80
#: A block is entered: up to Python 3.10, up to 3.13, and from 3.14 on, where a call follows.
_ENTERS = frozenset({"SETUP_WITH", "BEFORE_WITH"})
_SPECIAL = "LOAD_SPECIAL"


def call_at(code: CodeType, at: int) -> str:
    """Return the callee of an instruction, as in the source: ``cache.acquire``, ``with cache``; "" where it is no call.

    Brackets and their content are left out: ``x.mean(1).item()`` is ``x.mean.item``.

    Args:
        at: offset of the instruction, ``f_lasti`` of the frame.

    Example:
        >>> def wait(lock):
        ...     with lock:
        ...         pass
        >>> import dis
        >>> call_at(wait.__code__, next(one.offset for one in dis.get_instructions(wait) if "WITH" in one.opname))
        'with lock'
    """
    if len(code.co_code) > MAX_CODE_BYTES:
        return ""
    import dis  # here, where a stack is asked for: it costs as much as our whole import

    before: list[Any] = []
    for one in dis.get_instructions(code):
        if one.offset >= at:
            break
        before.append(one)
    else:
        return ""
    if one.offset != at or not before:
        return ""
    if one.opname in _ENTERS:
        return f"with {_name(before, _start(before[-1]))}"[:MAX_CALL_CHARS]
    if not one.opname.startswith("CALL"):
        return ""
    name = _name(before, _start(one))[:MAX_CALL_CHARS]
    return f"with {name}" if before[-1].opname == _SPECIAL else name


def _start(instruction: Any) -> Any:
    """Return where an instruction's expression begins, None where this Python does not keep it (3.10)."""
    place = getattr(instruction, "positions", None)
    return None if place is None or place.lineno is None else (place.lineno, place.col_offset)


def _name(before: list[Any], start: Any) -> str:
    """Return the dotted name that begins at ``start``, or that was loaded last."""
    names: list[str] = []
    for one in before:
        if not one.opname.startswith("LOAD_") or _start(one) != start:
            continue
        argval = one.argval[-1] if isinstance(one.argval, tuple) else one.argval
        if not isinstance(argval, str):
            continue
        if one.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
            names = []
        names.append(argval)
    return ".".join(names)
