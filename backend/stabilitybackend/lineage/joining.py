"""Puts the rows of messages together to batches as large as the lineage allows.

What a message costs to fold is mostly paid per batch, not per row. So rows of processes that just go on, as nearly all
do, are joined across messages: those of several nodes, and one step after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import msgspec
import numpy as np
from numpy.typing import NDArray

from stabilitybackend.lineage.batch import Batch, Table
from stabilitybackend.lineage.blocks import in_turn
from stabilitybackend.lineage.fold import LineageFold
from stabilityclient.node_frames import frame_of
from stabilityclient.wire import EventBlock, Frame, NodeFrame, PointsBlock, SourceInfo

__all__ = ["MAX_ROWS", "Piece", "Turn", "joined", "pieces_of"]

#: Rows of a batch that is joined of several messages: some milliseconds, in which the process does nothing else.
MAX_ROWS = 1_024


class Columns(msgspec.Struct, gc=False):
    """Rows of one set of metrics in a turn.

    Attributes:
        members: the place of each process in the turn. steps: int64 (T, K). times: float64 (T, K).
        values: float64 (m, T, K).
    """

    names: list[str]
    members: Sequence[int]
    steps: NDArray[np.int64]
    times: NDArray[np.float64]
    values: NDArray[np.float64]


class Turn(msgspec.Struct, gc=False):
    """A row of each of some processes, or rows of one process, as the message ``message`` of several brings them."""

    message: int
    infos: list[SourceInfo]
    tables: list[Columns]

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(self.infos) * len(self.tables[0].steps)

    def rows_of(self, at: int) -> list[PointsBlock]:
        """Return the rows of one of its processes."""
        for table in self.tables:
            if at in table.members:
                place = list(table.members).index(at)
                columns = table.steps[:, place], table.times[:, place], table.values[:, :, place]
                return [PointsBlock(table.names, *(np.ascontiguousarray(one).tobytes() for one in columns))]
        return []


class Piece(msgspec.Struct, gc=False):
    """An event of a process, or rows of several sets of metrics that it logged in turn."""

    message: int
    info: SourceInfo
    block: EventBlock | list[PointsBlock]


def pieces_of(number: int, message: Frame | NodeFrame) -> Iterator[Turn | Piece]:
    """Yield the rows and events of a message, which is the message ``number`` of several, in their order."""
    if isinstance(message, Frame):
        yield from _of_frame(number, message)
        return
    at = [0] * len(message.tables)
    tables: list[_Arrays | None] = [None] * len(message.tables)
    infos: list[SourceInfo] = []
    members: dict[int, list[int]] = {}
    for part in message.parts:
        block = part.blocks[0] if len(part.blocks) == 1 else None
        if isinstance(block, tuple) and block[1] == 1:
            members.setdefault(block[0], []).append(len(infos))
            infos.append(part.source)
            continue
        if infos:
            yield _turn(number, message, infos, members, at, tables)
            infos, members = [], {}
        yield from _of_frame(number, frame_of(message, part, at))
    if infos:
        yield _turn(number, message, infos, members, at, tables)


def _of_frame(number: int, frame: Frame) -> Iterator[Turn | Piece]:
    only = frame.blocks[0] if len(frame.blocks) == 1 else None
    if isinstance(only, PointsBlock):  # as nearly always
        if only.steps:
            yield _turn_of_one(number, frame.source, only)
        return
    for block in in_turn(frame.blocks):
        if isinstance(block, EventBlock) or len(block) > 1:
            yield Piece(number, frame.source, block)
        else:
            yield _turn_of_one(number, frame.source, block[0])


def _turn_of_one(number: int, info: SourceInfo, block: PointsBlock) -> Turn:
    steps, times, values = _arrays(block)
    return Turn(number, [info], [Columns(block.names, (0,), steps[:, None], times[:, None], values[:, :, None])])


_Arrays = tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]


def _arrays(block: PointsBlock) -> _Arrays:
    steps = np.frombuffer(block.steps, "<i8")
    values = np.frombuffer(block.values, "<f8").reshape(len(block.names), len(steps))
    return steps, np.frombuffer(block.times, "<f8"), values


def _turn(
    number: int, message: NodeFrame, infos: list[SourceInfo], members: dict[int, list[int]], at: list[int],
    tables: list[_Arrays | None],
) -> Turn:  # fmt: skip
    """Return the next rows of the tables, one of each process; ``at``: where they begin, moved on behind them."""
    columns = []
    for place, those in members.items():
        found = tables[place]
        if found is None:
            found = tables[place] = _arrays(message.tables[place])
        part = slice(at[place], at[place] + len(those))
        at[place] += len(those)
        steps, times, values = found
        columns.append(
            Columns(message.tables[place].names, those, steps[None, part], times[None, part], values[:, None, part])
        )
    return Turn(number, infos, columns)


def joined(fold: LineageFold, pieces: Iterable[Turn | Piece]) -> tuple[Batch, list[Turn]] | None:
    """Return the first rows that just go on where their processes are, in the head, with the turns that hold them.

    Nothing is noted in the lineage: that does ``LineageFold.take``.

    Returns:
        None where the first piece is another one.
    """
    pattern, pieces = _pattern(fold, pieces)
    if not pattern:
        return None
    turns, rows = list(pattern), sum(turn.rows for turn in pattern)
    newest = [(one.steps[-1], one.times[-1]) for turn in pattern for one in turn.tables]
    size, at, table = len(pattern), 0, 0
    for turn in pieces:
        like = pattern[at % size]
        if not isinstance(turn, Turn) or rows + turn.rows > MAX_ROWS or not _is_like(turn, like, alone=size == 1):
            break
        if at % size == 0:
            table = 0
        if not all(_goes_on(one, *newest[table + number]) for number, one in enumerate(turn.tables)):
            break
        for number, one in enumerate(turn.tables):
            newest[table + number] = one.steps[-1], one.times[-1]
        turns.append(turn)
        rows, at, table = rows + turn.rows, at + 1, table + len(turn.tables)
    turns = turns[: len(turns) // size * size]
    return _batch(fold.tree.head, turns, size), turns


def _pattern(fold: LineageFold, pieces: Iterable[Turn | Piece]) -> tuple[list[Turn], Iterator[Turn | Piece]]:
    """Return the first turns, of different processes, and an iterator over the pieces behind them."""
    pattern, known, rows, count = list[Turn](), set[str](), 0, 0
    for piece in pieces:
        if not isinstance(piece, Turn) or piece.infos[0].source in known:
            break
        alone = len(piece.tables[0].steps) > 1
        if pattern and (alone or rows + piece.rows > MAX_ROWS):
            break
        if not _is_plain(fold, piece, known):
            break
        pattern.append(piece)
        count, rows = count + 1, rows + piece.rows
        if alone:
            break
    return pattern, islice(iter(pieces), count, None)


def _is_plain(fold: LineageFold, turn: Turn, known: set[str]) -> bool:
    """Return whether all rows of a turn just go on; their processes are added to those that are ``known``."""
    sources = set[str]()
    for table in turn.tables:
        steps, times = table.steps, table.times
        if not table.names or (len(steps) > 1 and bool((steps[1:] < steps[:-1]).any())):
            return False
        firsts = steps[0].tolist()
        least = times[0].tolist() if len(steps) == 1 else times.min(0).tolist()
        for place, first, time in zip(table.members, firsts, least, strict=True):
            info = turn.infos[place]
            if not fold.is_plain(info, table.names, first, time):
                return False
            sources.add(info.source)
    if len(sources) < len(turn.infos) or not known.isdisjoint(sources):
        return False
    known |= sources
    return True


def _is_like(turn: Turn, like: Turn, *, alone: bool) -> bool:
    """Return whether a turn is of the processes and metrics of another one; ``alone``: no other is between them."""
    if len(turn.infos) != len(like.infos) or len(turn.tables) != len(like.tables):
        return False
    if len(turn.infos) == 1 and (alone or len(turn.tables[0].steps) == 1):
        return turn.infos[0].source == like.infos[0].source and turn.tables[0].names is like.tables[0].names
    return (
        all(
            one.names is other.names and len(one.steps) == 1 and len(one.members) == len(other.members)
            for one, other in zip(turn.tables, like.tables, strict=True)
        )
        and all(one.source == other.source for one, other in zip(turn.infos, like.infos, strict=True))
        and all(list(one.members) == list(other.members) for one, other in zip(turn.tables, like.tables, strict=True))
    )


def _goes_on(table: Columns, steps: NDArray[np.int64], times: NDArray[np.float64]) -> bool:
    """Return whether rows go on after some steps and times of the same processes."""
    new = table.steps
    if len(new) > 1 and bool((new[1:] < new[:-1]).any()):
        return False
    return bool((new[0] >= steps).all() and (table.times >= times).all())


def _batch(segment: int, turns: list[Turn], size: int) -> Batch:
    """Return turns as a batch; ``size``: after so many of them the same processes come again."""
    if len(turns) == 1 and len(turns[0].tables) == 1:
        only, infos = turns[0].tables[0], turns[0].infos
        steps = only.steps
        order = np.arange(steps.size).reshape(steps.shape)
        table = Table(infos, only.names, steps, only.times, only.values, order)
        return Batch(segment, [table], steps.size, len(infos))
    first, groups = 0, dict[int, list[tuple[int, int, int]]]()
    for at, turn in enumerate(turns[:size]):
        for number, table_ in enumerate(turn.tables):
            groups.setdefault(id(table_.names), []).append((at, number, first))
        first += len(turn.infos)
    rounds = len(turns[::size])
    tables = []
    for places in groups.values():
        columns = [[turns[at + round_ * size].tables[number] for round_ in range(rounds)] for at, number, _ in places]
        steps = np.concatenate([np.concatenate([one.steps for one in some]) for some in columns], axis=1)
        times = np.concatenate([np.concatenate([one.times for one in some]) for some in columns], axis=1)
        values = np.concatenate([np.concatenate([one.values for one in some], axis=1) for some in columns], axis=2)
        members = [(at, before, some[0].members) for (at, _, before), some in zip(places, columns, strict=True)]
        infos = [turns[at].infos[place] for at, _, those in members for place in those]
        within = np.array([before + place for _, before, those in members for place in those])
        order = first * np.arange(len(steps))[:, None] + within
        tables.append(Table(infos, columns[0][0].names, steps, times, values, order))
    return Batch(segment, tables, sum(table.steps.size for table in tables), first)
