"""A message with frames of several sources is folded as these frames are, one after another."""

from __future__ import annotations

from typing import Any, cast

from hypothesis import given, settings

from stabilitybackend.runs.apply_frame import apply_frame
from stabilitybackend.runs.archiving import snapshot
from stabilitybackend.runs.detector_settings import DetectorSettings
from stabilitybackend.runs.state import RunState
from stabilityclient.node_frames import together
from stabilityclient.wire import Frame, encode_message
from support.job_frames import Job
from support.jobs.job_stories import Story, stories, tell


class _NoSettings:
    def apply(self, judge: object, frame_id: str) -> None:
        """Nobody changed any."""


_SETTINGS = cast(DetectorSettings, _NoSettings())


def _gathered(frames: list[Frame]) -> list[bytes]:
    """Return messages, each with as many of the next frames as are of different sources."""
    messages: list[list[Frame]] = []
    for frame in frames:
        if not messages or frame.source.source in {one.source.source for one in messages[-1]}:
            messages.append([])
        messages[-1].append(frame)
    return [encode_message(together(some) if len(some) > 1 else some[0]) for some in messages]


def _folded(messages: list[bytes]) -> tuple[bytes, list[Any], list[Any]]:
    state = RunState("run", lambda: 9_000.0)
    placed = []
    for number, message in enumerate(messages):
        changes = apply_frame(state, f"{number}-0", message, _SETTINGS, replayed=False)
        placed += [(p.segment, p.source, p.names, p.steps.tolist(), p.values.tobytes()) for p in changes.placed]
    return snapshot.freeze(state), placed, state.incidents.all()


@settings(deadline=None, max_examples=12)
@given(stories())
def test_any_job_gives_the_same_run_whichever_frames_travel_together(told: tuple[Story, int]) -> None:
    frames = tell(*told)
    assert _folded(_gathered(frames)) == _folded([encode_message(frame) for frame in frames])


def test_a_source_that_can_t_be_folded_is_named_and_the_others_of_its_message_stay() -> None:
    ranks = [Job(rank, world_size=3) for rank in range(3)]
    state = RunState("run", lambda: 9_000.0)
    fails = state.launch_sizes.seen

    def seen(info: Any) -> None:
        if info.rank == 1:
            raise RuntimeError("a mistake of ours")
        fails(info)

    state.launch_sizes.seen = seen  # type: ignore[method-assign]
    message = encode_message(together([rank.rows([1, 2]) for rank in ranks]))
    changes = apply_frame(state, "1-0", message, _SETTINGS, replayed=False)
    assert [placed.rank for placed in changes.placed] == [0, 0, 2, 2]
    assert "a mistake of ours" in str(state.unreadable.view())
