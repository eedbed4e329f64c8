"""What stopped the jobs of a server: each interruption, and the table of all."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = [
    "Confidence",
    "Correction",
    "Interruption",
    "InterruptionNumbers",
    "InterruptionRow",
    "Interruptions",
    "JudgedInterruption",
    "Published",
    "RunNames",
    "SetBy",
    "StoppedRun",
    "Visible",
    "What",
]

Visible = Literal["direct", "indirect", "no"]
What = Literal["death", "hang", "stall", "node_lost", "restart"]
Confidence = Literal["high", "medium", "low"]


class SetBy(msgspec.Struct):
    """Who corrected the category of an interruption."""

    who: str
    time: float


class Correction(SetBy, kw_only=True):
    """What a person says that an interruption was, as it is stored."""

    category: str


class RunNames(msgspec.Struct):
    """How a run is called."""

    run_id: str
    name: str = ""
    project: str = ""


class JudgedInterruption(msgspec.Struct, kw_only=True):
    """One stop of a job as the rules judge it and as it is stored: the fields are described at ``Interruption``."""

    id: str
    incident_id: str | None
    incidents: list[str]
    what: What
    since: float
    resumed: float | None
    open: bool
    step: int | None
    resumed_step: int | None
    redone_steps: int
    redone_s: float
    ranks: list[int]
    nodes: list[str]
    gpus: list[str]
    evidence: list[str]
    confidence: Confidence
    unsure: str
    seen_category: str


class Interruption(JudgedInterruption, kw_only=True):
    """One stop of a job, however many incidents report it.

    Attributes:
        since: the last row before. resumed: the first row after, null while there is none.
        counted: false for a stop by hand and for a stall that went on by itself.
        step, resumed_step: of these rows. redone_steps: steps made twice for it.
        gpus: UUIDs. evidence: sentences.
        unsure: what is against the category, "" for nothing.
        seen_category: what the rules say; ``category`` is what counts: a person's word where there is one.
        deleted: its run is gone.
    """

    run_id: str
    run_name: str
    project: str
    category: str
    label: str
    visible: Visible
    counted: bool
    downtime_s: float
    time_lost_s: float
    set_by: SetBy | None
    deleted: bool


class StoppedRun(msgspec.Struct):
    """What is remembered of one run.

    Attributes:
        stretches: when its job ran: began, ended (unix seconds), ranks.
    """

    run: RunNames
    interruptions: list[JudgedInterruption]
    stretches: list[tuple[float, float, int]]
    deleted: bool


class InterruptionRow(msgspec.Struct):
    """A category of the table, in the order of Llama 3's table, then ours.

    Attributes:
        share: of all that count, 0 to 1.
        visible, sees: how far a client can see this cause.
        published, published_share: in Llama 3's table, null for rows of our own.
    """

    category: str
    label: str
    count: int
    share: float
    time_lost_s: float
    visible: Visible
    sees: str
    published: int | None
    published_share: float | None


class Published(msgspec.Struct):
    """Where the published numbers are from."""

    source: str
    count: int
    days: int
    gpus: int
    note: str


class InterruptionNumbers(msgspec.Struct, kw_only=True):
    """The numbers over all interruptions that count.

    Attributes:
        mtbi_s: mean time between interruptions, ``running_s / count``; null without one.
    """

    count: int
    time_lost_s: float
    running_s: float
    gpu_hours: float
    mtbi_s: float | None
    per_1000_gpu_hours: float | None


class Interruptions(InterruptionNumbers, kw_only=True):
    """What stopped the jobs of this server.

    Attributes:
        count: interruptions that count; not_counted: the others.
        mtbi_s: mean time between interruptions, ``running_s / count``; null without one.
        runs: that have an interruption or ran in these days.
        projects: all that have runs here, for a choice.
        interruptions: newest first, at most 500; the numbers are of all.
    """

    days: float | None
    project: str | None
    now: float
    not_counted: int
    runs: int
    projects: list[str]
    interruptions: list[Interruption]
    table: list[InterruptionRow]
    published: Published
