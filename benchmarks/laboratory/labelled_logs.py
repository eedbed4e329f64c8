"""Labelled logs: what is known of each, and which places in it an alarm about an event may have.

Labels of public logs are looser than a truth that was made with a twin: there the beginning of a log is not scored,
plateaus are not, any alarm finds an event, and an alarm on what was labelled as quiet is not counted.
"""

from __future__ import annotations

import gzip
import json
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

__all__ = ["AFTERMATH_POINTS", "LASTING_KINDS", "Event", "Labelled", "labels_of", "logs_of", "read_trace"]

#: Points after the onset within which an event must be found.
TOLERANCE = {"spike": 10, "nonfinite": 10}
#: For the others: they develop.
SLOW_TOLERANCE = 50
#: A state rather than an event: it is one only after it has lasted, and worth hearing of while it lasts.
LASTING_KINDS = ("plateau",)
#: Points after an event's end that still belong to it.
AFTERMATH_POINTS = 10
#: Points after it can be seen that an event without an end lasts at most, if it is no lasting state.
LONGEST_POINTS = 500
#: The beginning of a public log that is not scored: one part in so many, at least so many points; fewer in a short log.
UNSCORED_PART, UNSCORED_POINTS, SHORT_LOG_POINTS, SHORT_UNSCORED_POINTS = 20, 50, 200, 20
#: Labels of public logs that an alarm has to find, by kind; others are for people.
PUBLIC_KINDS = ("fast_spike", "slow_spike", "unrecovered_spike", "divergence", "nan", "level_shift", "resume_artifact")
#: What the labels of public logs call the kinds.
_OTHER_NAMES: dict[str, tuple[str, str | None]] = {
    "fast_spike": ("spike", "fast"),
    "slow_spike": ("spike", "slow"),
    "unrecovered_spike": ("spike", "none"),
    "nan": ("nonfinite", None),
    "repeat_data_drop": ("repeat_data", None),
    "grad_spike": ("grad_norm", None),
    "grokking_drop": ("sudden_drop", None),
}


@dataclass(frozen=True)
class Event:
    """What a label says.

    Args:
        kind, recovery, rank, alarm: as in the labels.
        onset: first step of the event. recovered: first step after it, None when it is never over.
        dataset: None for all of them, if ``asks_dataset``.
        began: first step at which an alarm can be about it: the fault was there, its effect not yet. None: the onset.
        visible: first step at which it can be seen, None for the onset: the tolerance counts from there.
        ignore_until: alarms up to this step belong to its aftermath.
        one_point: what is recorded quietly finds it as well.
        excused: nothing has to find it, and an alarm on it is not false either.
        cause: kind that names what was done rather than what came of it: as right as ``kind``.
    """

    kind: str
    onset: int
    recovered: int | None = None
    recovery: str | None = None
    dataset: str | None = None
    asks_dataset: bool = False
    rank: int | None = None
    alarm: bool = True
    began: int | None = None
    visible: int | None = None
    ignore_until: int | None = None
    one_point: bool = False
    excused: bool = False
    cause: str | None = None

    @property
    def first(self) -> int:
        """The first step at which an alarm can be about this event."""
        return self.onset if self.began is None else self.began


@dataclass(frozen=True)
class Labelled:
    """One log and what is known of it.

    Args:
        name: of the log. cluster: logs that resemble each other, for the interval.
        rows: of the primary rank, in the order of the log.
        interval: steps between two rows.
        ignore: (first, last) steps at which an alarm is neither right nor wrong.
        exact: the truth is known, not labelled by eye: every point is scored, plateaus are, and machine kinds and
            non-finite losses are found only under their own name.
    """

    name: str
    cluster: str
    rows: Sequence[dict[str, Any]]
    interval: int
    events: Sequence[Event]
    ignore: Sequence[tuple[int, int]] = ()
    exact: bool = True

    @cached_property
    def steps(self) -> list[int]:
        """The steps in ascending order; a place in them is what tolerances are counted in."""
        return sorted(row["step"] for row in self.rows)

    @property
    def unscored(self) -> int:
        """Points at the beginning that are not scored."""
        points = len(self.rows)
        if self.exact:
            return 0
        long = max(UNSCORED_POINTS, points // UNSCORED_PART)
        return long if points >= SHORT_LOG_POINTS else SHORT_UNSCORED_POINTS

    def place(self, step: int) -> int:
        """Return the place of the first logged point at or after ``step``."""
        return bisect_left(self.steps, step)

    def is_ignored(self, step: int) -> bool:
        """Return whether ``step`` lies in a range of ``ignore``."""
        return any(first <= step <= last for first, last in self.ignore)

    def seen_in_time(self, event: Event, place: int) -> bool:
        """Return whether an alarm at ``place`` finds the event."""
        if event.kind in LASTING_KINDS:
            return self.covers(event, place)
        latest = self._seen_from(event) + TOLERANCE.get(event.kind, SLOW_TOLERANCE)
        return self.place(event.first) - 1 <= place <= latest

    def covers(self, event: Event, place: int) -> bool:
        """Return whether an alarm at ``place`` speaks of the event, in time or not."""
        if event.recovered is None:
            last = len(self.rows) - 1
            end = last if event.kind in LASTING_KINDS else min(last, self._seen_from(event) + LONGEST_POINTS)
        else:
            end = self.place(event.recovered)
        later = -1 if event.ignore_until is None else self.place(event.ignore_until)
        return self.place(event.first) - 1 <= place <= max(end + AFTERMATH_POINTS, later)

    def _seen_from(self, event: Event) -> int:
        return self.place(event.onset if event.visible is None else event.visible)


def logs_of(folder: Path) -> Iterator[tuple[Path, Labelled]]:
    """Yield the labelled logs of a folder: ``labels.json`` with ``<name>.jsonl.gz``, or logs with a truth beside them.

    Raises:
        SystemExit: there are none.
    """
    labels = folder / "labels.json"
    found = False
    if labels.exists():
        for name, label in json.loads(labels.read_text()).items():
            found = True
            if label.get("cls") == "exclude":
                continue
            path = folder / f"{name}.jsonl.gz"
            yield path, _labelled(name, name.split("-")[0], path, label)
    for truth in sorted(folder.glob("*.truth.json")):
        name = truth.name.removesuffix(".truth.json")
        found = True
        path = next(path for path in (folder / f"{name}.jsonl", folder / f"{name}.jsonl.gz") if path.exists())
        yield path, read_trace(path)
    if not found:
        raise SystemExit(f"{folder} has neither labels.json nor *.truth.json, expected one of them")


def read_trace(path: Path) -> Labelled:
    """Return a log of the laboratory with the truth that lies beside it."""
    name = path.name.removesuffix(".gz").removesuffix(".jsonl")
    label = json.loads((path.parent / f"{name}.truth.json").read_text())
    return _labelled(name, label["fault"], path, label)


def _labelled(name: str, cluster: str, path: Path, label: dict[str, Any]) -> Labelled:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        rows = [row for row in map(json.loads, lines) if not row.get("rank")]
    ignore = [(first, last) for first, last in label.get("ignore", [])]
    return Labelled(name, cluster, rows, label["log_interval"], labels_of(label), ignore, exact="events" in label)


def labels_of(label: dict[str, Any]) -> list[Event]:
    """Return the events of a label of public logs, or of a laboratory truth."""
    if "events" in label:
        return [
            Event(
                event["kind"],
                event["onset_step"],
                event["recovered_step"],
                event["recovery"],
                event["dataset"],
                event["kind"] in ("spike", "level_shift"),
                event["rank"],
                event["alarm"],
                event["injected_step"],
                event["visible_step"],
                event["ignore_until"],
                event["kind"] == "spike" and event["points"] == 1,
                cause=event.get("cause"),
            )
            for event in label["events"]
        ]
    events = []
    for anomaly in label["anomalies"]:
        points = anomaly.get("n_points")
        if anomaly["kind"] not in PUBLIC_KINDS or points == 0:
            continue
        kind, recovery = _OTHER_NAMES.get(anomaly["kind"], (anomaly["kind"], None))
        asked = anomaly["alarm"] and anomaly.get("metric", "loss") == "loss"
        end = anomaly.get("recovered_step")
        onset = anomaly["onset_step"]
        events.append(Event(kind, onset, end, recovery, alarm=asked, one_point=points == 1, excused=not asked))
    return events
