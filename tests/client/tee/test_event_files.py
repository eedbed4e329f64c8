"""What a script tells TensorBoard comes to our run: the event files are the truth, value by value, step by step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.agent.teed import Teed, teed
from support.installed import needs

pytestmark = [needs("torch", "the writer of this test is torch's"), needs("tensorboard", "it writes event files")]

WRITER = """
    import numpy as np, torch
    from torch.utils.tensorboard import SummaryWriter
    from tensorboard.compat.proto import event_pb2, summary_pb2
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = SummaryWriter("events/train")
    for step in range(0, 50, 5):
        writer.add_scalar("loss", torch.tensor(1.0 / (step + 1)), step)
        writer.add_scalar("lr", np.float64(0.1), global_step=step)
        writer.add_scalars("many", {"a": step, "b": step * 2.0}, step)
    for epoch in range(3):
        writer.add_scalar("val/acc", 0.5 + epoch, epoch)
    writer.add_scalar("lm-loss vs samples", 1.0, 5120)
    writer.add_scalar("without a step", 7.0)
    writer.add_histogram("bars", np.arange(10), 1)
    writer.add_text("args", '{"seed": 1}')
    writer.add_text("note", "hello")
    writer.add_text("sample", '{"of": "a step"}', 3)
    writer.add_hparams({"lr": 0.1}, {"hparam/loss": 0.5})
    try:
        writer.add_scalar("wrong", object(), 1)
    except NotImplementedError:
        print("raised as ever")
    other = SummaryWriter("events/valid")
    other.add_scalar("loss", 5.0, 10)
    raw = EventFileWriter("events/raw")
    value = summary_pb2.Summary.Value(tag="raw", simple_value=1.25)
    raw.add_event(event_pb2.Event(step=3, summary=summary_pb2.Summary(value=[value])))
    for each in (writer, other, raw):
        each.close()
"""


def truth(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the scalars of a folder of event files, by tag."""
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    found: dict[str, list[tuple[int, float]]] = {}
    for path in sorted(folder.glob("events.*")):
        for event in LegacyEventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Teed:
    return teed(tmp_path_factory.mktemp("job"), WRITER)


def test_each_scalar_comes_under_its_tag_at_its_step(done: Teed) -> None:
    events = done.folder / "events"

    assert (done.code, done.out) == (0, "raised as ever\n"), done.err
    for tag in ("loss", "lr", "val/acc"):
        assert [(step, np.float32(value)) for step, value in done.values(tag)] == truth(events / "train")[tag]
    for name in ("a", "b"):
        assert done.values(f"many/{name}") == truth(events / "train" / f"many_{name}")["many"]
    assert done.values("raw") == truth(events / "raw")["raw"]


@pytest.mark.soak
def test_a_second_writer_with_the_same_tag_keeps_its_values_apart_under_the_name_of_its_folder(done: Teed) -> None:
    assert done.values("valid/loss") == [(10, 5.0)]


def test_a_value_without_a_step_comes_at_the_newest_one(done: Teed) -> None:
    assert (done.values("without a step"), done.values("hparam/loss")) == ([(2, 7.0)], [(2, 0.5)])


def test_a_curve_over_samples_is_not_taken_for_one_over_steps(done: Teed) -> None:
    assert done.values("lm-loss vs samples") == []


def test_hyperparameters_and_texts_that_are_settings_are_the_config(done: Teed) -> None:
    assert done.config() == {"args": {"seed": 1}, "lr": 0.1}
