"""A run in the API: in the list of runs, on its own, and in the live feed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from stabilitybackend.schema.job.about import AboutLine
from stabilitybackend.schema.job.unrecorded import UnrecordedCounts
from stabilitybackend.schema.json_data import Number
from stabilitybackend.schema.severity import Severity, ShownState

#: In the config of an imported run: its log is followed while it grows.
FOLLOWED_KEY = "followed"
#: The same: true for a log without times. Those of its points are synthetic, and so would be speeds and durations.
UNTIMED_KEY = "log_without_times"
#: unreachable: its agent is lost and the cause is unknown. stopped: by hand (Ctrl-C). offline: imported. failed: the
#: server can't compute it; see the note, all else is of before.
RunStatus = Literal[
    "running", "stalled", "finished", "crashed", "preempted", "stopped", "offline", "unreachable", "failed"
]


class StatusFacts(msgspec.Struct, frozen=True):
    """Consequences of a run's status.

    Attributes:
        under_way: its job is at work, or should be.
        ended: no further point is expected.
        over: no job for a command.
    """

    under_way: bool = False
    ended: bool = False
    over: bool = False


#: The one table of statuses, sent with the head of the pages.
STATUSES: Mapping[RunStatus, StatusFacts] = {
    "running": StatusFacts(under_way=True),
    "stalled": StatusFacts(under_way=True),
    "unreachable": StatusFacts(under_way=True),
    "finished": StatusFacts(ended=True, over=True),
    "offline": StatusFacts(ended=True, over=True),
    "crashed": StatusFacts(ended=True),
    "preempted": StatusFacts(ended=True),
    "stopped": StatusFacts(ended=True),
    "failed": StatusFacts(),
}


class Followed(NamedTuple):
    """A run whose log is followed while another job writes it, as its follower stores it in the config.

    Attributes:
        since: end of the initial import, unix seconds: later rows are news. None: not yet. longest_pause_s: between two
            arrivals of new rows, seconds; an alarm at most doubles it.
    """

    since: float | None = None
    longest_pause_s: float = 0.0

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Followed:
        """Return the facts in a config of any content."""
        left = config.get(FOLLOWED_KEY)
        since, pause = (_positive(left.get(key)) for key in cls._fields) if isinstance(left, Mapping) else (None, None)
        return cls(since, pause or 0.0)

    def as_config(self) -> dict[str, float]:
        """Return the form that ``of`` reads."""
        return {key: value for key, value in self._asdict().items() if value is not None}


def _positive(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and 0 < value < math.inf else None


class WorldSize(msgspec.Struct):
    """The number of ranks of a run, and its last change.

    Attributes:
        now: ranks of the newest launch.
        before, since_step: ranks of the last launch with another number, and the first step since; null without one.
        gpus: GPUs in use on the connected nodes, null for none.
    """

    now: int = 1
    before: int | None = None
    since_step: int | None = None
    gpus: int | None = None


class UnreadableReason(msgspec.Struct):
    """Reason for data left out, its count, and its first sender."""

    what: str
    why: str
    count: int
    source: str


class UnreadableCounts(msgspec.Struct):
    """Unusable data from the run's agents.

    Attributes:
        passed_over: events and blocks of points that were left out as a whole.
        defects: those of them that failed on a mistake of the server.
        fields: fields that were left out of events and health reports.
        named: the first 16 reasons.
    """

    passed_over: int = 0
    defects: int = 0
    fields: int = 0
    named: list[UnreadableReason] = []


class WorstIncident(msgspec.Struct):
    """The open incident of a run to read first.

    Attributes:
        since: start, unix seconds. acknowledged: by a person.
        advice: action of its suggestion, such as ``roll_back``; "" without one.
    """

    incident_id: str
    kind: str
    severity: Severity
    title: str
    since: float | None = None
    acknowledged: bool = False
    advice: str = ""


class StoppedBy(msgspec.Struct, kw_only=True):
    """The commanded end of a run.

    Attributes:
        by, reason: of the command. before_step: the first step that did not begin. saved: a checkpoint first.
        time: when all ranks had stopped, unix seconds.
    """

    by: str
    reason: str
    before_step: int | None
    time: float
    saved: bool
    command_id: str

    def text(self) -> str:
        at = "" if self.before_step is None else f" before step {self.before_step:,}"
        reason = f": {self.reason.strip()}" if self.reason.strip() else ""
        return f"Stopped by {self.by}{at}{reason}{'' if reason[-1:] in ('.', '!', '?') else '.'}"


class RunView(msgspec.Struct, kw_only=True):
    """Derived state of a run; the defaults are those of a run without points. Fields: see ``Run``."""

    began: float | None = None
    logged: float | None = None
    status: RunStatus = "unreachable"
    state: ShownState = msgspec.field(default_factory=ShownState)
    note: str = "no points yet"
    note_incident: str | None = None
    last_step: int | None = None
    head: int = 0
    latest: dict[str, Number] = {}
    metric_count: int = 0
    loss_metric: str | None = None
    unwatched: str = ""
    ranks: list[int] = []
    world_size: int = 1
    world: WorldSize = msgspec.field(default_factory=WorldSize)
    agents: int = 0
    twins: bool = False
    open_incidents: int = 0
    worst_incident: WorstIncident | None = None
    rollbacks: int = 0
    undo: int | None = None
    no_rollback: str = ""
    effective_points: int = 0
    dead_points: int = 0
    unreadable: UnreadableCounts = msgspec.field(default_factory=UnreadableCounts)
    unrecorded: UnrecordedCounts = msgspec.field(default_factory=UnrecordedCounts)
    log_notes: list[str] = []
    own_steps: list[str] = []
    stopped: StoppedBy | None = None


class Run(RunView, kw_only=True):
    """One run. Times are unix seconds.

    Attributes:
        config: argument of init().
        tags: short texts for search, of the job or as edited.
        created, updated: first and last report.
        began, logged: first and last row of its ranks, by the clock of the log; null without points.
        status: for programs. state: for display: its worst open incident, else its phase.
        last_step: newest step of the effective timeline.
        head: id of the newest segment of the effective timeline.
        latest: newest values of the first 200 metrics; in lists that of the loss alone.
        metric_count: names of metrics; GET .../metrics has them.
        open_incidents: without those of severity info.
        note: a sentence about its status, "" for none.
        note_incident: the open incident of the note, where one stops the job.
        undo: the discarded segment that undoing its newest rollback returns to; null where that was no command of the
            last day, or the job can't return.
        no_rollback: why it can't be rolled back now, half a sentence; "" for no reason.
        twins: two living processes are the same rank (two jobs under one run id); the note names them.
        loss_metric: the metric watched as the training loss, null for none.
        unwatched: advice where no loss is watched, "" otherwise.
        dead_points: points that a rollback discarded.
        log_notes: sentences about its log: several rows a step, too many names, metrics with their own steps.
        own_steps: metrics that count their own steps, as batches of a validation; at most 64.
        stopped: its commanded end, null for none, or after a new start.
    """

    run_id: str
    project: str
    name: str
    config: dict[str, Any]
    tags: list[str] = []
    created: float
    updated: float


class StoringProblem(msgspec.Struct, frozen=True):
    """A fault of the server that concerns all runs, mostly in storing.

    Attributes:
        code: for programs.
        problem, hint: fault and remedy, for display.
        since: unix seconds.
    """

    code: str
    problem: str
    hint: str
    since: float


#: Names of metrics in the answer for one run.
FIRST_METRICS = 1_000


class RunWithStoring(Run, kw_only=True):
    """A single run.

    Attributes:
        metrics: the first FIRST_METRICS names. storing: null without a fault. about: its facts in a line.
    """

    metrics: list[str]
    storing: StoringProblem | None
    about: AboutLine


class MetricList(msgspec.Struct):
    """Names of metrics of a run, in the order of appearance.

    Attributes:
        total: matches of the search. next: ``after`` of the next page, null on the last one.
    """

    metrics: list[str]
    total: int
    next: int | None


def listed(run: Run) -> Run:
    """Return a run without the values of its metrics but the loss, for lists."""
    loss = run.loss_metric
    return msgspec.structs.replace(run, latest={loss: run.latest[loss]} if loss in run.latest else {})


class RunPage(msgspec.Struct):
    """A page of the list of runs, newest first.

    Attributes:
        total: all runs, on all pages.
        next: ``cursor`` of the next page, null on the last one. Runs are neither repeated nor left out.
    """

    runs: list[Run]
    total: int
    next: str | None
    storing: StoringProblem | None
