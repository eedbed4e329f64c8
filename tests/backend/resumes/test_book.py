"""The book of resumes is a pure fold: frame borders and restarts change nothing, and it stays small."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings

from stabilitybackend.judging.resumes import book
from stabilitybackend.judging.resumes.book import MAX_RESUMES
from stabilitybackend.runs.archiving.snapshot import freeze, thaw
from stabilitybackend.runs.state import RunState
from stabilityclient.wire import Frame
from support.jobs.job_stories import Story, stories, tell
from support.resumes.resumed_job import Resumed, folded


def _story() -> list[Frame]:
    made = Resumed(ids=True)
    made.train(1, 300)
    made.back(200, skip_batches=20)
    made.train(201, 330, lambda step: step + 20)
    made.another_process()
    made.train(251, 420, numerics=0.003)
    return made.frames


def _view(state: RunState) -> bytes:
    return msgspec.json.encode([state.resumes.view(), [one.text for one in state.incidents.all()]])


def test_frame_borders_change_nothing() -> None:
    frames = _story()
    whole: list[Frame] = []
    for frame in frames:
        if whole and whole[-1].source == frame.source:
            last = whole.pop()
            frame = Frame(frame.source, last.first_seq, frame.last_seq, last.blocks + frame.blocks)
        whole.append(frame)
    assert len(whole) < len(frames)
    assert _view(folded(whole)) == _view(folded(frames))


def test_a_restart_in_the_middle_changes_nothing() -> None:
    frames = _story()
    expected = folded(frames)
    for at in range(15, len(frames), 97):
        before = folded(frames[:at])
        after = thaw(freeze(before), "r", lambda: 5_000.0)
        after.points.store = before.store
        after.incidents.load(before.incidents.all())
        assert _view(folded(frames[at:], after)) == _view(expected)


@pytest.mark.parametrize(
    "loss",
    [
        lambda step: 2.0,
        lambda step: math.nan,
        lambda step: math.inf if step % 5 == 0 else 2 + step % 3,
        lambda step: 1e300 * (1 + step % 7),
        lambda step: -5 + math.sin(step),
    ],
    ids=["constant", "NaN", "infinite", "huge", "negative"],
)
def test_odd_losses_are_compared_or_not_and_break_nothing(loss: Callable[[int], float]) -> None:
    made = Resumed()
    made.loss = lambda step, batch: loss(step)  # type: ignore[method-assign]
    made.train(1, 200)
    made.back(100)
    made.train(101, 260)
    state = folded(made.frames)
    assert state.resumes.view().resumes[0].verdict in ("identical", "not_comparable")
    assert (state.resumes.failures, state.unreadable.passed_over) == (0, 0)


def test_a_fault_of_ours_settles_the_resume_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise ArithmeticError("planted")

    monkeypatch.setattr(book, "measure", fails)
    state = folded(_story())
    first = state.resumes.view().resumes[0]
    assert state.resumes.failures == 2  # both forks of the story
    assert first.settled
    assert "a fault of ours" in first.text


@given(stories())
@settings(max_examples=25, deadline=None)
def test_no_story_of_a_job_breaks_a_comparison(told: tuple[Story, int]) -> None:
    state = folded(tell(*told))
    assert (state.resumes.failures, state.unreadable.passed_over) == (0, 0)


def test_a_run_that_goes_back_without_end_keeps_the_newest_resumes() -> None:
    made = Resumed()
    made.train(1, 40)
    for count in range(MAX_RESUMES + 5):
        made.back(30, key=f"d-{count}")
        made.train(31, 33)
    view = folded(made.frames).resumes.view()
    assert (len(view.resumes), view.left_out) == (MAX_RESUMES, 5)
