"""Who would get an alert: the stages that a real one passes, with what came of it in words. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from .alert import Alert
from .notification_log import Record
from .routing.rules import Rules
from .sink import Sink
from .stages import Job, run_stages

__all__ = ["Preview", "who_gets"]


@dataclass(frozen=True, slots=True)
class Preview:
    """What becomes of one alert at one receiver.

    Args:
        receiver: its name.
        gets: ``now``, ``later`` (if nobody acknowledges it) or ``no``.
        after_min: minutes after which it gets it later.
        why: in words.
    """

    receiver: str
    gets: Literal["now", "later", "no"]
    after_min: float | None
    why: str


def who_gets(alert: Alert, sinks: Iterable[Sink], rules: Rules, now: float) -> list[Preview]:
    """Return for each receiver what it would get if this incident opened now, with nobody looking after it."""
    opened = replace(alert, state="open", opened=now, acknowledged_by="", train="", nth=1, notify_at=0.0)
    return [_at(opened, sink, rules, now) for sink in sinks]


def _at(alert: Alert, sink: Sink, rules: Rules, now: float) -> Preview:
    job = Job(alert, sink, Record(), rules=rules, now=now)
    outcome = run_stages(job)
    if outcome is None:
        return Preview(sink.name, "now", None, "")
    if outcome == "not_yet" and job.again is not None:
        after_min = round((job.again - now) / 60, 3)
        return Preview(sink.name, "later", after_min, f"after {after_min:g} min if nobody has acknowledged it")
    why = outcome
    if outcome == "muted":
        mute = rules.muted(alert, now)
        assert mute is not None
        why = f"muted by {mute.owner}: {mute.reason}"
    elif outcome == "below_min_severity":
        why = f"{alert.severity} is below its least severity, {sink.min_severity}"
    elif outcome == "no_route":
        why = "no route leads to it"
    elif outcome == "info_only":
        why = "information only: it is on the page and is never sent"
    return Preview(sink.name, "no", None, why)
