"""The place in the data of a torchtitan job, and which of its folders are checkpoints after a rollback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import stabilityclient
from stabilityclient.integrations.torchtitan import Feed, as_at_the_start, discard_later, newest, read, write


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[stabilityclient.Run]:
    monkeypatch.setenv("STABILITY_MODE", "disabled")
    run = stabilityclient.init(project="p", dir=tmp_path)
    yield run
    run.finish()


def steps_of(feed: Feed, trainer: Any, first: int, last: int) -> list[list[int]]:
    """Return the batches of each step from first to last."""
    found = []
    for step in range(first, last + 1):
        trainer.step = step
        found.append([int(next(feed)[1]) for _ in range(trainer.gradient_accumulation_steps)])
    return found


def feed_from(run: Any, place: int, skips: Any = None) -> tuple[Feed, Any]:
    """Return a feed of numbered batches, two a step, behind the step at ``place``."""
    trainer = SimpleNamespace(gradient_accumulation_steps=2, num_pipeline_parallel_microbatches=1, step=place)
    feed = Feed(run, trainer, skips)
    return feed.over(({}, number) for number in range(2 * place + 1, 100)), trainer


def test_what_is_ordered_is_left_out_in_whole_steps_and_a_later_checkpoint_knows_it(run: stabilityclient.Run) -> None:
    feed, trainer = feed_from(run, 4)
    feed.skips.carry_out(4, None, 3, feed.skips)
    feed.fetch()
    assert steps_of(feed, trainer, 5, 7) == [[15, 16], [17, 18], [19, 20]]
    again, trainer = feed_from(run, 7 + 3, feed.skips.state())
    again.skips.carry_out(7, (9, 9), None, feed.skips)
    again.fetch()
    assert steps_of(again, trainer, 8, 10) == [[21, 22], [25, 26], [27, 28]]


def test_the_end_of_the_data_comes_when_the_step_asks_for_it(run: stabilityclient.Run) -> None:
    trainer = SimpleNamespace(gradient_accumulation_steps=1, num_pipeline_parallel_microbatches=1, step=0)
    feed = Feed(run, trainer, None).over(iter(()))
    feed.fetch()
    with pytest.raises(StopIteration):
        next(feed)


def test_after_a_rollback_only_folders_up_to_its_step_are_checkpoints(tmp_path: Path) -> None:
    for step in (20, 40, 60):
        write(str(tmp_path / f"step-{step}"), {"lr_scale": step / 40, "skips": None})
        (tmp_path / f"step-{step}" / ".metadata").touch()
    assert newest(str(tmp_path)) == 60
    discard_later(str(tmp_path), 40)
    assert newest(str(tmp_path)) == 40
    assert sorted(path.parent.name for path in tmp_path.glob("*/.metadata")) == ["step-20", "step-40"]
    assert read(str(tmp_path / "step-20"))["lr_scale"] == 0.5
    assert read(str(tmp_path / "step-80")) == {"lr_scale": 1.0, "skips": None, "ordered": ""}


def test_a_data_set_goes_back_to_the_order_of_its_first_epoch() -> None:
    inner = SimpleNamespace(_data="shuffled", _original_data="as it came")
    as_at_the_start(SimpleNamespace(_datasets=[inner]))
    as_at_the_start(None)
    assert inner._data == "as it came"
