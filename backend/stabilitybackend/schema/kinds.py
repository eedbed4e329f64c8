"""The one table of incident kinds: what each is called, what it is about, and what follows from that.

A further kind is an entry here, or one of ``incident_kinds()`` of a plug-in (``hooks.py``); incidents, advice, plans,
alerts and the pages ask this table and hold none of their own. A kind that is not in it (stored by a newer server, or
of a plug-in that is gone) is shown under words made from its name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import msgspec

from stabilitybackend.base.registering import check_name
from stabilitybackend.schema.runs import STATUSES

#: A launcher that starts a job again has a process at its ``init()`` within it, seconds: torchrun and Kubernetes' first
#: back-off wait up to 10 s, the imports of a large job and its first load take the rest.
RESTART_S = 60.0


About = Literal["model", "data", "process", "gpu", "user"]
Blames = Literal["", "suspect", "known"]


class IncidentKind(msgspec.Struct, frozen=True):
    """What follows from an incident being of one kind.

    Attributes:
        name: as findings, incidents and detectors spell it.
        label: what people read, a few words.
        short: the same within a sentence and where there is little room: no capital, no stop.
        about: what is ill. ``user``: the job itself raised it, so it is an alarm whatever its severity.
        sign: one character, its mark in the health lane below the large chart; "" for one that is not drawn there.
        band: it concerns a stretch of steps, which the charts shade.
        stops_job: it stops the job or the sight of it. Of several open ones the first in the table is the cause.
        status: the run's status that it is the reason for, "" for none.
        blames: its ranks are the ones to blame: as suspects, or known for certain.
        curable: a run goes back for it where that is advised...
        damaging: ... or whatever is advised: what the model learned since the onset is not to be trusted.
        leads: what begins while it lasts is put down to it, and its advice comes first there; it harms no weights.
        by_dataset: one data set may carry it.
        trains: it comes again and again: what follows one like it soon, and is no graver, belongs to that one's train.
        patience_s: it may heal by itself: a receiver is notified when it lasts longer, or comes again and again.
        compared: the newest values are compared with those before its onset.
        settles: where it ends without having come back, its level counts as the usual one since.
        since: what the moment is that it counts from.
        nearby: what it is called where it is named beside another incident, "" where it is not.
        advice: what to do about it, a sentence or two, where no rule of ``incidents/suggest.py`` says more.
    """

    name: str
    label: str
    short: str
    about: About = "model"
    sign: str = ""
    band: bool = True
    stops_job: bool = False
    status: str = ""
    blames: Blames = ""
    curable: bool = False
    damaging: bool = False
    leads: bool = False
    by_dataset: bool = False
    trains: bool = False
    patience_s: float = 0.0
    compared: bool = False
    settles: bool = False
    since: str = "Beginning"
    nearby: str = ""
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


#: All kinds by name, those of the machines first: of them the first cause of a stop is the first here.
KINDS: dict[str, IncidentKind] = {
    kind.name: kind
    for kind in (
        IncidentKind("process_death", "Process death", "process death", "process", sign="×", stops_job=True,
                     status="crashed", blames="known", since="The process ended", nearby="process", trains=True,
                     patience_s=RESTART_S),
        IncidentKind("hang", "Hang", "hang", "process", sign="‖", stops_job=True,
                     status="stalled", blames="suspect", since="Last progress", nearby="process"),
        IncidentKind("agent_lost", "Agent lost", "agent lost", "process", sign="◌", band=False, stops_job=True,
                     status="unreachable", since="Last report of the node", nearby="process"),
        IncidentKind("quiet_log", "Quiet log", "quiet log", "process", sign="…", band=False, status="unreachable",
                     since="Last new value", nearby="process",
                     advice="Check the job where it runs: whether its processes are alive, whether they use their "
                     "GPUs, and whether the disk of the log is full. A long evaluation or save looks the same."),
        IncidentKind("gpu_fault", "GPU fault", "GPU fault", "gpu", sign="▴", band=False, stops_job=True,
                     blames="known", since="First sign", nearby="gpu"),
        IncidentKind("sdc_suspect", "Suspected SDC", "suspected SDC", "gpu", sign="≠", nearby="gpu"),
        IncidentKind("straggler", "Straggler", "straggler", "process", sign="▾", blames="suspect", trains=True,
                     nearby="straggler"),
        IncidentKind("throughput", "Throughput drop", "throughput drop", "process", sign="▾", trains=True,
                     nearby="throughput", settles=True),
        IncidentKind("nonfinite", "NaN or Inf", "NaN or Inf", curable=True, damaging=True, by_dataset=True,
                     compared=True),
        IncidentKind("frozen", "Frozen value", "frozen value", compared=True,
                     advice="Look at one batch: are its labels all masked, is a loss scale or a device returning "
                     "zeros, is the number that is logged the one of this step? What was learned since the onset is "
                     "nothing: correct the cause, and go back to a checkpoint from before it."),
        IncidentKind("divergence", "Divergence", "divergence", curable=True, damaging=True, by_dataset=True,
                     compared=True, settles=True),
        IncidentKind("spike", "Spike", "spike", curable=True, damaging=True, by_dataset=True, compared=True,
                     trains=True),
        IncidentKind("resume_artifact", "Resume artifact", "resume artifact", curable=True, by_dataset=True,
                     trains=True, patience_s=RESTART_S, settles=True),
        IncidentKind("order_not_followed", "Order not followed", "order that was not followed", band=False,
                     since="Rollback"),
        IncidentKind("repeat_data", "Repeated data", "repeated data", "data", curable=True, by_dataset=True,
                     trains=True, patience_s=RESTART_S),
        IncidentKind("shared_data", "Data of another run", "data of another run", "data", band=False),
        IncidentKind("data_mix_drift", "Data mix drift", "data mix drift", "data", curable=True, settles=True,
                     trains=True, patience_s=RESTART_S),
        IncidentKind("learning_rate", "Learning rate", "learning rate off its past", curable=True, leads=True,
                     sign="η", nearby="learning_rate", settles=True),
        IncidentKind("level_shift", "Level shift", "level shift", curable=True, by_dataset=True, compared=True,
                     settles=True),
        IncidentKind("plateau", "Plateau", "plateau"),
        IncidentKind("grad_norm", "Gradient norm", "gradient norm", compared=True, settles=True),
        IncidentKind("metric_jump", "Metric off its past", "metric off its past", compared=True, settles=True,
                     advice="Look at what it measures, and at the loss at the same steps: a change of data, code or "
                     "schedule moves it as well as a fault does."),
        IncidentKind("autopilot_gave_up", "Autopilot gave up", "autopilot that gave up", "user", band=False,
                     since="When it gave up",
                     advice="Open the incident that it is about, and decide: roll back, correct the cause, or stop. "
                     "Acknowledge this one when somebody is at it."),
        IncidentKind("alert", "User alert", "user alert", "user", nearby="alert"),
    )
}  # fmt: skip


#: Fields that are one of a few words -> these words.
_WORDS = {"about": get_args(About), "blames": get_args(Blames), "status": ("", *STATUSES)}


def add(kind: IncidentKind) -> None:
    """Add a kind of a plug-in, before the server starts: pages get the table once.

    Raises:
        TypeError: it is no ``IncidentKind``.
        ValueError: there is one of its name, or a field is not what it may be.
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
    """Refuse what a detector calls its kinds where the table has no such kind. Ask when all plug-ins are loaded.

    Args:
        by: name of the detector's class.

    Raises:
        ValueError: names the kind, and those that there are.
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
    """Return the entry of a kind, one made from its name where the table has none."""
    known = KINDS.get(name)
    if known is not None:
        return known
    words = name.replace("_", " ")
    return IncidentKind(name=name, label=words[:1].upper() + words[1:], short=words)


def kinds_where(holds: Callable[[IncidentKind], object]) -> frozenset[str]:
    """Return the names of the kinds of which something holds."""
    return frozenset(name for name, kind in KINDS.items() if holds(kind))


def served() -> dict[str, dict[str, Any]]:
    """Return the table as JSON-able builtins, by name; under "" what a kind is that is not in it."""
    every = {"": kind_of(""), **KINDS}
    return {name: {**msgspec.to_builtins(kind), "of_machine": kind.of_machine} for name, kind in every.items()}
