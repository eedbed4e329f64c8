"""What stopped the jobs of a server: each interruption, and the table of all."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["Interruption", "InterruptionRow", "Interruptions", "Published", "SetBy"]

_Visible = Literal["direct", "indirect", "no"]


class SetBy(msgspec.Struct):
    """Who corrected the category of an interruption."""

    who: str
    time: float


class Interruption(msgspec.Struct):
    """One stop of a job, however many incidents tell of it.

    Attributes:
        since: the last row before. resumed: the first row after, null while there is none.
        counted: false for a stop by hand and for a stall that went on by itself.
        step, resumed_step: of these rows. redone_steps: steps made twice for it.
        gpus: UUIDs. evidence: sentences.
        unsure: what speaks against the category, "" for nothing.
        seen_category: what the rules say; ``category`` is what counts: a person's word where there is one.
        deleted: its run is gone.
    """

    id: str
    run_id: str
    run_name: str
    project: str
    incident_id: str | None
    incidents: list[str]
    category: str
    label: str
    visible: _Visible
    since: float
    resumed: float | None
    open: bool
    counted: bool
    what: Literal["death", "hang", "stall", "node_lost", "restart"]
    step: int | None
    resumed_step: int | None
    redone_steps: int
    downtime_s: float
    redone_s: float
    time_lost_s: float
    ranks: list[int]
    nodes: list[str]
    gpus: list[str]
    evidence: list[str]
    confidence: Literal["high", "medium", "low"]
    unsure: str
    seen_category: str
    set_by: SetBy | None
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
    visible: _Visible
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


class Interruptions(msgspec.Struct):
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
    count: int
    not_counted: int
    time_lost_s: float
    running_s: float
    gpu_hours: float
    mtbi_s: float | None
    per_1000_gpu_hours: float | None
    runs: int
    projects: list[str]
    interruptions: list[Interruption]
    table: list[InterruptionRow]
    published: Published
