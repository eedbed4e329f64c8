"""What people read of data that another run had: a note, or an alarm where the weights have learned from it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from stabilitybackend.judging.detectors.engine.base import Finding, State
from stabilitybackend.schema.evidence import BY_OTHER_RUNS, SHARED_DATA, SharedDataFacts
from stabilitybackend.schema.incidents import Incident
from stabilityplugins.other_runs.search import Place, Stretch

__all__ = ["Origin", "alarm", "note", "origin_of", "over"]

#: Where a run says which weights it began with: the key of its config, spelled as W&B's argument of ``init``.
ORIGIN_KEY = "fork_from"
_ORIGIN = re.compile(r"(?P<run>[A-Za-z0-9][A-Za-z0-9._-]*)\?_step=(?P<step>\d{1,15})")


class Origin(NamedTuple):
    """The run and its step whose weights another run began with."""

    run: str
    step: int


def origin_of(config: Mapping[str, Any]) -> Origin | None:
    """Return what a run declares that it goes on from, None where that is nothing that can be read.

    Example:
        >>> origin_of({"fork_from": "base-7b?_step=12000"})
        Origin(run='base-7b', step=12000)
    """
    found = _ORIGIN.fullmatch(str(config.get(ORIGIN_KEY, "")))
    return None if found is None else Origin(found["run"], int(found["step"]))


def note(place: Place, stretch: Stretch, name: str, now_step: int) -> Finding:
    """Return what is said once of a run that has the data of another one; it wakes nobody.

    Args:
        name: of the other run. now_step: newest step.
    """
    offset = stretch.first - stretch.other
    known = _facts(place, stretch, name, None)
    text = f"Since step {stretch.first:,} this run reads what run {name} read"
    if offset:
        text += f" since its step {stretch.other:,}, in its order. If its weights come from that run, they have learned"
        text += " this data already: say so with config fork_from, and it is an alarm."
    else:
        text += " at the same steps, in its order: their curves can be compared point by point."
    title = f"The data of run {name} since step {stretch.first}"
    return _finding(SHARED_DATA, f"{BY_OTHER_RUNS}:note", "resolved", "info", title, f"{text} {_how(place)}",
                    stretch, now_step, known)  # fmt: skip


def alarm(place: Place, stretch: Stretch, name: str, now_step: int, origin: Origin) -> Finding:
    """Return what is said of a run that gets the data again that its weights have learned in another run."""
    known = _facts(place, stretch, name, origin.step)
    text = f"The run says that it goes on from step {origin.step:,} of run {name}, and since step {stretch.first:,} it"
    text += f" reads what that run read since its step {stretch.other:,}, in its order: the weights have learned this"
    text += f" data. {_how(place)} Is the loader's place part of the checkpoint, and loaded?"
    title = f"The data of run {name} is fed again since step {stretch.first}"
    key = f"{BY_OTHER_RUNS}:{place.run}:{place.shift}"
    return _finding("repeat_data", key, "open", "warning", title, text, stretch, now_step, known)


def over(incident: Incident, now_step: int) -> Finding:
    """Return that an alarm is over: other data is read now."""
    fields = {name: getattr(incident, name) for name in Finding.__dataclass_fields__}
    text = incident.text + f" It ended before step {now_step:,}."
    return replace(Finding(**fields), state="recovered", now_step=now_step, recovered_step=now_step, text=text)


def _how(place: Place) -> str:
    return "Their batch ids are equal." if place.by == "ids" else f"Found by the losses alone (r = {place.r:.2f})."


def _facts(place: Place, stretch: Stretch, name: str, from_step: int | None) -> SharedDataFacts:
    return SharedDataFacts(
        place.run, name, stretch.other, place.by, round(place.r, 3), place.shift, stretch.first - stretch.other,
        from_step,
    )  # fmt: skip


def _finding(
    kind: str, key: str, state: State, severity: Any, title: str, text: str, stretch: Stretch, now_step: int,
    known: SharedDataFacts,
) -> Finding:  # fmt: skip
    return Finding(
        BY_OTHER_RUNS, key, kind, state, severity, title, text, stretch.first, now_step, now_step,
        score=known.r, evidence=msgspec.to_builtins(known),
    )  # fmt: skip
