"""One repository is left out: numbers are chosen on the others, and public labels are scored by their own rules."""

from __future__ import annotations

import gzip
import importlib
import json
import random
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks" / "laboratory"


@pytest.fixture
def cross(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("cross")


@pytest.fixture
def score(cross: ModuleType) -> ModuleType:
    return importlib.import_module("detection_score")


def scored(score: ModuleType, found: int, events: int = 10) -> Any:
    return score.Score(points=1_000, found={"spike": found}, events={"spike": events})


def public_log(*anomalies: dict[str, Any]) -> Any:
    rows = [{"step": step, "loss": 1.0} for step in range(0, 10_000, 10)]
    logs = importlib.import_module("labelled_logs")
    events = logs.labels_of({"anomalies": list(anomalies)})
    return logs.Labelled("a-log", "a", rows, 10, events, exact=False)


def anomaly(onset: int, points: int | None = 3, **facts: Any) -> dict[str, Any]:
    end = None if points is None else onset + 10 * points
    return {
        "kind": "fast_spike", "alarm": True, "onset_step": onset, "recovered_step": end, "n_points": points, **facts
    }  # fmt: skip


def test_a_cluster_has_no_say_in_the_numbers_that_it_is_scored_with(cross: ModuleType, score: ModuleType) -> None:
    found = {"1": {"a": 9, "b": 2, "c": 2}, "2": {"a": 1, "b": 5, "c": 5}}
    scores = SimpleNamespace(
        clusters=["a", "b", "c"],
        of=lambda variants: [
            {name: [scored(score, count)] for name, count in found[one.get("x", "1")].items()} for one in variants
        ],
    )

    chosen = cross.cross(scores, {"x": ["1", "2"]})

    assert chosen == {"a": {"x": "2"}, "b": {"x": "1"}, "c": {"x": "1"}}


def test_an_event_of_one_point_is_found_by_a_quiet_note_and_a_longer_one_is_not(
    score: ModuleType,
) -> None:
    log = public_log(anomaly(3_000, 1), anomaly(6_000, 3))
    notes = [score.Alarm(step, "spike", "fast", loud=False) for step in (3_000, 6_000)]

    judged = score.judge(log, notes)

    assert (judged.found, judged.events) == ({"spike": 1}, {"spike": 2})


def test_the_beginning_of_a_public_log_is_not_scored(score: ModuleType) -> None:
    judged = score.judge(public_log(anomaly(300)), [score.Alarm(400, "spike"), score.Alarm(480, "level_shift")])

    assert (judged.points, judged.events, judged.false_alarms) == (950, {}, [])


def test_an_alarm_on_what_is_labelled_as_quiet_is_not_counted(score: ModuleType) -> None:
    judged = score.judge(public_log(anomaly(5_000, alarm=False)), [score.Alarm(5_000, "spike", "fast")])

    assert (judged.found, judged.events, judged.false_alarms) == ({}, {}, [])


def test_recall_over_clusters_is_not_that_of_the_cluster_with_most_events(score: ModuleType) -> None:
    several = {"a": [scored(score, 90, 100)], "b": [scored(score, 0, 2)], "quiet": [score.Score(points=10)]}

    assert score.recall_by_cluster(several) == 0.45


def test_a_replaced_constant_changes_what_is_found(cross: ModuleType, tmp_path: Path) -> None:
    dice = random.Random(5)
    rows = [{"step": i, "loss": 2 + dice.gauss(0, 0.02)} for i in range(400)]
    for row in rows[300:303]:
        row["loss"] = 4.0
    path = tmp_path / "log.jsonl.gz"
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    rules = importlib.import_module("rule_pass").RulePass([path], cache=tmp_path / "kept")
    deaf = {"judging/detectors/curve/engine.py:YOUNG": "10**9"}

    usual, changed = rules.judge([{}, deaf])

    assert [[alarm.step for alarm in log] for log in (*usual, *changed)] == [[301], []]
    assert list(rules.judge([deaf, {}])) == [changed, usual]
    assert list(rules.judge([{"judging/detectors/curve/engine.py:PROOF": "None"}])) == [[]]  # the rules break


def test_several_constants_are_set_at_once_to_leave_a_whole_rule_out(cross: ModuleType) -> None:
    sets = importlib.import_module("constant_worth")._sets

    assert sets(["judging/detectors/stats/levels.py:A=0.0,judging/detection/evidence.py:B=10**9"]) == [
        {"judging/detectors/stats/levels.py:A": "0.0", "judging/detection/evidence.py:B": "10**9"}
    ]
    with pytest.raises(SystemExit, match="expected NAME=VALUE"):
        sets(["stats/levels.py:A"])


def test_a_constant_that_is_not_there_is_refused(cross: ModuleType) -> None:
    rule_pass = importlib.import_module("rule_pass")

    with pytest.raises(ValueError, match="has no constant NOT_THERE"):
        rule_pass.check({"judging/detectors/curve/engine.py:NOT_THERE": "1"})


@pytest.mark.parametrize(
    ("value", "less", "more"),
    [
        ("2", "1", "3"),
        ("10", "7", "14"),
        ("0.5", "0.35", "0.7"),
        ("(1, 4.0)", "(0, 2.8)", "(2, 5.6)"),
        ("2 * 8", "11", "22"),
    ],
)
def test_a_constant_is_tried_smaller_and_larger_and_an_integer_moves_by_one_at_least(
    cross: ModuleType, value: str, less: str, more: str
) -> None:
    scaled = importlib.import_module("constant_worth").scaled

    assert [scaled(value, factor) for factor in (0.7, 1.4)] == [less, more]


def test_only_logs_that_run_a_line_which_reads_the_constant_are_judged_again(cross: ModuleType) -> None:
    reads_of = importlib.import_module("rule_pass").reads_of

    assert reads_of("judging/detectors/curve/detector.py:NOT_READ") == ()
    assert {file for file, _ in reads_of("judging/detectors/curve/detector.py:STILL")} == {
        "judging/detectors/curve/detector.py"
    }


def test_the_constants_of_the_detectors_are_found(cross: ModuleType) -> None:
    texts = importlib.import_module("chosen_on").constant_texts()

    assert len(texts) > 200
    assert all(name.startswith("judging/detectors/") for name in texts)
