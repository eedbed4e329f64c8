"""The book of resumes is a pure fold: frame borders and restarts change nothing, and it stays small."""

from __future__ import annotations

import msgspec

from stabilitybackend.resumes.book import MAX_RESUMES
from stabilitybackend.runs.archiving.snapshot import freeze, thaw
from stabilitybackend.runs.state import RunState
from stabilityclient.wire import Frame
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
        after.store = before.store
        after.incidents.load(before.incidents.all())
        assert _view(folded(frames[at:], after)) == _view(expected)


def test_a_run_that_goes_back_without_end_keeps_the_newest_resumes() -> None:
    made = Resumed()
    made.train(1, 40)
    for count in range(MAX_RESUMES + 5):
        made.back(30, key=f"d-{count}")
        made.train(31, 33)
    view = folded(made.frames).resumes.view()
    assert (len(view.resumes), view.left_out) == (MAX_RESUMES, 5)
