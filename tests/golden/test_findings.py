"""The detectors say of the recorded traces what they always said, to twelve digits of every number.

A change of a detector on purpose writes findings.json.gz anew (README.md); its diff is in the commit's message.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from golden import stored
from stabilitybackend.judging.detectors.engine.base import Finding
from stabilitybackend.judging.detectors.registry import DETECTORS
from stabilitybackend.runs.backtest import backtest
from stabilitybackend.runs.consumers.findings import Findings
from stabilityplugins.backtest.sources import read_files

TRACES = sorted((Path(__file__).parents[1] / "traces").glob("*.jsonl.gz"))
_FILE = "findings.json.gz"


def findings_of(trace: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return [log time, finding] of each finding in its order, before evidence is added to it."""
    found: list[Any] = []
    take = Findings.take

    def noted(findings: Findings, finding: Finding, time: float, effects: Any) -> None:
        found.append([time, stored.without_words(asdict(finding))])
        take(findings, finding, time, effects)

    monkeypatch.setattr(Findings, "take", noted)
    [log] = read_files([trace])
    backtest(log.frames())
    return found


@pytest.fixture(scope="module")
def answers() -> dict[str, list[Any]]:
    if stored.WRITE:
        with pytest.MonkeyPatch.context() as monkeypatch:
            found = {}
            for trace in TRACES:
                found[trace.name] = findings_of(trace, monkeypatch)
                monkeypatch.undo()
            stored.write(_FILE, found)
    return stored.read(_FILE)


@pytest.mark.parametrize("trace", TRACES, ids=lambda trace: trace.name.removesuffix(".jsonl.gz"))
def test_a_recorded_trace_gives_the_same_findings_to_twelve_digits(
    trace: Path, answers: dict[str, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = findings_of(trace, monkeypatch)

    assert stored.different(json.loads(json.dumps(found)), answers[trace.name]) is None


def test_a_finding_that_moves_by_a_billionth_or_goes_missing_is_different(answers: dict[str, list[Any]]) -> None:
    then = next(found for found in answers.values() if found)

    assert stored.different(then, then) is None
    assert stored.different(then[:-1], then) is not None
    assert stored.different([[then[0][0] * (1 + 1e-9), then[0][1]], *then[1:]], then) is not None


def test_each_detector_has_findings_in_the_stored_answers(answers: dict[str, list[Any]]) -> None:
    # The first compares with what a job declares, which no recorded trace does. No trace of then stands still at one
    # value, or starts over into its log.
    absent = {"mixture", "frozen", "starts_over", "sdc_suspect"}

    found = {finding["detector"] for found in answers.values() for _, finding in found}
    assert found == set(DETECTORS) - absent
    assert set(answers) == {trace.name for trace in TRACES}
