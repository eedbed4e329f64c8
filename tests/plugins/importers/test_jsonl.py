"""JSON lines become the run that they tell of; what can't be read is named by its line, and nothing comes twice."""

from __future__ import annotations

import json
import math
import os
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stabilitybackend.base.errors import BadRequest
from stabilityplugins.importers.detect import find_plans
from stabilityplugins.importers.job import ImportJob, Options
from support.imported_run import ImportedRun

#: When the logs begin, unix seconds.
T0 = 1.7e9


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def test_missing_nan_and_the_infinities_are_four_facts(tmp_path: Path) -> None:
    file = write(
        tmp_path / "log.jsonl",
        {"step": 1, "t": 1700000010, "loss": 0.1},
        '{"step": 2, "t": 1700000011, "loss": NaN}',
        {"step": 3, "t": 1700000012, "loss": "Infinity"},
        '{"step": 4, "t": 1700000013, "loss": -Infinity, "lr": 1}',
        {"step": 5, "t": 1700000014, "loss": None, "lr": 2},
        {"step": 6, "t": 1700000015, "loss": "NaN"},
    )
    run = ImportedRun()

    result = run.take(file)

    line = run.line()
    assert {step: str(value) for step, value in line.items()} == {
        1: "0.1", 2: "nan", 3: "inf", 4: "-inf", 6: "nan"
    }  # fmt: skip
    assert run.line("lr") == {4: 1.0, 5: 2.0}
    assert result.reading.count == 0


def test_steps_that_go_back_begin_a_segment(tmp_path: Path) -> None:
    steps = [*range(20), *range(10, 30)]
    file = write(tmp_path / "log.jsonl", *({"step": s, "t": T0 + i, "loss": float(i)} for i, s in enumerate(steps)))
    run = ImportedRun()

    run.take(file)

    assert run.forks() == [(0, 9, "restart")]
    assert run.dead() == {0: list(range(10, 20))}
    assert run.line() == {s: float(s if s < 10 else s + 10) for s in range(30)}


def test_ranks_batches_and_phases_are_told_apart_from_metrics(tmp_path: Path) -> None:
    rows = [
        {"step": s, "t": T0 + s, "rank": r, "phase": "forward", "batch_fp": f"b{s}", "loss": s + r / 10}
        for s in range(5)
        for r in (0, 3)
    ]
    run = ImportedRun()

    run.take(write(tmp_path / "log.jsonl", *rows))

    assert run.store.metrics() == ["loss"]
    assert run.line(rank=3) == {s: s + 0.3 for s in range(5)}
    assert [e for e in run.events if e[0] == "batch"][:2] == [
        ("batch", 0, {"fingerprint": "b0"}),
        ("batch", 1, {"fingerprint": "b1"}),
    ]
    assert [e[0] for e in run.events if e[0] != "batch"] == ["start", "start", "finish", "finish"]


def test_every_line_that_cannot_be_read_is_named_and_the_others_are_imported(tmp_path: Path) -> None:
    file = write(
        tmp_path / "log.jsonl",
        {"step": 0, "t": 1700000000, "loss": 1.0},
        "this is no JSON",
        {"step": "soon", "loss": 1.0},
        {"loss": 1.0},
        {"step": 1.5, "loss": 1.0},
        {"step": -1, "loss": 1.0},
        [1, 2],
        {"step": 1, "t": 1700000001, "rank": "x", "loss": 1.0},
        {"step": 1, "t": 1700000001, "loss": "oops", "lr": 1.0},
        {"step": 2, "t": 1700000002, "loss": 2.0, "note": "warm-up over"},
        "",
        '{"step": 3, "t": 1700000003, "lo',
    )
    file.write_bytes(file.read_bytes()[:-1])
    run = ImportedRun()

    result = run.take(file)

    assert run.line() == {0: 1.0, 2: 2.0}
    assert run.line("lr") == {1: 1.0}
    found = {problem.place: problem.reason for problem in result.reading.named}
    assert found == {
        "line 2": "no JSON: 'this is no JSON'",
        "line 3": "the step is 'soon', expected a whole number",
        "line 4": "no step, as other rows with loss have",
        "line 5": "the step is 1.5, expected a whole number",
        "line 6": "the step is -1, expected 0 to 9007199254740991",
        "line 7": "[1, 2] is no JSON object",
        "line 8": "the rank is 'x', expected a whole number from 0 to 1048575",
        "line 12": """the last line is cut: '{"step": 3, "t": 1700000003, "lo'""",
        "line 9, loss": "'oops' is no number",
    }
    assert result.reading.count == len(found)
    assert result.reading.notes == [f"{file}: no numbers, so left out: note"]


_ROW = st.fixed_dictionaries(
    {"step": st.integers(0, 50), "t": st.integers(0, 10).map(lambda at: T0 + at)},
    optional={
        "loss": st.sampled_from([0.5, "NaN", "-Infinity", None]),
        "eval/loss": st.just(2.0),
        "rank": st.integers(0, 2),
        "batch_fp": st.just("b"),
    },
)


@settings(deadline=None, max_examples=60)
@given(rows=st.lists(_ROW, min_size=1, max_size=30), cut=st.floats(0, 1))
def test_a_file_imported_while_it_grew_is_the_same_run_as_the_whole_file_imported_once(
    rows: list[dict[str, object]], cut: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("growing") / "log.jsonl"
    times = sorted(row["t"] for row in rows)
    rows = [{**row, "t": time} for row, time in zip(rows, times, strict=True)]
    whole = "".join(json.dumps(row) + "\n" for row in [{"step": 0, "t": T0, "loss": 1.0}, *rows]).encode()
    begun = whole.index(b"\n") + 1
    grown, once = ImportedRun(), ImportedRun()

    file.write_bytes(whole[: begun + int(cut * (len(whole) - begun))])
    grown.take(file)
    file.write_bytes(whole)
    grown.take(file)
    once.take(file)

    def contents(run: ImportedRun) -> dict[object, object]:
        return {
            (key.metric, key.rank): sorted(map(str, run.store.rows(key).values.tolist()))
            for metric in run.store.metrics()
            for key in run.store.keys(metric)
            if key.segment == 0 and not key.stray
        }

    assert grown.rows == once.rows
    assert len(once.fold.tree) > 1 or contents(grown) == contents(once)
    before = grown.rows
    assert grown.take(file).rows == 0
    assert grown.rows == before


def test_the_first_row_names_the_file_whatever_other_ranks_log_behind_it(tmp_path: Path) -> None:
    rows = [{"step": 0, "loss": 1.0}, {"step": 0, "rank": 1, "loss": 2.0}, {"step": 1, "rank": 1, "lr": 0.5}]
    run = ImportedRun()
    run.take(write(tmp_path / "log.jsonl", *rows[:1]))

    run.take(write(tmp_path / "log.jsonl", *rows))

    assert run.rows == 3


def test_a_file_that_was_written_anew_is_refused(tmp_path: Path) -> None:
    rows = [{"step": s, "t": T0 + s, "loss": float(s)} for s in range(20)]
    file, run = write(tmp_path / "log.jsonl", *rows), ImportedRun()
    run.take(file)

    write(file, *rows[:10], *({**row, "loss": 9.0} for row in rows[10:]), {"step": 20, "loss": 1.0})

    with pytest.raises(BadRequest, match=r"log\.jsonl was rewritten: its first 20 records"):
        run.take(file)
    assert len(run.line()) == 20


def test_a_file_without_times_ends_when_it_was_written_last(tmp_path: Path) -> None:
    file, run = write(tmp_path / "log.jsonl", *({"step": s, "loss": 1.0} for s in range(5))), ImportedRun()

    result = run.take(file)

    [key] = run.store.keys("loss")
    times = run.store.rows(key).times.tolist()
    assert times[-1] == pytest.approx(file.stat().st_mtime)
    assert [b - a for a, b in pairwise(times)] == pytest.approx([1.0] * 4)
    assert "no times" in result.reading.notes[0]


def test_another_spelling_takes_the_place_of_a_missing_loss_unless_names_are_kept(tmp_path: Path) -> None:
    rows = [{"step": s, "t": T0 + s, "train/loss": 1.0, "learning_rate": 0.1, "acc": 0.5} for s in range(3)]
    file = write(tmp_path / "log.jsonl", *rows)

    def names(**options: object) -> list[str]:
        run = ImportedRun()
        run.take(file, **options)
        return run.store.metrics()

    assert names() == ["loss", "lr", "acc"]
    assert names(keep_names=True) == ["train/loss", "learning_rate", "acc"]
    assert names(renames={"acc": "accuracy"}) == ["train/loss", "learning_rate", "accuracy"]


def test_a_loss_that_is_there_keeps_its_name_and_so_does_the_other(tmp_path: Path) -> None:
    run = ImportedRun()
    run.take(write(tmp_path / "log.jsonl", {"step": 0, "t": 1700000000, "loss": 1.0, "train_loss": 2.0}))
    assert run.store.metrics() == ["loss", "train_loss"]


def test_the_same_file_under_other_names_is_refused_and_not_stored_beside_itself(tmp_path: Path) -> None:
    file, run = write(tmp_path / "log.jsonl", {"step": 0, "t": 1700000000, "train/loss": 1.0}), ImportedRun()
    run.take(file)
    with pytest.raises(BadRequest, match="the same file read with other names"):
        run.take(file, renames={"train/loss": "other"})
    assert run.rows == 1


def test_files_named_by_rank_are_the_ranks_of_one_run(tmp_path: Path) -> None:
    for rank in range(3):
        write(tmp_path / f"rank{rank}.jsonl", *({"step": s, "t": T0 + s, "loss": s + rank / 10} for s in range(4)))
    run = ImportedRun()

    run.take(tmp_path)

    assert {rank: run.line(rank=rank)[3] for rank in range(3)} == {0: 3.0, 1: 3.1, 2: 3.2}
    assert len(run.fold.tree) == 1


def test_two_files_that_begin_alike_are_not_mixed_into_one_run(tmp_path: Path) -> None:
    first = {"step": 0, "t": 1700000000, "loss": 1.0}
    write(tmp_path / "a.jsonl", first, {"step": 1, "t": 1700000001, "loss": 2.0})
    write(tmp_path / "b.jsonl", first, {"step": 1, "t": 1700000001, "loss": 3.0})
    with pytest.raises(BadRequest, match=r"a\.jsonl and .*b\.jsonl begin with the same row"):
        ImportedRun().take(tmp_path)


def test_a_run_is_called_after_its_file_and_its_first_row(tmp_path: Path) -> None:
    def run_id(*rows: object) -> str:
        [plan] = find_plans([write(tmp_path / "log.jsonl", *rows)])
        job = ImportJob(plan, Options())
        job.sniff()
        return job.run_id

    first = {"step": 0, "t": T0 + 5, "loss": 1.0}
    assert run_id(first) == run_id(first, {"step": 1, "t": T0 + 6, "loss": 2.0})
    assert run_id(first) != run_id({**first, "loss": 1.5})
    assert run_id(first).startswith(f"{tmp_path.name}-log-")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.bin", b"\x00\x01\x02", "begins with b'\\x00\\x01\\x02': nothing that can be imported"),
        ("a.jsonl", b"", "is empty: nothing that can be imported"),
        ("a.txt", b"hello world\n", "begins with b'hello world\\n': nothing that can be imported"),
    ],
)
def test_a_file_that_is_none_of_what_is_known_is_refused_with_what_it_begins_with(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadRequest) as refused:
        find_plans([tmp_path / name])
    assert message in refused.value.message


def test_a_folder_with_nothing_in_it_is_refused_with_what_is_known(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="holds nothing that can be imported") as refused:
        find_plans([tmp_path])
    assert "TensorBoard event files" in refused.value.hint


def test_a_step_key_can_be_named(tmp_path: Path) -> None:
    run = ImportedRun()
    run.take(write(tmp_path / "log.jsonl", {"step": 0, "iter": 7, "t": 1700000000, "loss": 1.0}), step_key="iter")
    assert run.line() == {7: 1.0}


def test_a_time_that_is_not_finite_is_taken_from_the_row_before(tmp_path: Path) -> None:
    rows = [{"step": 0, "t": T0 + 5, "loss": 1.0}, {"step": 1, "t": "NaN", "loss": 1.0}]
    run = ImportedRun()
    run.take(write(tmp_path / "log.jsonl", *rows))
    [key] = run.store.keys("loss")
    assert all(math.isfinite(time) for time in run.store.rows(key).times.tolist())
    assert run.store.rows(key).times.tolist() == [T0 + 5, T0 + 5]


@pytest.mark.parametrize(
    "line",
    [
        '{"step": ' + "9" * 400 + ', "t": 1700000001, "loss": NaN}',
        '{"step": 1, "t": 1700000001, "\\ud800": 1, "loss": 1}',
        '{"step": 1, "t": 1700000001, "batch_fp": "\\ud800", "loss": 1}',
        '{"step": 1, "t": 1700000001, "rank": 4294967296, "loss": 1}',
    ],
    ids=["step too long for a float", "half a character as name", "half a character as text", "rank of no job"],
)
def test_a_line_that_no_wire_can_carry_is_named_and_the_next_is_imported(tmp_path: Path, line: str) -> None:
    around = [{"step": step, "t": T0 + step, "loss": float(step)} for step in (0, 2)]
    file = write(tmp_path / "log.jsonl", around[0], line, around[1])
    run = ImportedRun()

    result = run.take(file)

    assert run.line() == {0: 0.0, 2: 2.0}
    assert [problem.place for problem in result.reading.named] == ["line 2"]


def test_bare_nan_and_milliseconds_are_no_seconds(tmp_path: Path) -> None:
    times = ["1700000000.5", "NaN", "1700000001500.0", "9" * 400]
    file = write(tmp_path / "log.jsonl", *(f'{{"step": {s}, "t": {t}, "loss": NaN}}' for s, t in enumerate(times)))
    run = ImportedRun()
    run.take(file)
    [key] = run.store.keys("loss")
    assert run.store.rows(key).times.tolist() == [1700000000.5, 1700000000.5, 1700000001.5, 1700000001.5]


@pytest.mark.parametrize("damaged", ['8, "loss": 1.0}', '{"step": 8, "lo', "garbage"])
def test_a_first_line_that_is_damaged_costs_only_itself(tmp_path: Path, damaged: str) -> None:
    run = ImportedRun()
    result = run.take(write(tmp_path / "log.jsonl", damaged, {"step": 9, "t": 1700000009, "loss": 1.0}))
    assert run.line() == {9: 1.0}
    assert [problem.place for problem in result.reading.named] == ["line 1"]


def test_a_first_line_of_ten_thousand_metrics_is_json_lines(tmp_path: Path) -> None:
    metrics = {f"layer/{n:05d}/norm": float(n) for n in range(10_000)}
    run = ImportedRun()
    run.take(write(tmp_path / "log.jsonl", *({"step": s, "t": T0 + s, **metrics} for s in range(2))))
    assert len(run.store.metrics()) == 10_000


def test_a_file_whose_rows_hold_no_number_makes_no_run(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="has no row that can be read"):
        ImportedRun().take(write(tmp_path / "log.jsonl", {"step": 1}, {"step": 2}))


def test_damaged_files_of_a_folder_are_named_and_the_rest_is_imported(tmp_path: Path) -> None:
    write(tmp_path / "good.jsonl", {"step": 0, "t": 1700000000, "loss": 1.0})
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "half.wandb").touch()
    (tmp_path / "link.csv").symlink_to(tmp_path / "nowhere.csv")
    os.mkfifo(tmp_path / "pipe.jsonl")
    run = ImportedRun()

    result = run.take(tmp_path)

    assert run.line() == {0: 1.0}
    assert [problem.file.name for problem in result.reading.named] == [
        "empty.jsonl",
        "half.wandb",
        "link.csv",
        "pipe.jsonl",
    ]


def test_only_what_was_renamed_is_said_to_be(tmp_path: Path) -> None:
    file = write(tmp_path / "log.jsonl", {"step": 0, "t": 1700000000, "loss": 1.0, "lr": 0.5, "a": 2.0})
    result = ImportedRun().take(file, renames={"a": "b", "loss": "lr", "typo": "c"})
    assert result.renames == {"a": "b"}
    assert sorted(result.reading.notes) == [
        "loss is renamed nowhere: no row has it without lr",
        "typo is renamed nowhere: no row has it without c",
    ]
