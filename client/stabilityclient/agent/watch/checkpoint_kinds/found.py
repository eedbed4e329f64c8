"""Result of a look at a checkpoint, in one shape for all kinds."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import BinaryIO, Literal

import msgspec

__all__ = ["Folder", "Found", "Inspection", "Kind", "LoadsWith", "inspection_of", "listed"]

#: ``file``: one file of ``torch.save`` or safetensors; ``dcp``: a folder of torch.distributed.checkpoint.
Kind = Literal["file", "dcp", "deepspeed", "hugging_face", "lightning", "megatron", "unknown"]
#: How many ranks can load it: any number, or the number that wrote it.
LoadsWith = Literal["any", "same"]

#: Files of one checkpoint that are looked at; of a folder with more, the rest is neither counted nor missed.
MAX_FILES = 100_000
#: How deep folders are looked into: DeepSpeed's and FSDP's folders lie within a Hugging Face one.
MAX_DEPTH = 3
#: Names of files that a report carries, and that its sentence names.
MAX_NAMED, MAX_TOLD = 16, 3


class Inspection(msgspec.Struct, frozen=True):
    """Findings at a path.

    Attributes:
        complete: all files are there and whole; None: unknown, of a kind that we can't judge.
        problem: which files are missing or truncated, a sentence without its end; "" where nothing is wrong.
        bad: the first names of those, within the checkpoint.
        size_bytes, files: all that lies there.
        world_size: ranks that wrote it, where the layout shows it. loads_with: None: unknown.
    """

    kind: Kind
    complete: bool | None
    problem: str = ""
    bad: tuple[str, ...] = ()
    size_bytes: int = 0
    files: int = 0
    world_size: int | None = None
    loads_with: LoadsWith | None = None


@dataclass
class Found:
    """Findings of a kind's own file.

    Attributes:
        bad: name within the checkpoint -> its fault: ``missing``, ``empty``, ``truncated`` ...
        judged: False where completeness is unknown.
    """

    kind: Kind
    bad: dict[str, str] = field(default_factory=dict)
    world_size: int | None = None
    loads_with: LoadsWith | None = None
    judged: bool = True


def _on_disk(path: str) -> BinaryIO:
    return open(path, "rb")


class Folder:
    """The files below a folder: names with ``/`` -> bytes.

    Args:
        path: of the folder. sizes: of its files. opener: opens a file by its path.
    """

    def __init__(self, path: str, sizes: Mapping[str, int], opener: Callable[[str], BinaryIO] = _on_disk) -> None:
        self.path = path
        self.sizes = sizes
        self._opener = opener

    def __contains__(self, name: str) -> bool:
        return name in self.sizes

    def inner(self, name: str) -> Folder:
        """Return the folder ``name`` of this one."""
        start = f"{name}/"
        inside = {each.removeprefix(start): size for each, size in self.sizes.items() if each.startswith(start)}
        return Folder(os.path.join(self.path, name), inside, self._opener)

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading, at any place.

        Raises:
            OSError: it can't be read.
        """
        return self._opener(os.path.join(self.path, name))

    def wrong(self, name: str) -> str:
        """Return the fault of a file before it is opened: "" for one that is there and not empty."""
        if name in self.sizes:
            return "" if self.sizes[name] else "empty"
        unfinished = next((each for each in self.sizes if each.startswith((f"{name}.", f".{name}."))), "")
        return f"missing (only {unfinished} is there)" if unfinished.endswith(_UNFINISHED) else "missing"


#: How files are named that a writer renames when they are whole.
_UNFINISHED = (".tmp", ".temp", ".part", ".partial", ".incomplete")


def listed(path: str) -> Folder:
    """Return the files of a folder, hidden ones too.

    Raises:
        OSError: the folder can't be read.
    """
    sizes: dict[str, int] = {}
    waiting = [("", 0)]
    while waiting:
        inside, depth = waiting.pop()
        try:
            entries = list(os.scandir(os.path.join(path, inside)))
        except OSError:
            if not inside:
                raise
            continue  # removed meanwhile
        for entry in entries:
            name = f"{inside}{entry.name}"
            try:
                if entry.is_dir():
                    waiting += [(f"{name}/", depth + 1)] if depth < MAX_DEPTH else []
                elif len(sizes) < MAX_FILES:
                    sizes[name] = entry.stat().st_size
            except OSError:
                continue
    return Folder(path, sizes)


def inspection_of(found: Found, sizes: Mapping[str, int]) -> Inspection:
    """Return the look at files of these sizes in which a kind's own file found that."""
    return Inspection(
        kind=found.kind,
        complete=False if found.bad else True if found.judged else None,
        problem=_problem(found.bad),
        bad=tuple(sorted(found.bad)[:MAX_NAMED]),
        size_bytes=sum(sizes.values()),
        files=len(sizes),
        world_size=found.world_size,
        loads_with=found.loads_with,
    )


def _problem(bad: Mapping[str, str]) -> str:
    names = sorted(bad)
    text = ", ".join(f"{name[:200]} is {bad[name]}" for name in names[:MAX_TOLD])
    return text + (f", and {len(names) - MAX_TOLD} more" if len(names) > MAX_TOLD else "")
