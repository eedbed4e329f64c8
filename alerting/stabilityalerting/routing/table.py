"""The table of routes: which receivers get an alert, at once or later. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Annotated

import msgspec

__all__ = ["LABELS", "Decision", "Escalation", "Route", "RoutingTable", "fits", "wrong_labels"]

#: What an alert can be matched by.
LABELS = ("run", "project", "kind", "severity", "about", "node", "rank", "dataset", "metric")

#: One pattern or several of which one has to fit: ``*`` and ``?`` as in file names, ``!`` in front for "not".
Patterns = str | int | list[str | int]


class Escalation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whom an alert goes on to.

    Args:
        after_min: minutes since the incident opened, in which nobody acknowledged it and it did not end.
        receivers: names of receivers.
    """

    after_min: Annotated[float, msgspec.Meta(gt=0, le=1440)]
    receivers: Annotated[list[str], msgspec.Meta(min_length=1)]


class Route(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row of the table.

    Args:
        match: label -> patterns; all labels have to fit. Empty: every alert.
        receivers: names of those that get it at once, none for nobody.
        escalate: whom it goes on to.
        goes_on: ``continue`` in YAML: the rows below are looked at too.
    """

    receivers: list[str]
    match: dict[str, Patterns] = {}
    escalate: list[Escalation] = []
    goes_on: bool = msgspec.field(name="continue", default=False)


@dataclass(frozen=True, slots=True)
class Decision:
    """Who gets one alert.

    Args:
        now: names of receivers. later: name -> minutes after which, if nobody acknowledged it.
        routes: places of the rows that fitted, from 0.
    """

    now: frozenset[str]
    later: Mapping[str, float] = field(default_factory=dict)
    routes: tuple[int, ...] = ()


class RoutingTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All routes. The first that fits decides, and those below it as long as they say ``continue``."""

    routes: Annotated[list[Route], msgspec.Meta(min_length=1, max_length=1000)]

    def decide(self, labels: Mapping[str, str]) -> Decision:
        """Return who gets an alert with these labels."""
        now: set[str] = set()
        later: dict[str, float] = {}
        used = []
        for at, route in enumerate(self.routes):
            if not fits(route.match, labels):
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
        """Yield what is wrong with the table: the place, such as ``$.routes[0].match``, and the reason.

        Args:
            receivers: names of those that are set up.
        """
        known = ", ".join(sorted(receivers)) or "none is set up"
        for at, route in enumerate(self.routes):
            place = f"$.routes[{at}]"
            for label in wrong_labels(route.match):
                yield f"{place}.match.{label}", f"no label {label!r}, expected some of {', '.join(LABELS)}"
            named = [(f"{place}.receivers", name) for name in route.receivers]
            for nth, step in enumerate(route.escalate):
                named += [(f"{place}.escalate[{nth}].receivers", name) for name in step.receivers]
            for where, name in named:
                if name not in receivers:
                    yield where, f"no receiver {name!r}, expected some of: {known}"
            if not route.match and not route.goes_on and at + 1 < len(self.routes):
                yield place, "it has no match and no continue, so no route below it is ever used: move it to the end"
        if self.routes[-1].match:
            place = f"$.routes[{len(self.routes) - 1}]"
            yield place, "the last route has a match, so some alerts would reach nobody: add one without a match"


def fits(match: Mapping[str, Patterns], labels: Mapping[str, str]) -> bool:
    """Return whether labels fit all patterns. A label that an alert does not have is the empty text."""
    return all(_fits_one(patterns, labels.get(label, "")) for label, patterns in match.items())


def wrong_labels(match: Mapping[str, Patterns]) -> list[str]:
    """Return the labels of a match that no alert has."""
    return [label for label in match if label not in LABELS]


def _fits_one(patterns: Patterns, value: str) -> bool:
    texts = [str(one) for one in (patterns if isinstance(patterns, list) else [patterns])]
    wanted = [text for text in texts if not text.startswith("!")]
    if any(fnmatchcase(value, text[1:]) for text in texts if text.startswith("!")):
        return False
    return not wanted or any(fnmatchcase(value, text) for text in wanted)
