"""Unreadable places of the files, and rows left out on purpose."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from stabilityplugins.importers.rows.opened import most_rows

if TYPE_CHECKING:
    from stabilityplugins.importers.base import FilePart
    from stabilityplugins.importers.batches import Batch, Grouper

__all__ = ["MAX_NAMED", "Problem", "Reading"]

#: Places named one by one per run; the others are counted. A terminal shows so many, and memory stays bounded.
MAX_NAMED = 20
#: Columns whose odd cells are followed per file; beyond it they are only counted together.
MAX_COLUMNS = 1_000
_SHOWN_CHARS = 60


@dataclass(frozen=True, slots=True)
class Problem:
    """Something in a file that could not be read.

    Args:
        file: of the problem. place: ``line 7``, ``row 3, column loss``, ``byte 5120``. reason: the content found, and
            the content expected.
    """

    file: Path
    place: str
    reason: str

    def __str__(self) -> str:
        return f"{self.file}, {self.place}: {self.reason}"


@dataclass(slots=True)
class _Column:
    """Cells of one key that are no number: whether that is a problem depends on the key's other cells."""

    odd: int = 0
    places: list[Problem] = field(default_factory=list)


@dataclass
class Reading:
    """Notes of a reader on one run.

    Attributes:
        named: the first MAX_NAMED problems. count: all of them.
        notes: rows left out on purpose, and decisions, as sentences.
        bytes_read: size of the files read, for the progress bar.
        cut: file number -> record numbers after which a row of several records has to end,
            because the server holds the records before, or a sum was made up to there.
        groupers: of the rows of the file that is being read.
        following: the files may grow: readers yield ``PAUSE`` at the end of one, leave a half-written record for later,
            and continue when they are asked again. False in the midst of a run: the present rows are all.
        ended: file number -> exit code of the job, of files that record the job's end.
        parts: the files of the run, in order. untimed: files without times, with the reason.
    """

    named: list[Problem] = field(default_factory=list)
    count: int = 0
    notes: list[str] = field(default_factory=list)
    bytes_read: int = 0
    cut: dict[int, set[int]] = field(default_factory=dict)
    groupers: list[Grouper] = field(default_factory=list)
    following: bool = False
    ended: dict[int, int] = field(default_factory=dict)
    parts: Sequence[FilePart] = ()
    untimed: list[tuple[Path, str]] = field(default_factory=list)
    _columns: dict[tuple[Path, str], _Column] = field(default_factory=dict)
    _sizes: dict[Path, int] = field(default_factory=dict)

    def problem(self, file: Path, place: str, reason: str) -> None:
        """Note an unreadable place; reading continues."""
        self.count += 1
        if len(self.named) < MAX_NAMED:
            self.named.append(Problem(file, place, reason))

    def note(self, text: str) -> None:
        """Say something once."""
        if text not in self.notes and len(self.notes) < MAX_NAMED:
            self.notes.append(text)

    def odd_value(self, file: Path, place: str, key: str, value: object) -> None:
        """Note a value that is no number. It is problem only if other values of the same key are numbers."""
        column = self._column(file, key)
        column.odd += 1
        if len(column.places) < MAX_NAMED:
            column.places.append(Problem(file, f"{place}, {key}", f"{shown(value)} is no number"))

    def end_of_file(self, file: Path, numeric: set[str]) -> None:
        """Decide about the odd values of a file.

        Args:
            numeric: keys that held a number somewhere in it.
        """
        texts: list[str] = []
        for place, column in list(self._columns.items()):
            if place[0] != file:
                continue
            del self._columns[place]
            if place[1] in numeric:
                for problem in column.places:
                    self.problem(problem.file, problem.place, problem.reason)
                self.count += column.odd - len(column.places)
            else:
                texts.append(place[1])
        if texts:
            more = f" and {len(texts) - 5} more" if len(texts) > 5 else ""
            self.note(f"{file}: no numbers, so left out: {', '.join(texts[:5])}{more}")

    def base(self, number: int, path: Path, rows: int) -> float:
        """Return from where on a file without times counts one second a row, unix seconds.

        It ends when it was written last, and before the next attempt of its rank begins: the order of the files is
        that of their names, whatever their dates say.

        Args:
            number: of the file in the run. rows: that it has.
        """
        end = path.stat().st_mtime
        later = [part for part in self.parts[number + 1 :] if part.rank == self.parts[number].rank]
        begin = math.inf
        for part in reversed(later):
            one = part.paths[0]
            begin = min(begin, one.stat().st_mtime) - self._most_rows(one)
        return min(end, begin) - rows

    def _most_rows(self, path: Path) -> int:
        if path not in self._sizes:
            self._sizes[path] = most_rows(path)
        return self._sizes[path]

    def rest_of_file(self) -> Iterator[Batch]:
        """Yield the rows that a reader left in its groupers."""
        for groups in self.groupers:
            yield from groups.flush()
        self.groupers.clear()

    def lines(self) -> list[str]:
        """Return the unreadable places as lines: the first ones by file and place, and the number of the rest."""
        found = [str(problem) for problem in sorted(self.named, key=_by_place)]
        return found if self.count == len(found) else [*found, f"and {self.count - len(found)} more"]

    def _column(self, file: Path, key: str) -> _Column:
        known = self._columns.get((file, key))
        if known is None:
            if len(self._columns) >= MAX_COLUMNS:
                key = "(further keys)"
            known = self._columns.setdefault((file, key), _Column())
        return known


def _by_place(problem: Problem) -> tuple[str, int]:
    """Return the file, and the number of the line or row, 0 for none."""
    found = re.search(r"\d+", problem.place)
    return str(problem.file), int(found[0]) if found else 0


def shown(value: object) -> str:
    """Return a value for a message, cut to one readable piece."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "..."
