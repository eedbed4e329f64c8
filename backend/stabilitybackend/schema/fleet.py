"""What is known over all runs of a server: interruptions, incidents, what rollbacks cost, what a search finds."""

from __future__ import annotations

from typing import Literal

import msgspec

from stabilitybackend.schema.incidents import State
from stabilitybackend.schema.kinds import About
from stabilitybackend.schema.severity import IncidentStatus, Severity

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
        downtime_s, time_lost_s: 0 of a stop by hand that nobody went on from: nothing waits there.
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
        gpus: of the job, at most one a rank; null where an older server stored it: then one a rank.
    """

    run: RunNames
    interruptions: list[JudgedInterruption]
    stretches: list[tuple[float, float, int]]
    deleted: bool
    gpus: int | None = None


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
        running_s: time in which jobs logged. rank_s: the same, of each rank.
        gpu_hours: of the GPUs that agents saw: none of a machine without.
        mtbi_s: mean time between interruptions, ``running_s / count``; null without one.
        per_1000_gpu_hours: of the jobs on GPUs; null where they ran for too few hours to say.
    """

    count: int
    time_lost_s: float
    running_s: float
    rank_s: float
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
        down: those that have not ended, whenever they began: newest first, at most 500.
        interruptions: newest first, at most 500; the numbers are of all.
    """

    days: float | None
    project: str | None
    now: float
    not_counted: int
    runs: int
    projects: list[str]
    down: list[Interruption]
    interruptions: list[Interruption]
    table: list[InterruptionRow]
    published: Published


class ListedIncident(msgspec.Struct, frozen=True, kw_only=True):
    """An incident as the list over all runs has it; the fields that it shares are described at ``ShownIncident``.

    Attributes:
        run_name, project: of its run, as it is called now.
        stops_job: its kind is one that stops a job.
        advice: what is advised, "" for nothing.
    """

    run_id: str
    run_name: str
    project: str
    incident_id: str
    kind: str
    label: str
    about: About
    stops_job: bool
    severity: Severity
    state: State
    status: IncidentStatus
    since: float
    alarm: bool
    dead: bool
    title: str
    metric: str | None
    dataset: str | None
    rank: int | None
    node: str | None
    onset_step: int
    step: int
    opened: float
    updated: float
    resolved: float | None
    acknowledged_by: str | None
    acknowledged: float | None
    train: str
    nth: int
    caused_by: str
    advice: str
    version: int


class IncidentCounts(msgspec.Struct):
    """How many incidents there are.

    Attributes:
        open, recovered, resolved: by their state.
        critical, warning, info: of the open ones, by severity.
        alarms: open ones that people are to look at: all but those of severity info.
        unacknowledged: of the alarms.
    """

    open: int = 0
    recovered: int = 0
    resolved: int = 0
    critical: int = 0
    warning: int = 0
    info: int = 0
    alarms: int = 0
    unacknowledged: int = 0


class IncidentPage(msgspec.Struct):
    """A page of the incidents of all runs.

    Attributes:
        incidents: open ones first, by severity, of equals those that nobody acknowledged, then causes before what
            follows from them, then those that stop a job, newest first; those that are over come after, newest first.
        total: that fit the filters, on whatever page. counts: that fit them, whatever their state.
        next: ``cursor`` of the next page, null on the last one. None that stays as it is comes twice or is left out.
        complete: false while a server that has just started still reads what is stored.
        left_out: incidents that are over and were dropped here since there are too many; their runs' pages have them.
        now: unix seconds by the server's clock.
    """

    incidents: list[ListedIncident]
    total: int
    counts: IncidentCounts
    next: str | None
    complete: bool
    left_out: int
    now: float


class LostToRollback(msgspec.Struct):
    """What one rollback cost, as it is remembered; the fields are described at ``RollbackCost``."""

    segment: int
    created: float
    steps_lost: int
    wall_lost_s: float
    downtime_s: float | None
    gpu_hours_lost: float


class RunRollbacks(msgspec.Struct):
    """What the rollbacks of one run cost, as it is remembered."""

    run: RunNames
    rollbacks: list[LostToRollback]
    deleted: bool = False


class RollbackSum(msgspec.Struct):
    """What some rollbacks cost together. ``gpu_hours_lost``: of the time of discarded steps and of the downtime."""

    rollbacks: int = 0
    steps_lost: int = 0
    wall_lost_s: float = 0.0
    downtime_s: float = 0.0
    gpu_hours_lost: float = 0.0


class RollbacksOfRun(RollbackSum, kw_only=True):
    """What the rollbacks of one run cost. ``last``: when it went back last, unix seconds."""

    run_id: str
    run_name: str
    project: str
    last: float
    deleted: bool


class FleetRollbacks(RollbackSum, kw_only=True):
    """What the rollbacks of all runs cost.

    Attributes:
        month: those since ``month_began``, the first of this month in UTC, unix seconds, whatever ``days`` says.
        runs: those that lost most first, at most 500; the numbers are of all. run_count: how many there are.
        unknown: runs with rollbacks whose costs are not worked out yet; a server that was updated does so one by one.
    """

    days: float | None
    project: str | None
    now: float
    month: RollbackSum
    month_began: float
    runs: list[RollbacksOfRun]
    run_count: int
    unknown: int


class FoundRun(msgspec.Struct):
    """A run that a search found."""

    run_id: str
    name: str
    project: str
    created: float


class FoundIncident(msgspec.Struct):
    """An incident that a search found, with the name of its run."""

    run_id: str
    run_name: str
    incident_id: str
    label: str
    title: str
    severity: Severity
    state: State


class FoundMachine(msgspec.Struct):
    """A node, or a GPU of one, that a search found.

    Attributes:
        node: its host name. gpu: UUID, "" for the node itself.
        run_id, run_name: the run that it was in last.
    """

    node: str
    gpu: str
    run_id: str
    run_name: str


class Found(msgspec.Struct):
    """What a search found, best first in each list.

    Attributes:
        metrics: names of metrics of the run that was given.
        incidents: open ones before others.
        complete: as at ``IncidentPage``.
    """

    q: str
    runs: list[FoundRun]
    metrics: list[str]
    incidents: list[FoundIncident]
    machines: list[FoundMachine]
    complete: bool
