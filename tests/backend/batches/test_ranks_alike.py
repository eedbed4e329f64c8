"""Ranks that read the same data are reported when that begins in the run, with how many batches differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from stabilitybackend.runs.state import RunState
from stabilitybackend.schema.incidents import Incident
from stabilityclient.wire import Frame
from support.job_frames import Job

#: (rank, step) -> batch.
Feed = Callable[[int, int], int]
RANKS = 4


def frames_of(steps: range, feed: Feed, start: int = 1) -> Iterator[Frame]:
    jobs = [Job(rank, start, RANKS) for rank in range(RANKS)]
    for step in steps:
        for rank, job in enumerate(jobs):
            yield job.event("batch", step, fingerprint=f"batch {feed(rank, step)}")
            yield job.rows([step])


def reported(*frames: Iterator[Frame]) -> list[Incident]:
    state = RunState("run", lambda: 1e9)
    for several in frames:
        for frame in several:
            state.apply(frame, replayed=False)
    return [one for one in state.incidents.all() if one.kind == "repeat_data"]


def own(rank: int, step: int) -> int:
    return step * RANKS + rank


def pairs(rank: int, step: int) -> int:
    return step * RANKS + rank // 2


def all_alike(rank: int, step: int) -> int:
    return step * RANKS


def test_ranks_that_read_the_same_data_since_a_resume_are_a_warning_that_ends_when_they_differ_again() -> None:
    before = frames_of(range(1, 41), own)
    (found,) = reported(before, frames_of(range(41, 101), all_alike, 2), frames_of(range(101, 131), own, 3))

    assert (found.severity, found.state, found.onset_step, found.recovered_step) == ("warning", "recovered", 41, 101)
    assert (found.evidence["different_batches"], found.evidence["different_before"]) == (1, RANKS)


def test_ranks_that_share_their_batches_from_the_first_step_on_are_a_layout() -> None:
    assert reported(frames_of(range(1, 101), pairs)) == []


def test_half_of_the_ranks_with_the_data_of_the_others_are_reported_within_sixteen_steps() -> None:
    (found,) = reported(frames_of(range(1, 41), own), frames_of(range(41, 57), pairs, 2))

    assert (found.onset_step, found.step, found.evidence["different_batches"]) == (41, 56, 2)


def test_a_few_empty_batches_on_all_ranks_are_nothing() -> None:
    assert reported(frames_of(range(1, 101), lambda rank, step: -1 if step % 40 < 3 else own(rank, step))) == []
