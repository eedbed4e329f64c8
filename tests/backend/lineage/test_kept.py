"""What the lineage keeps as it changes is what a walk over all of it would find."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from stabilitybackend.judging.incidents.rollback_target import UsableOf
from stabilitybackend.lineage.checkpoints import CheckpointBook, CheckpointInspection
from stabilitybackend.lineage.fold import LineageFold
from stabilitybackend.lineage.source_book import MAX_SOURCES
from stabilitybackend.lineage.tree import PathRange, SegmentTree
from stabilityclient.wire import EventBlock, Frame, SourceInfo
from support.checkpoints import checkpoint

LOADS: dict[str, Any] = {"of 2 ranks": "same"}


def walked(tree: SegmentTree) -> list[PathRange]:
    """Return the path to the head, found by walking up from it."""
    ranges: list[PathRange] = []
    current: int | None = tree.head
    last = None
    while current is not None:
        segment = tree[current]
        ranges.append(PathRange(current, segment.fork_step + 1, last))
        last, current = segment.fork_step, segment.parent
    return ranges[::-1]


#: (what, a segment, a step): the segment is taken modulo those that are there.
MOVES = st.lists(
    st.tuples(st.sampled_from(["fork", "lead", "lead", "rehang"]), st.integers(0, 99), st.integers(-1, 50))
)


@given(MOVES)
def test_the_path_that_is_kept_is_the_path_that_a_walk_finds(moves: list[tuple[str, int, int]]) -> None:
    tree, told = SegmentTree(), {}
    for number, (what, which, step) in enumerate(moves):
        origin = which % len(tree)
        if what == "rehang":
            tree.rehang(tree[len(tree) - 1], origin, max(step, 0)) if len(tree) > 1 else None
        else:
            segment = tree.fork(origin, step, key=f"k{number}", cause="declared", created=0.0)
            tree.head = segment.id if what == "lead" else tree.head
        told |= {one.id: one for one in tree.news()}
        path = walked(tree)
        limits = {part.segment: part.last for part in path}
        assert list(tree.path()) == path
        assert [tree.dead_after(s.id) for s in tree] == [limits.get(s.id, s.fork_step) for s in tree]
        assert [tree.is_ancestor(s.id, tree.head) for s in tree] == [s.id in limits for s in tree]
        now = [one for one in tree.view().segments if one.id in told]
        assert sorted(told.values(), key=lambda one: one.id) == now, (
            "what browsers were told of a segment is what it is now"
        )


@dataclass
class Plain:
    """A checkpoint as a list of them has it."""

    step: int
    path: str
    segment: int
    available: bool = True


def looked_through(story: list[tuple[bool, int, str, int]]) -> list[Plain]:
    """Return the checkpoints of a story, each found by looking through all of them."""
    every: list[Plain] = []
    for announced, step, path, segment in story:
        if not announced:
            for one in every:
                one.available &= (one.path, one.step) != (path, step)
        elif not any(one == Plain(step, path, segment) for one in every):
            for one in every:
                one.available &= one.path != path
            every.append(Plain(step, path, segment))
    return every


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.sampled_from("abc"), st.integers(0, 2))))
def test_checkpoints_found_by_path_are_those_that_looking_through_all_finds(
    story: list[tuple[bool, int, str, int]],
) -> None:
    book, every = CheckpointBook(), looked_through(story)
    for announced, step, path, segment in story:
        if announced:
            book.add(step, path, segment, 0.0)
        else:
            book.gone(step, path)
    assert [Plain(c.step, c.path, c.segment, c.available) for c in book] == every
    for low, below in ((0, 4), (3, 9), (5, 6), (9, 20)):
        assert book.newest_step(low, below) == max((c.step for c in every if low <= c.step < below), default=None)
    assert {c.path for c in book.at("ab")} == {c.path for c in every} & set("ab")


@given(
    MOVES,
    st.lists(
        st.tuples(
            st.sampled_from(["saved", "saved", "gone", "whole", "torn", "of 2 ranks"]),
            st.integers(0, 9),
            st.sampled_from("abcdef"),
            st.integers(0, 99),
        )
    ),
)
def test_checkpoints_to_go_back_to_are_those_that_looking_through_all_finds(
    moves: list[tuple[str, int, int]], story: list[tuple[str, int, str, int]]
) -> None:
    tree, book = SegmentTree(), CheckpointBook()
    for (event, step, path, segment), (what, which, fork_step) in zip(story, moves, strict=False):
        forked = tree.fork(which % len(tree), fork_step % 9, key=f"k{len(tree)}", cause="declared", created=0.0)
        tree.head = forked.id if what == "lead" else tree.head
        if event == "saved":
            book.add(step, path, segment % len(tree), 0.0)
        elif event == "gone":
            book.gone(step, path)
        else:
            book.seen(
                step, path, CheckpointInspection("dcp", event != "torn", world_size=2, loads_with=LOADS.get(event))
            )
    usable = book.usable(tree, 1)
    every = UsableOf(
        checkpoint(c.step, available=c.available, dead=tree.is_dead(c.segment, c.step), unfit=c.unfit(1)) for c in book
    )
    assert usable.oldest() == every.oldest()
    assert usable.lost(5) == every.lost(5)
    assert [usable.newest(at) for at in (-1, 3, 5, 8.5, math.inf)] == [
        every.newest(at) for at in (-1, 3, 5, 8.5, math.inf)
    ]


def test_the_oldest_process_that_is_not_its_ranks_newest_is_forgotten_first() -> None:
    fold, ranks = LineageFold(), MAX_SOURCES // 2 + 1

    def start(number: int, rank: int) -> Any:
        info = SourceInfo(f"r{rank}-{number}", rank, ranks, 0, "n", 1, float(number))
        return fold.apply(Frame(info, 1, 1, [EventBlock("start", float(number))]))

    for number in (1, 2):
        for rank in range(ranks):
            start(number, rank)
    known = [
        source for number in (1, 2) for rank in range(ranks) if fold.segment_of(source := f"r{rank}-{number}") == 0
    ]
    assert len(known) == MAX_SOURCES
    assert known[:2] == ["r2-1", "r3-1"]
    assert known[-1] == f"r{ranks - 1}-2"
