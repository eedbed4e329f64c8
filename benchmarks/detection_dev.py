"""Scores the registered detectors on labelled logs: hits, misses, false alarms per 10,000 points, delay.

Usage: detection_dev.py FOLDER [--verbose]

FOLDER holds ``labels.json`` and one ``<name>.jsonl.gz`` per log, with one row a line (``{"step": 1, "loss": 2.0,
...}``). A hit is an incident first seen from one logged point before a labelled onset to 10 points after it (50 for
divergences and resumes). Incidents inside a labelled event are not counted again. Only kinds that the registered
detectors report are expected of them; the others are listed as not covered. Numbers on logs that rules were tuned on
are no claim.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stabilitybackend.detectors.bank import DetectorBank
from stabilitybackend.detectors.contract import Finding, Point
from stabilitybackend.detectors.registry import DETECTORS

#: Points after the onset within which a label must be found.
TOLERANCE = {
    "fast_spike": 10,
    "slow_spike": 10,
    "unrecovered_spike": 10,
    "nan": 10,
    "divergence": 50,
    "resume_artifact": 50,
}
#: Labelled points after an event's end that still belong to it.
AFTERMATH_POINTS = 10


@dataclass
class Score:
    """What was found over all logs."""

    points: int = 0
    seconds: float = 0.0
    hits: dict[str, int] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)
    delays: list[float] = field(default_factory=list)
    false_alarms: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    not_covered: dict[str, int] = field(default_factory=dict)
    recovery_right: int = 0
    recovery_asked: int = 0


def incidents_of(rows: list[dict[str, Any]]) -> dict[str, list[Finding]]:
    """Return the findings of one log by key."""
    bank, found, last = DetectorBank(DETECTORS), {}, -1
    for row in rows:
        step = row["step"]
        if step <= last:
            bank.rewind(step - 1)
        last = step
        for metric, value in row.items():
            if metric != "step" and isinstance(value, int | float):
                for finding in bank.feed(Point(step, metric, float(value), 0.0)):
                    found.setdefault(finding.key, []).append(finding)
    return found


def judge(name: str, label: dict[str, Any], found: dict[str, list[Finding]], score: Score) -> None:
    """Compare the incidents of one log with its labels."""
    interval = label["log_interval"]
    alarms = [anomaly for anomaly in label["anomalies"] if anomaly["alarm"]]
    pairs = []
    for number, anomaly in enumerate(alarms):
        kind, onset = anomaly["kind"], anomaly["onset_step"]
        if kind not in TOLERANCE:
            score.not_covered[kind] = score.not_covered.get(kind, 0) + 1
            continue
        score.labels[kind] = score.labels.get(kind, 0) + 1
        for key, findings in found.items():
            in_time = onset - interval <= findings[0].step <= onset + TOLERANCE[kind] * interval
            if in_time and (findings[0].kind == "nonfinite") == (kind == "nan"):
                pairs.append((abs(findings[0].onset_step - onset), number, key))
    matched: dict[int, str] = {}
    for _, number, key in sorted(pairs):
        if number not in matched and key not in matched.values():
            matched[number] = key
    used = set(matched.values())
    for number, anomaly in enumerate(alarms):
        kind, onset = anomaly["kind"], anomaly["onset_step"]
        if number in matched:
            findings = found[matched[number]]
            score.hits[kind] = score.hits.get(kind, 0) + 1
            score.delays.append((findings[0].step - onset) / interval)
            if kind.endswith("_spike"):
                score.recovery_asked += 1
                said = {"fast": "fast_spike", "slow": "slow_spike", "none": "unrecovered_spike"}
                score.recovery_right += said.get(str(findings[-1].recovery)) == kind
        elif kind in TOLERANCE:
            score.missed.append(f"{name}: {kind} at {onset}, {anomaly.get('n_points')} points")
    for key, findings in found.items():
        step = findings[0].step
        inside = any(
            a["onset_step"] - interval <= step <= (a["recovered_step"] or 2**62) + AFTERMATH_POINTS * interval
            for a in alarms
        )
        ignored = any(first <= step <= last for first, last in label["ignore"])
        if key not in used and not inside and not ignored:
            score.false_alarms.append(f"{name}: {key} seen at {step}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--verbose", action="store_true", help="name each miss and false alarm")
    arguments = parser.parse_args()
    score = Score()
    for name, label in json.loads((arguments.folder / "labels.json").read_text()).items():
        with gzip.open(arguments.folder / f"{name}.jsonl.gz", "rt") as lines:
            rows = [json.loads(line) for line in lines]
        began = time.perf_counter()
        found = incidents_of(rows)
        score.seconds += time.perf_counter() - began
        score.points += len(rows)
        judge(name, label, found, score)
    total, hit = sum(score.labels.values()), sum(score.hits.values())
    print(f"{hit} of {total} events found; by kind:")
    for kind, count in sorted(score.labels.items()):
        print(f"  {kind:20} {score.hits.get(kind, 0)} of {count}")
    print(f"not covered by the registered detectors: {score.not_covered or 'nothing'}")
    print(
        f"false alarms: {len(score.false_alarms)}, {1e4 * len(score.false_alarms) / score.points:.2f} per 10,000 points"
    )
    print(f"delay: median {statistics.median(score.delays):.0f} points, largest {max(score.delays):.0f}")
    print(f"recovery named as labelled: {score.recovery_right} of {score.recovery_asked}")
    print(f"{1e6 * score.seconds / score.points:.0f} us a row, {score.points:,} rows")
    if arguments.verbose:
        print("\n".join(["missed:", *score.missed, "false alarms:", *score.false_alarms]))


if __name__ == "__main__":
    main()
