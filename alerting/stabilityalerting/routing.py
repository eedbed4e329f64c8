"""Routes, escalations and mutes: which receivers get an alert, now or later. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Annotated

import msgspec

from .alert import Alert

__all__ = ["LABELS", "Decision", "Escalation", "Mute", "Route", "RoutingTable", "Rules", "labels_of", "wrong_labels"]

#: Labels of an alert that routes and mutes match.
LABELS = ("run", "project", "kind", "severity", "about", "node", "rank", "dataset", "metric")

#: One pattern, or several of which one has to match: ``*`` and ``?`` as in file names, ``!`` in front for "not".
Patterns = str | int | list[str | int]


class Escalation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Receivers of an alert that stays open without acknowledgement.

    Args:
        after_min: minutes since the incident opened.
        receivers: names of receivers.
    """

    after_min: Annotated[float, msgspec.Meta(gt=0, le=1440)]
    receivers: Annotated[list[str], msgspec.Meta(min_length=1)]


class Route(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row of the table.

    Args:
        match: label -> patterns, of which all have to match. Empty: every alert.
        receivers: names of the receivers that get it without delay.
        goes_on: ``continue`` in YAML: evaluate the rows below too.
    """

    receivers: list[str]
    match: dict[str, Patterns] = {}
    escalate: list[Escalation] = []
    goes_on: bool = msgspec.field(name="continue", default=False)


@dataclass(frozen=True, slots=True)
class Decision:
    """Receivers of one alert.

    Args:
        now: names of receivers. later: name -> minutes of an escalation.
        routes: positions of the matching rows, from 0.
    """

    now: frozenset[str]
    later: Mapping[str, float] = field(default_factory=dict)
    routes: tuple[int, ...] = ()


class RoutingTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All routes. The first match decides, and those below it as long as they ``continue``."""

    routes: Annotated[list[Route], msgspec.Meta(min_length=1, max_length=1000)]

    def decide(self, labels: Mapping[str, str]) -> Decision:
        """Return the receivers of an alert with these labels."""
        now: set[str] = set()
        later: dict[str, float] = {}
        used = []
        for at, route in enumerate(self.routes):
            if not _matches(route.match, labels):
                continue
            used.append(at)
            now.update(route.receivers)
            for step in route.escalate:
                for name in step.receivers:
                    later[name] = min(step.after_min, later.get(name, step.after_min))
            if not route.goes_on:
                break
        return Decision(frozenset(now), {name: at for name, at in later.items() if name not in now}, tuple(used))

    def problems(self, receivers: Collection[str]) -> Iterator[tuple[str, str]]:
        """Yield the location of each mistake in the table, such as ``$.routes[0].match``, and its description.

        Args:
            receivers: names of the configured receivers.
        """
        configured = ", ".join(sorted(receivers)) or "none is set up"
        for at, route in enumerate(self.routes):
            location = f"$.routes[{at}]"
            for label in wrong_labels(route.match):
                yield f"{location}.match.{label}", f"no label {label!r}, expected some of {', '.join(LABELS)}"
            named = [(f"{location}.receivers", name) for name in route.receivers]
            for nth, step in enumerate(route.escalate):
                named += [(f"{location}.escalate[{nth}].receivers", name) for name in step.receivers]
            for where, name in named:
                if name not in receivers:
                    yield where, f"no receiver {name!r}, expected some of: {configured}"
            if not route.match and not route.goes_on and at + 1 < len(self.routes):
                yield location, "it has no match and no continue, so no route below it is ever used: move it to the end"
        if self.routes[-1].match:
            location = f"$.routes[{len(self.routes) - 1}]"
            yield location, "the last route has a match, so some alerts would reach nobody: add one without a match"


class Mute(msgspec.Struct, frozen=True):
    """Alerts without receivers for a while, such as during maintenance.

    Args:
        match: label -> patterns, as in a route.
        owner: its author. reason: for display.
        starts, ends: unix seconds. Incidents still open at the end are sent then.
    """

    mute_id: str
    match: dict[str, Patterns]
    owner: str
    reason: str
    starts: float
    ends: float

    def covers(self, labels: Mapping[str, str], now: float) -> bool:
        """Return whether an alert is muted now."""
        return self.starts <= now < self.ends and _matches(self.match, labels)


@dataclass(frozen=True, slots=True)
class Rules:
    """Current routes and mutes.

    Args:
        table: None where there are no routes: every receiver gets everything.
    """

    table: RoutingTable | None = None
    mutes: tuple[Mute, ...] = ()

    def muted(self, alert: Alert, now: float) -> Mute | None:
        """Return the mute that covers an alert, of several the one that ends last."""
        labels = labels_of(alert)
        covering = [mute for mute in self.mutes if mute.covers(labels, now)]
        return max(covering, key=lambda mute: mute.ends, default=None)


def labels_of(alert: Alert) -> dict[str, str]:
    """Return the labels that an alert has."""
    found = {
        "run": alert.run_id,
        "project": alert.project,
        "kind": alert.kind,
        "severity": alert.severity,
        "about": alert.about,
        "node": alert.node,
        "rank": alert.rank,
        "dataset": alert.dataset,
        "metric": alert.metric,
    }
    return {label: str(value) for label, value in found.items() if value not in (None, "")}


def wrong_labels(match: Mapping[str, Patterns]) -> list[str]:
    """Return the labels of a match that no alert has."""
    return [label for label in match if label not in LABELS]


def _matches(match: Mapping[str, Patterns], labels: Mapping[str, str]) -> bool:
    """Return whether labels match all patterns. A label that an alert does not have is the empty text."""
    return all(_matches_one(patterns, labels.get(label, "")) for label, patterns in match.items())


def _matches_one(patterns: Patterns, value: str) -> bool:
    texts = [str(one) for one in (patterns if isinstance(patterns, list) else [patterns])]
    wanted = [text for text in texts if not text.startswith("!")]
    if any(fnmatchcase(value, text[1:]) for text in texts if text.startswith("!")):
        return False
    return not wanted or any(fnmatchcase(value, text) for text in wanted)
