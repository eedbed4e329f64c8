"""Tells whether a file that is read as it grows is still the same file: rotated, cut, replaced, rewritten."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from stabilityplugins.importers.base import ImportPlan

__all__ = ["Change", "FileMarks"]

#: Bytes at the beginning of a file that have to stay as they are.
HEAD_BYTES = 4_096


@dataclass(slots=True)
class _Mark:
    """A file as it was: which one, how long, when written (ns), how it begins."""

    place: tuple[int, int]
    size: int
    written: int
    head: bytes


class Change(NamedTuple):
    """Why files have to be read from the beginning. intact: what is read of now can be read to its end before."""

    why: str
    intact: bool


class FileMarks:
    """The files of a plan as they are when a pass over them begins, and how they change."""

    def __init__(self, plan: ImportPlan) -> None:
        self._paths = plan.paths
        self._rewritten = plan.importer.rewritten
        self._marks = {path: _mark(path) for path in (plan.paths if self._rewritten else plan.importer.appended(plan))}

    def age_s(self, now: float) -> float:
        """Return for how long nothing was written, seconds; 0 where that is not known."""
        newest = max((mark.written for mark in self._marks.values()), default=None)
        return 0.0 if newest is None else max(0.0, now - newest / 1e9)

    def changed(self, plan: ImportPlan) -> Change | None:
        """Return why the files have to be read from the beginning, None where they only grew."""
        if plan.paths != self._paths:
            return Change("there are other files now", intact=True)
        for path, mark in self._marks.items():
            try:
                now = os.stat(path)
            except FileNotFoundError:
                return Change(f"{path} is gone", intact=True)
            if (now.st_dev, now.st_ino) != mark.place:
                return Change(f"{path} was replaced by another file", intact=True)
            if self._rewritten:
                if (now.st_size, now.st_mtime_ns) != (mark.size, mark.written):
                    return Change(f"{path} was rewritten", intact=True)  # it is read whole
            elif now.st_size < mark.size:
                return Change(f"{path} was cut from {mark.size} to {now.st_size} bytes", intact=False)
            elif now.st_size > mark.size:
                if _head(path, len(mark.head)) != mark.head:
                    return Change(f"{path} was rewritten", intact=False)
                mark.size, mark.written = now.st_size, now.st_mtime_ns
        return None


def _mark(path: Path) -> _Mark:
    now = os.stat(path)
    return _Mark((now.st_dev, now.st_ino), now.st_size, now.st_mtime_ns, _head(path, min(now.st_size, HEAD_BYTES)))


def _head(path: Path, size: int) -> bytes:
    with path.open("rb") as file:
        return file.read(size)
