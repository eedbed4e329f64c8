"""TensorBoard folders, written by TensorBoard's own writer: starts, segments, damage with its place, nothing twice."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stabilityplugins.importers.rows.tfrecords import crc32c
from support.imported_run import ImportedRun

event_pb2 = pytest.importorskip("tensorboard.compat.proto.event_pb2", reason="pip install tensorboard")
event_file_writer = pytest.importorskip(
    "tensorboard.summary.writer.event_file_writer", reason="pip install tensorboard"
)
summary_pb2 = pytest.importorskip("tensorboard.compat.proto.summary_pb2", reason="pip install tensorboard")

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write an event file under ``tmp_path`` as TensorBoard does: rows are (step, {tag: value}), or Event messages."""
    count = iter(range(100))

    def written(*rows: Any, start: float = 1e9, folder: str = "logs") -> Path:
        number = next(count)
        place = tmp_path / folder
        file = event_file_writer.EventFileWriter(str(place), filename_suffix=f".{number}")
        time = start
        for row in rows:
            if isinstance(row, tuple):
                step, values = row
                for tag, value in values.items():
                    time += 1.0
                    said = summary_pb2.Summary(value=[summary_pb2.Summary.Value(tag=tag, simple_value=value)])
                    file.add_event(event_pb2.Event(wall_time=time, step=step, summary=said))
            else:
                file.add_event(row)
        file.close()
        # The writer names files by the second and this host; in the test they are told apart and come in order.
        [path] = place.glob(f"*.{number}")
        return path.rename(place / f"events.out.tfevents.{1_000_000_000 + number}.node{number}.77.0")

    return written


def started(step: int, time: float) -> Any:
    """What ``SummaryWriter(purge_step=step)`` writes."""
    session = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
    return event_pb2.Event(wall_time=time, step=step, session_log=session)


def losses(steps: range, value: float = 0.0) -> list[tuple[int, dict[str, float]]]:
    return [(step, {"loss": float(step + value), "lr": 0.5}) for step in steps]


def test_a_start_at_step_s_leaves_what_came_before_s_and_keeps_the_rest_as_dead(tmp_path: Path, write: Write) -> None:
    write(*losses(range(20)))
    write(started(12, 1.1e9), *losses(range(12, 30), 100.0), start=1.1e9)
    run = ImportedRun()

    run.take(tmp_path / "logs")

    assert run.forks() == [(0, 11, "declared")]
    assert run.fold.tree[1].reason == "TensorBoard SessionLog.START at step 12"
    assert run.dead() == {0: list(range(12, 20))}
    assert run.line() == {s: float(s if s < 12 else s + 100) for s in range(30)}


def test_a_start_after_the_last_step_is_no_rollback(tmp_path: Path, write: Write) -> None:
    write(*losses(range(10)))
    write(started(10, 1.1e9), *losses(range(10, 20)), start=1.1e9)
    run = ImportedRun()
    run.take(tmp_path / "logs")
    assert run.forks() == []
    assert len(run.line()) == 20


def test_a_restart_without_a_word_is_known_by_its_steps(tmp_path: Path, write: Write) -> None:
    write(*losses(range(20)))
    write(*losses(range(8, 30), 100.0), start=1.1e9)
    run = ImportedRun()

    run.take(tmp_path / "logs")

    assert run.forks() == [(0, 7, "restart")]
    assert (run.line()[7], run.line()[8]) == (7.0, 108.0)
    assert run.dead() == {0: list(range(8, 20))}


def test_each_file_is_a_start_of_the_job_on_its_host(tmp_path: Path, write: Write) -> None:
    write(*losses(range(3)))
    write(*losses(range(3, 6)), start=1.1e9)
    run = ImportedRun()
    run.take(tmp_path / "logs")
    assert len(run.held) == 2
    assert [event for event, _, _ in run.events] == ["start", "start", "finish"]


def test_scalars_of_one_step_are_one_row_and_other_kinds_are_counted(tmp_path: Path, write: Write) -> None:
    histogram = summary_pb2.Summary(value=[summary_pb2.Summary.Value(tag="h", histo=summary_pb2.HistogramProto())])
    write(*losses(range(4)), event_pb2.Event(wall_time=1e9, step=4, summary=histogram))
    run = ImportedRun()

    result = run.take(tmp_path / "logs")

    # The very first value stands alone: it names the file.
    assert (result.rows, result.values) == (5, 8)
    [file] = (tmp_path / "logs").iterdir()
    assert result.reading.notes == [f"{file}: left out, for a point is one number: 1 histo"]
    assert result.reading.count == 0


def test_values_that_newer_writers_pack_into_tensors_are_read(tmp_path: Path) -> None:
    torch_writer = pytest.importorskip("torch.utils.tensorboard", reason="pip install torch")
    with torch_writer.SummaryWriter(str(tmp_path / "logs")) as writer:
        for step in range(5):
            writer.add_scalar("loss", math.inf if step == 3 else step / 2, step, new_style=True)
            writer.add_scalar("old", math.nan if step == 2 else step, step)
    run = ImportedRun()

    run.take(tmp_path / "logs")

    assert run.line() == {0: 0.0, 1: 0.5, 2: 1.0, 3: math.inf, 4: 2.0}
    assert math.isnan(run.line("old")[2])


def test_a_file_cut_in_a_record_is_imported_up_to_it_and_goes_on_when_it_has_grown(
    tmp_path: Path, write: Write
) -> None:
    path = write(*losses(range(50)))
    whole = path.read_bytes()
    run, once = ImportedRun(), ImportedRun()
    once.take(path)

    path.write_bytes(whole[: len(whole) // 2 + 5])
    result = run.take(path)
    [problem] = result.reading.named
    assert "the last record is cut" in problem.reason
    assert problem.place.startswith("byte ")
    assert 0 < len(run.line()) < 50
    path.write_bytes(whole)
    assert run.take(path).reading.count == 0

    assert run.line() == once.line()
    assert run.line("lr") == once.line("lr")
    values = sum(entry.points for entry in run.fold.tree)
    assert values == 100, "each value is stored once, also those of the row that was cut"


def test_a_flipped_byte_costs_its_record_and_is_named(tmp_path: Path, write: Write) -> None:
    path = write(*losses(range(50)))
    data = bytearray(path.read_bytes())
    offsets, at = [], 0
    while at < len(data):
        offsets.append(at)
        at += 16 + struct.unpack_from("<Q", data, at)[0]
    data[offsets[21] + 20] ^= 0x10  # in the data of the 22nd record: the first one is the file's version
    path.write_bytes(data)
    run = ImportedRun()

    result = run.take(path)

    assert [str(t.place) for t in result.reading.named] == [f"byte {offsets[21]}"]
    assert result.reading.named[0].reason == "record 22 has a wrong checksum"
    assert sum(segment.points for segment in run.fold.tree) == 99


def test_behind_a_damaged_length_reading_goes_on_at_the_next_whole_record(tmp_path: Path, write: Write) -> None:
    path = write(*losses(range(50)))
    data = bytearray(path.read_bytes())
    offsets, at = [], 0
    while at < len(data):
        offsets.append(at)
        at += 16 + struct.unpack_from("<Q", data, at)[0]
    data[offsets[30]] ^= 0xFF
    path.write_bytes(data)
    run = ImportedRun()

    result = run.take(path)

    size = offsets[31] - offsets[30]
    assert [str(t) for t in result.reading.named] == [
        f"{path}, byte {offsets[30]}: damaged; {size} bytes are skipped to the next whole record"
    ]
    assert sum(segment.points for segment in run.fold.tree) == 99


def test_folders_are_runs_and_with_a_run_id_parts_of_one(tmp_path: Path, write: Write) -> None:
    from stabilityplugins.importers.detect import find_plans

    write(*losses(range(3)), folder="logs/a")
    write(*losses(range(3), 10.0), folder="logs/b")
    assert [plan.name for plan in find_plans([tmp_path / "logs"])] == ["logs/a", "logs/b"]
    run = ImportedRun()

    run.take(tmp_path / "logs", keep_names=True)

    assert sorted(run.store.metrics()) == ["a/loss", "a/lr", "b/loss", "b/lr"]
    assert run.line("b/loss") == {0: 10.0, 1: 11.0, 2: 12.0}
    assert run.forks() == []


def test_two_writers_at_work_in_one_folder_are_two_ranks_and_no_rollback(tmp_path: Path, write: Write) -> None:
    write(*losses(range(100)), start=1e9)
    write(*losses(range(100), 0.5), start=1e9 + 1)
    run = ImportedRun()

    result = run.take(tmp_path / "logs")

    assert run.forks() == []
    assert (run.line(rank=0)[7], run.line(rank=1)[7]) == (7.0, 7.5)
    assert "written at the same time as another file" in result.reading.notes[0]


def test_the_checksum_is_the_one_of_the_format() -> None:
    # RFC 3720, appendix B.4: 32 bytes of zeros have the CRC-32C 0x8a9136aa; masked as TFRecord does.
    crc = 0x8A9136AA
    assert crc32c(bytes(32)) == (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
