"""A folder of ``torch.distributed.checkpoint``: ``.metadata``, written last, names the parts that the ranks wrote."""

from __future__ import annotations

import pickletools
import re
from collections.abc import Iterator

from stabilityclient.agent.watch.checkpoint_kinds.found import Folder, Found

__all__ = ["inspect_dcp", "is_dcp", "parts_needed"]

METADATA = ".metadata"
#: ``__<rank>_<number>.distcp`` (torch/distributed/checkpoint/filesystem.py).
_PART = re.compile(r"__(?P<rank>\d{1,9})_\d+\.distcp")
_PART_NAME = re.compile(rb"__\d{1,9}_\d{1,9}\.distcp")
_LONGEST_NAME = len("__123456789_123456789.distcp")
#: Saved with ``use_collectives=False`` each rank writes metadata of its own.
_OF_RANK = re.compile(r"__(?P<rank>\d{1,9})\.metadata")
#: Largest ``.metadata`` that is read piece by piece, bytes: 64 ranks with 800 tensors, some 3 s of one core. Of the
#: parts of a larger one the names are read and not the lengths.
MAX_METADATA_BYTES = 8 * 1024 * 1024

_TEXTS = frozenset({"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE"})
_NUMBERS = frozenset({"BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "LONG4"})
_PUTS, _GETS = frozenset({"BINPUT", "LONG_BINPUT", "PUT"}), frozenset({"BINGET", "LONG_BINGET", "GET"})


def is_dcp(folder: Folder) -> bool:
    """Whether the files of a folder show that it is one."""
    named = any(_PART.fullmatch(name) or _OF_RANK.fullmatch(name) for name in folder.sizes)
    return named or METADATA in folder or f"{METADATA}.tmp" in folder


def inspect_dcp(folder: Folder) -> Found:
    """Return the findings. Raises OSError where a file can't be read."""
    found = Found("dcp", loads_with="any")
    needed: dict[str, int] = {}
    own = [int(match["rank"]) for name in folder.sizes if (match := _OF_RANK.fullmatch(name))]
    for name in [METADATA] if not own else [f"__{rank}.metadata" for rank in range(max(own) + 1)]:
        if wrong := folder.wrong(name):
            found.bad[name] = wrong
        elif folder.sizes[name] > MAX_METADATA_BYTES:
            needed |= dict.fromkeys(_named(folder, name), 1)
        else:
            with folder.open(name) as file:
                data = file.read()
            try:
                needed |= parts_needed(data)
            except ValueError:
                found.bad[name] = "truncated"
    # More than is needed was left in the same folder by a save of more ranks: no load reads it.
    parts = needed.keys() or {name for name in folder.sizes if _PART.fullmatch(name)}
    ranks = {int(match["rank"]) for name in parts if (match := _PART.fullmatch(name))}
    found.world_size = max(ranks) + 1 if ranks else None
    for name in parts:
        size = needed.get(name, 0)
        if wrong := folder.wrong(name):
            found.bad[name] = wrong
        elif folder.sizes[name] < size:
            found.bad[name] = f"truncated ({folder.sizes[name]:,} of {size:,} bytes)"
    if not needed and not found.bad:
        # The names of its parts are unknown. A rank that has nothing to save writes none: a gap is no proof.
        found.judged = False
    return found


def _named(folder: Folder, name: str) -> set[str]:
    """Return the parts that a ``.metadata`` names, found as texts in it: each is there in full where it comes first."""
    named, end = set(), b""
    with folder.open(name) as file:
        while piece := file.read(MAX_METADATA_BYTES):
            named |= {match[0].decode() for match in _PART_NAME.finditer(end + piece)}
            end = piece[-_LONGEST_NAME:]  # a name may continue in the next piece
    return named


def parts_needed(data: bytes) -> dict[str, int]:
    """Return the files that a ``.metadata`` refers to, with the bytes that each needs, without unpickling it.

    Its instructions are read one by one, and of them only texts and numbers: where they contain ``relative_path``,
    ``offset`` and ``length`` one after another, that is a piece of a file (``_StorageInfo``).

    Raises:
        ValueError: it is no whole pickle.
    """
    needed: dict[str, int] = {}
    name, offset, expected = "", 0, ""
    for value in _values(data):
        if isinstance(value, str):
            if expected == "relative_path":
                name, expected = value, ""
            else:
                expected = value if value in ("relative_path", "offset", "length") else ""
        elif expected == "offset":
            offset, expected = value, ""
        elif expected == "length":
            if name:
                needed[name] = max(needed.get(name, 0), offset + value)
            name, expected = "", ""
    return needed


def _values(data: bytes) -> Iterator[str | int]:
    """Yield the texts and numbers that a pickle puts on its stack, in their order."""
    memo: dict[int, str | int | None] = {}
    memoized = 0
    newest: str | int | None = None
    for opcode, argument, _ in pickletools.genops(data):
        kind = opcode.name
        if kind == "MEMOIZE" or kind in _PUTS:
            at = memoized if kind == "MEMOIZE" else int(str(argument))
            memo[at] = newest
            memoized += 1
            continue
        newest = None
        if kind in _TEXTS:
            newest = str(argument)
        elif kind in _NUMBERS:
            newest = int(str(argument))
        elif kind in _GETS:
            newest = memo.get(int(str(argument)))
        if newest is not None:
            yield newest
