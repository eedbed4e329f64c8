"""What the ranks say of their batches is one answer: steps over all ranks, the worst samples first, never too many."""

from __future__ import annotations

from typing import Any

from stabilitybackend.base.saving import part_of, unpacked
from stabilitybackend.judging.batches.kept import MAX_ANSWERS, MAX_SAMPLES, KeptBatches
from stabilitybackend.lineage.changes import LineageEvent
from stabilitybackend.lineage.consumer import Effects
from stabilityclient.wire import SourceInfo


def _event(kind: str, rank: int | None = 0, world_size: int = 2, **data: Any) -> LineageEvent:
    return LineageEvent(SourceInfo(f"r{rank}-1-1", rank, world_size), 0, kind, 100.0, 5, data)


def _answer(rank: int, command_id: str = "c", **data: Any) -> LineageEvent:
    return _event("batch_samples", rank, command_id=command_id, last=8, seconds=0.5, **data)


def test_ranks_keep_batches_from_their_word_until_their_process_is_another() -> None:
    kept = KeptBatches()
    for rank in range(4):
        kept.event(_event("keeps_batches", rank, 4, last=8, on_spike=rank == 3), Effects())
    assert (kept.ranks, kept.on_spike, kept.view().held) == (4, True, 8)
    kept.event(_event("start", 0, 2), Effects())  # the job came back with two ranks, of which one has said nothing yet
    assert (kept.view().ranks, kept.on_spike) == ([1], False)


def test_steps_are_put_together_over_ranks_and_the_branch_that_was_left_is_kept_apart() -> None:
    kept = KeptBatches()
    kept.event(_answer(0, steps=[
        {"step": 4, "samples": 2, "loss": 2.0, "worst": 3.0, "repeated": 0.1},
        {"step": 5, "samples": 2, "nonfinite": 2, "discarded": True},
        {"step": 5},
    ], samples=[{"step": 4, "loss": 3.0}, {"step": 5, "loss": "NaN"}]), Effects())  # fmt: skip
    kept.event(_answer(1, steps=[{"step": 4, "samples": 6, "loss": 4.0, "worst": 9.0, "whole": False}],
                      samples=[{"step": 4, "id": "x", "loss": 9.0}], error="KeyError: 'text'"), Effects())  # fmt: skip
    kept.event(_answer(1, steps=[{"step": 4, "samples": 6}]), Effects())  # again: nothing
    found = kept.get("c")
    assert found is not None
    assert [
        (b.step, b.ranks, b.samples, b.loss, b.worst, b.nonfinite, b.whole, b.discarded) for b in found.batches
    ] == [
        (4, 2, 8, 3.5, 9.0, 0, False, False),
        (5, 1, 0, None, None, 0, False, False),
        (5, 1, 2, None, None, 2, True, True),
    ]
    assert [(s.rank, s.step, s.loss, s.discarded) for s in found.samples] == [
        (0, 5, "NaN", True), (1, 4, 9.0, False), (0, 4, 3.0, False),
    ]  # fmt: skip
    assert (found.first, found.last, found.ranks, found.failed) == (4, 5, [0, 1], {"1": "KeyError: 'text'"})


def test_of_too_many_samples_each_step_keeps_its_worst() -> None:
    kept = KeptBatches()
    for rank in range(MAX_SAMPLES):
        steps = [{"step": step, "samples": 1} for step in (1, 2)]
        samples = [{"step": 1, "loss": 1.0 + rank / 1e3}, {"step": 2, "loss": 9.0 + rank}]
        kept.event(_answer(rank, steps=steps, samples=samples), Effects())
    found = kept.get("c")
    assert found is not None
    assert (len(found.samples), found.left_out) == (MAX_SAMPLES, MAX_SAMPLES)
    assert sum(sample.step == 1 for sample in found.samples) == MAX_SAMPLES // 2
    assert max(sample.loss for sample in found.samples if sample.step == 1) == 1.0 + (MAX_SAMPLES - 1) / 1e3  # type: ignore[type-var]


def test_the_newest_answers_survive_a_restart_of_the_server() -> None:
    kept = KeptBatches()
    kept.event(_event("keeps_batches", 0, 1, last=8), Effects())
    for at in range(MAX_ANSWERS + 3):
        kept.event(
            _answer(0, f"c-{at}", steps=[{"step": at}], samples=[{"step": at, "loss": "NaN", "shape": [3, 2]}]),
            Effects(),
        )
    again = unpacked(KeptBatches, part_of("kept", kept), "kept")
    assert again.view() == kept.view()
    assert [one.request for one in again.view().answers] == [f"c-{at}" for at in range(10, 2, -1)]
    assert again.get("c-2") is None
