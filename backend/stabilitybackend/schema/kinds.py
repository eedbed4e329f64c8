"""The one table of incident kinds: labels, subjects and consequences.

A new kind is an entry here, or one of ``incident_kinds()`` of a plug-in (``hooks.py``). Unlisted kinds (of a newer
server or a removed plug-in) get a label made from their name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import msgspec

from stabilitybackend.base.registering import check_name
from stabilitybackend.schema.runs import STATUSES

#: Longest time from a relaunch to ``init()``, seconds: torchrun and Kubernetes' first back-off wait up to 10 s, imports
#: and first load of a large job take the rest.
RESTART_S = 60.0


About = Literal["model", "data", "process", "gpu", "user"]
Blame = Literal["", "suspect", "known"]


class IncidentKind(msgspec.Struct, frozen=True):
    """Properties of a kind of incident.

    Attributes:
        name: as findings, incidents and detectors spell it.
        label: a few words for titles. short: the same within a sentence: no capital, no stop.
        about: the affected part. ``user``: raised by the job itself, so an alarm at any severity.
        sign: one character, its mark in the health lane below the large chart; "" for none.
        band: it spans steps, which the charts shade.
        stops_job: it stops the job or the view of it. Of several open ones the first in the table is the cause.
        status: status of a run with an open one, "" for no own status.
        blame: whether its ranks are culprits: suspects, or certain.
        rollback_helps: a rollback is the answer where it is advised...
        damages_weights: ... or without advice: weights since the onset are suspect.
        root_cause: incidents that begin while it lasts follow from it, and its advice comes first; no harm to weights.
        by_dataset: one data set may carry it.
        recurring: it repeats: a similar one soon after, no graver, joins the train of the first.
        patience_s: it may heal by itself: receivers are notified after this time, or when it repeats.
        compared: the newest values are compared with those before its onset.
        becomes_usual: its level counts as usual where it ends without recovery.
        since: label of the moment it counts from.
        nearby_label: label among other incidents, "" to leave it out there.
        advice: a sentence or two, used where ``incidents/suggest.py`` has no rule for the kind.
    """

    name: str
    label: str
    short: str
    about: About = "model"
    sign: str = ""
    band: bool = True
    stops_job: bool = False
    status: str = ""
    blame: Blame = ""
    rollback_helps: bool = False
    damages_weights: bool = False
    root_cause: bool = False
    by_dataset: bool = False
    recurring: bool = False
    patience_s: float = 0.0
    compared: bool = False
    becomes_usual: bool = False
    since: str = "Beginning"
    nearby_label: str = ""
    advice: str = ""

    @property
    def of_machine(self) -> bool:
        """About processes and machines: a rollback of the model neither undoes nor cures it."""
        return self.about in ("process", "gpu")


class ServedKind(IncidentKind, frozen=True, kw_only=True):
    """A kind as the API and the pages have it."""

    of_machine: bool


class IncidentKinds(msgspec.Struct):
    """All kinds of incidents."""

    kinds: list[ServedKind]


#: By name, machines first: the first of several open ones is the cause of a stop.
KINDS: dict[str, IncidentKind] = {
    kind.name: kind
    for kind in (
        IncidentKind("process_death", "Process death", "process death", "process", sign="×", stops_job=True,
                     status="crashed", blame="known", since="The process ended", nearby_label="process", recurring=True,
                     patience_s=RESTART_S),
        IncidentKind("hang", "Hang", "hang", "process", sign="‖", stops_job=True,
                     status="stalled", blame="suspect", since="Last progress", nearby_label="process"),
        IncidentKind("agent_lost", "Agent lost", "agent lost", "process", sign="◌", band=False, stops_job=True,
                     status="unreachable", since="Last report of the node", nearby_label="process"),
        IncidentKind("quiet_log", "Quiet log", "quiet log", "process", sign="…", band=False, status="unreachable",
                     since="Last new value", nearby_label="process",
                     advice="Check the job where it runs: whether its processes are alive, whether they use their "
                     "GPUs, and whether the disk of the log is full. A long evaluation or save looks the same."),
        IncidentKind("gpu_fault", "GPU fault", "GPU fault", "gpu", sign="▴", band=False, stops_job=True,
                     blame="known", since="First sign", nearby_label="gpu"),
        IncidentKind("sdc_suspect", "Suspected SDC", "suspected SDC", "gpu", sign="≠", nearby_label="gpu"),
        IncidentKind("straggler", "Straggler", "straggler", "process", sign="▾", blame="suspect", recurring=True,
                     nearby_label="straggler"),
        IncidentKind("throughput", "Throughput drop", "throughput drop", "process", sign="▾", recurring=True,
                     nearby_label="throughput", becomes_usual=True),
        IncidentKind("nonfinite", "NaN or Inf", "NaN or Inf", rollback_helps=True, damages_weights=True,
                     by_dataset=True, compared=True),
        IncidentKind("frozen", "Frozen value", "frozen value", compared=True,
                     advice="Look at one batch: are its labels all masked, is a loss scale or a device returning "
                     "zeros, is the number that is logged the one of this step? What was learned since the onset is "
                     "nothing: correct the cause, and go back to a checkpoint from before it."),
        IncidentKind("divergence", "Divergence", "divergence", rollback_helps=True, damages_weights=True,
                     by_dataset=True, compared=True, becomes_usual=True),
        IncidentKind("spike", "Spike", "spike", rollback_helps=True, damages_weights=True, by_dataset=True,
                     compared=True, recurring=True),
        IncidentKind("resume_artifact", "Resume artifact", "resume artifact", rollback_helps=True, by_dataset=True,
                     recurring=True, patience_s=RESTART_S, becomes_usual=True),
        IncidentKind("order_not_followed", "Order not followed", "order that was not followed", band=False,
                     since="Rollback"),
        IncidentKind("repeat_data", "Repeated data", "repeated data", "data", rollback_helps=True, by_dataset=True,
                     recurring=True, patience_s=RESTART_S),
        IncidentKind("shared_data", "Data of another run", "data of another run", "data", band=False),
        IncidentKind("data_mix_drift", "Data mix drift", "data mix drift", "data", rollback_helps=True,
                     becomes_usual=True, recurring=True, patience_s=RESTART_S),
        IncidentKind("learning_rate", "Learning rate", "learning rate off its past", rollback_helps=True,
                     root_cause=True, sign="η", nearby_label="learning_rate", becomes_usual=True),
        IncidentKind("level_shift", "Level shift", "level shift", rollback_helps=True, by_dataset=True, compared=True,
                     becomes_usual=True),
        IncidentKind("plateau", "Plateau", "plateau"),
        IncidentKind("grad_norm", "Gradient norm", "gradient norm", compared=True, becomes_usual=True),
        IncidentKind("metric_jump", "Metric off its past", "metric off its past", compared=True, becomes_usual=True,
                     advice="Look at what it measures, and at the loss at the same steps: a change of data, code or "
                     "schedule moves it as well as a fault does."),
        IncidentKind("autopilot_gave_up", "Autopilot gave up", "autopilot that gave up", "user", band=False,
                     since="When it gave up",
                     advice="Open the incident that it is about, and decide: roll back, correct the cause, or stop. "
                     "Acknowledge this one when somebody is at it."),
        IncidentKind("alert", "User alert", "user alert", "user", nearby_label="alert"),
    )
}  # fmt: skip


#: Field -> allowed values.
_WORDS = {"about": get_args(About), "blame": get_args(Blame), "status": ("", *STATUSES)}


def add(kind: IncidentKind) -> None:
    """Add a kind of a plug-in, before the server starts.

    Raises:
        TypeError: not an ``IncidentKind``.
        ValueError: a duplicate name, or an invalid field.
    """
    if not isinstance(kind, IncidentKind):
        raise TypeError(f"incident_kinds() gives {kind!r}, expected an IncidentKind")
    check_name("an incident kind", kind.name, KINDS)
    for field in msgspec.structs.fields(IncidentKind):
        value, words = getattr(kind, field.name), _WORDS.get(field.name)
        if words:
            good, expected = value in words, f"one of {', '.join(map(repr, words))}"
        elif field.type is bool:
            good, expected = isinstance(value, bool), "True or False"
        elif field.type is float:
            good, expected = isinstance(value, int | float) and 0 <= value < math.inf, "seconds"
        elif field.name == "sign":
            good, expected = isinstance(value, str) and len(value) <= 1, "one character, or none"
        else:
            good, expected = isinstance(value, str) and bool(value or not field.required), "text"
        if not good:
            raise ValueError(f"incident kind {kind.name!r} has {field.name}={value!r}, expected {expected}")
    KINDS[kind.name] = kind


def check_named(kinds: Sequence[str], by: str) -> None:
    """Check a detector's kinds against the table. Call it when all plug-ins are loaded.

    Args:
        by: name of the detector's class.

    Raises:
        ValueError: an unlisted kind.
    """
    if isinstance(kinds, str) or not kinds:
        raise ValueError(f"{by}.kinds is {kinds!r}, expected a tuple of names, as in ('spike',)")
    unknown = [name for name in kinds if name not in KINDS]
    if unknown:
        raise ValueError(
            f"{by}.kinds names {unknown[0]!r}, expected one of {', '.join(KINDS)}, or one of "
            "incident_kinds() of a plug-in"
        )


def kind_of(name: str) -> IncidentKind:
    """Return the entry of a kind, made from its name where the table has none."""
    known = KINDS.get(name)
    if known is not None:
        return known
    words = name.replace("_", " ")
    return IncidentKind(name=name, label=words[:1].upper() + words[1:], short=words)


def kinds_where(holds: Callable[[IncidentKind], object]) -> frozenset[str]:
    """Return the names of the kinds that satisfy a predicate."""
    return frozenset(name for name, kind in KINDS.items() if holds(kind))


def served() -> dict[str, dict[str, Any]]:
    """Return the table as JSON-able builtins, by name; under "" the entry of an unlisted kind."""
    every = {"": kind_of(""), **KINDS}
    return {name: {**msgspec.to_builtins(kind), "of_machine": kind.of_machine} for name, kind in every.items()}
