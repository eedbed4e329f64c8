"""Facts over all runs of a server: interruptions, incidents, costs of rollbacks, search results."""

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
    """Author of a corrected category."""

    who: str
    time: float


class Correction(SetBy, kw_only=True):
    """A person's category of an interruption, as stored."""

    category: str


class RunNames(msgspec.Struct):
    """Names of a run."""

    run_id: str
    name: str = ""
    project: str = ""


class JudgedInterruption(msgspec.Struct, kw_only=True):
    """One stop of a job, judged by the rules, as stored: fields as of ``Interruption``."""

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
        since: the last row before. resumed: the first row after, null before it.
        counted: false for a stop by hand and for a stall that ended by itself.
        downtime_s, time_lost_s: 0 of a stop by hand without a resume.
        step, resumed_step: of these rows. redone_steps: trained again.
        gpus: UUIDs. evidence: sentences.
        unsure: evidence against the category, "" for none.
        seen_category: by the rules; ``category`` is a person's correction where there is one.
        deleted: its run is deleted.
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
    """Remembered facts of one run.

    Attributes:
        stretches: intervals of its job: start, end (unix seconds), ranks.
        gpus: of the job, at most one a rank; null: one a rank.
    """

    run: RunNames
    interruptions: list[JudgedInterruption]
    stretches: list[tuple[float, float, int]]
    deleted: bool
    gpus: int | None = None


class InterruptionRow(msgspec.Struct):
    """A category of the table, in the order of Llama 3's table, then own ones.

    Attributes:
        share: of all that count, 0 to 1.
        visible, sees: visibility of this cause to a client.
        published, published_share: in Llama 3's table, null for own rows.
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
    """Source of the published numbers."""

    source: str
    count: int
    days: int
    gpus: int
    note: str


class InterruptionNumbers(msgspec.Struct, kw_only=True):
    """Numbers over all interruptions that count.

    Attributes:
        running_s: time in which jobs logged. rank_s: the same, of each rank.
        gpu_hours: of GPUs seen by agents.
        mtbi_s: mean time between interruptions, ``running_s / count``; null without one.
        per_1000_gpu_hours: of jobs on GPUs; null for too few hours.
    """

    count: int
    time_lost_s: float
    running_s: float
    rank_s: float
    gpu_hours: float
    mtbi_s: float | None
    per_1000_gpu_hours: float | None


class Interruptions(InterruptionNumbers, kw_only=True):
    """Interruptions of the jobs of this server.

    Attributes:
        count: interruptions that count; not_counted: the others.
        mtbi_s: mean time between interruptions, ``running_s / count``; null without one.
        runs: with an interruption or at work in these days.
        projects: all with runs here.
        down: not ended yet, at any age: newest first, at most 500.
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
    """An incident in the list over all runs; shared fields as of ``ShownIncident``.

    Attributes:
        run_name, project: of its run, now.
        stops_job: of its kind.
        advice: action of its suggestion, "" for none.
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
    """Numbers of incidents.

    Attributes:
        open, recovered, resolved: by state.
        critical, warning, info: of the open ones, by severity.
        alarms: open ones but those of severity info.
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
        incidents: open ones first, by severity, then unacknowledged ones, causes before their effects, those that stop
            a job, newest first; closed ones follow, newest first.
        total: matches of the filters on all pages. counts: matches in any state.
        next: ``cursor`` of the next page, null on the last one. Unchanged incidents are never repeated or left out.
        complete: false while a new server still reads the store.
        left_out: closed incidents dropped beyond the limit; pages of their runs have them.
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
    """Cost of one rollback, as stored; fields as of ``RollbackCost``."""

    segment: int
    created: float
    steps_lost: int
    wall_lost_s: float
    downtime_s: float | None
    gpu_hours_lost: float


class RunRollbacks(msgspec.Struct):
    """Costs of the rollbacks of one run, as stored."""

    run: RunNames
    rollbacks: list[LostToRollback]
    deleted: bool = False


class RollbackSum(msgspec.Struct):
    """Sum over rollbacks. ``gpu_hours_lost``: of discarded steps and of downtime."""

    rollbacks: int = 0
    steps_lost: int = 0
    wall_lost_s: float = 0.0
    downtime_s: float = 0.0
    gpu_hours_lost: float = 0.0


class RollbacksOfRun(RollbackSum, kw_only=True):
    """Costs of the rollbacks of one run. ``last``: time of the newest, unix seconds."""

    run_id: str
    run_name: str
    project: str
    last: float
    deleted: bool


class FleetRollbacks(RollbackSum, kw_only=True):
    """Costs of the rollbacks of all runs.

    Attributes:
        month: since ``month_began``, the first of this month in UTC, unix seconds, for any ``days``.
        runs: largest losses first, at most 500; the numbers are of all. run_count: all.
        unknown: runs with rollbacks whose costs are not computed yet.
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
    """A node, or a GPU of one.

    Attributes:
        node: its host name. gpu: UUID, "" for the node itself.
        run_id, run_name: its last run.
    """

    node: str
    gpu: str
    run_id: str
    run_name: str


class SearchResults(msgspec.Struct):
    """Search results, best first in each list.

    Attributes:
        metrics: names of metrics of the given run.
        incidents: open ones before others.
        complete: as of ``IncidentPage``.
    """

    q: str
    runs: list[FoundRun]
    metrics: list[str]
    incidents: list[FoundIncident]
    machines: list[FoundMachine]
    complete: bool
