"""What the agent reports of the checkpoints that it watches: each change once, and nothing of one that it never saw."""

from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from stabilityclient.agent.upload.records import SpooledEvent
from stabilityclient.agent.watch.checkpoint_survey import Survey, survey
from stabilityclient.agent.watch.checkpoints import MAX_WATCHED, STILL_S, CheckpointWatch, Notice
from support.agent.written_checkpoints import WRITERS, write_safetensors


class Watched:
    """A watch under a clock that the test moves."""

    def __init__(self, known: Any = None) -> None:
        self.now = 0.0
        self.watch = CheckpointWatch(known, now=lambda: self.now)

    def announce(self, step: int, path: Path | str) -> bool:
        return self.watch.take(SpooledEvent(1, "checkpoint", 0.0, step, {"path": str(path)}), 2)

    def poll(self, after_s: float = 2.0, *, over: bool = False) -> list[Notice]:
        self.now += after_s
        return self.watch.settle(survey(self.watch.due()), over=over)

    def words(self, after_s: float = 2.0, *, over: bool = False) -> list[tuple[str, int, Any, Any, Any]]:
        return [
            (told.type, told.step, told.data.get("complete"), told.data.get("writing"), told.data.get("problem"))
            for told in self.poll(after_s, over=over)
        ]


@pytest.fixture
def zero(tmp_path: Path) -> Path:
    """A whole checkpoint of DeepSpeed."""
    path = WRITERS["zero"](tmp_path)
    assert isinstance(path, Path)
    return path


MODEL, OPTIM = "mp_rank_00_model_states.pt", "zero_pp_rank_1_mp_rank_00_optim_states.pt"


def test_a_whole_one_is_told_once_with_all_that_is_known_of_it(zero: Path) -> None:
    watched = Watched()
    assert watched.announce(7, zero)
    size = sum(each.stat().st_size for each in zero.iterdir())
    assert watched.poll() == [
        Notice("checkpoint_seen", 7, {
            "path": str(zero), "kind": "deepspeed", "complete": True, "writing": False, "problem": "", "bad": (),
            "size_bytes": size, "files": 3, "world_size": 2, "loads_with": "same",
        })
    ]  # fmt: skip
    assert not watched.announce(7, zero)
    assert [watched.poll() for _ in range(5)] == [[]] * 5


def test_one_that_is_announced_before_it_is_written_is_being_written_until_it_is_whole(zero: Path) -> None:
    whole = zero.with_name("elsewhere")
    shutil.move(zero / MODEL, whole)
    watched = Watched()
    watched.announce(7, zero)
    assert watched.words() == [("checkpoint_seen", 7, False, True, f"{MODEL} is missing")]
    shutil.copy(whole, zero / MODEL)
    os.truncate(zero / MODEL, 100)
    assert watched.words(STILL_S) == []
    shutil.copy(whole, zero / MODEL)
    assert watched.words() == [("checkpoint_seen", 7, True, False, "")]


def test_one_of_which_nothing_comes_any_more_is_incomplete(zero: Path) -> None:
    (zero / OPTIM).unlink()
    watched = Watched()
    watched.announce(7, zero)
    assert [told[2:4] for told in watched.words()] == [(False, True)]
    assert watched.watch.waits
    assert watched.words(STILL_S - 2) == []
    assert watched.words() == [("checkpoint_seen", 7, False, False, f"{OPTIM} is missing")]
    assert not watched.watch.waits


def test_nothing_is_still_written_when_all_ranks_have_ended(zero: Path) -> None:
    (zero / OPTIM).unlink()
    watched = Watched()
    watched.announce(7, zero)
    assert watched.words(over=True) == [("checkpoint_seen", 7, False, False, f"{OPTIM} is missing")]


def test_a_file_that_is_deleted_later_is_told_at_once(zero: Path) -> None:
    watched = Watched()
    watched.announce(7, zero)
    watched.poll()
    watched.poll()
    (zero / OPTIM).unlink()
    assert watched.words() == [("checkpoint_seen", 7, False, False, f"{OPTIM} is missing")]


def test_a_file_that_is_cut_off_later_is_found_in_its_turn(zero: Path) -> None:
    watched = Watched()
    for step in range(3):
        watched.announce(step, shutil.copytree(zero, zero.with_name(f"step-{step}")))
    watched.poll()
    watched.poll()
    os.truncate(zero.with_name("step-1") / OPTIM, 1_000)
    found = [told for _ in range(3) for told in watched.words(60)]
    assert found == [("checkpoint_seen", 1, False, False, f"{OPTIM} is truncated")]


def test_one_that_vanishes_is_gone_and_one_that_never_was_is_not(tmp_path: Path) -> None:
    watched = Watched()
    kept, gone = (write_safetensors(tmp_path / f"{name}.safetensors") for name in ("kept", "gone"))
    for step, path in enumerate((kept, gone, tmp_path / "never")):
        watched.announce(step, path)
    assert [(told.type, told.step) for told in watched.poll()] == [("checkpoint_seen", 0), ("checkpoint_seen", 1)]
    gone.unlink()
    assert [(told.type, told.step) for told in watched.poll()] == [("checkpoint_gone", 1)]
    assert watched.poll() == []


def test_a_later_agent_tells_only_what_changed_since(tmp_path: Path) -> None:
    earlier = Watched()
    paths = [write_safetensors(tmp_path / f"{step}.safetensors") for step in range(3)]
    for step, path in enumerate(paths):
        earlier.announce(step, path)
    assert len(earlier.poll()) == 3
    os.truncate(paths[1], 100)
    paths[2].unlink()
    later = Watched(json.loads(json.dumps(earlier.watch.state())))
    assert [(told.type, told.step) for told in later.poll()] == [("checkpoint_seen", 1), ("checkpoint_gone", 2)]


def test_one_that_the_agent_may_not_read_is_watched_as_a_path_and_not_waited_for(
    zero: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stabilityclient.agent.watch.checkpoint_survey.inspect", lambda path, world_size: None)
    watched = Watched()
    watched.announce(7, zero)
    assert watched.watch.waits
    assert watched.poll() == []
    assert not watched.watch.waits
    shutil.rmtree(zero)
    assert [told.type for told in watched.poll()] == ["checkpoint_gone"]


def test_another_one_at_the_same_path_is_looked_at_anew(tmp_path: Path) -> None:
    watched = Watched()
    last = write_safetensors(tmp_path / "last.safetensors")
    for step in (1, 2):
        watched.announce(step, last)
        assert [(told.step, told.data["complete"]) for told in watched.poll()] == [(step, True)]


def test_no_more_are_watched_than_the_bound(tmp_path: Path) -> None:
    watched = Watched()
    for step in range(MAX_WATCHED + 10):
        watched.announce(step, tmp_path / str(step))
    assert len(watched.watch.state()) == MAX_WATCHED  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("known", "paths"),
    [(None, []), ([{"path": "/a", "step": 1, "seen": True}], ["/a"]), ("nonsense", []), ([{"path": 1}], [])],
)
def test_what_an_earlier_version_left_is_taken_or_left_out(known: Any, paths: list[str]) -> None:
    assert [each.path for each in Watched(known).watch.due()] == paths


async def test_a_file_system_that_hangs_keeps_nobody_from_those_elsewhere_and_is_named(
    zero: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, stat = threading.Event(), os.stat
    away = tmp_path / "nfs"
    away.mkdir()
    for step in (1, 2):
        write_safetensors(away / f"step-{step}.safetensors")

    def hanging(path: Any, **how: Any) -> Any:
        if str(path).startswith(str(away)):
            answers.wait(30)
        return stat(path, **how)

    watched, survey = Watched(), Survey(0.2, lambda: ["/", str(away)])
    for step, path in enumerate((away / "step-1.safetensors", away / "step-2.safetensors", zero), start=1):
        watched.announce(step, path)

    async def told() -> dict[int, Any]:
        watched.now += 2.0
        notices = watched.watch.settle(await survey.of(watched.watch.due()))
        return {each.step: each.data["complete"] or each.data["problem"] for each in notices}

    monkeypatch.setattr(os, "stat", hanging)
    trouble = f"the file system at {away} does not answer"
    assert await told() == {1: f"not checked: {trouble}", 2: f"not checked: {trouble}", 3: True}
    assert [(gap.what, gap.why) for gap in survey.gaps()] == [("checkpoints", trouble)]
    assert await told() == {}
    answers.set()
    found: dict[int, Any] = {}
    while len(found) < 2:
        found |= await told()
    assert (found, survey.gaps()) == ({1: True, 2: True}, [])
