"""A run as the API shows it: in the list of runs, on its own, and in the live feed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from stabilitybackend.schema.job.about import AboutLine
from stabilitybackend.schema.job.unrecorded import UnrecordedCounts
from stabilitybackend.schema.json_data import Number
from stabilitybackend.schema.severity import Severity, ShownState

#: In the config of an imported run: its log is followed as it is written.
FOLLOWED_KEY = "followed"
#: The same: true where its log has no times. Those of its points are made up, and so would be all speed and duration.
UNTIMED_KEY = "log_without_times"
#: unreachable: its agent is lost and the cause is unknown. stopped: by hand (Ctrl-C). offline: imported. failed: the
#: server itself can't work it out; the note says at what, and all else is what was known before.
RunStatus = Literal[
    "running", "stalled", "finished", "crashed", "preempted", "stopped", "offline", "unreachable", "failed"
]


class StatusFacts(msgspec.Struct, frozen=True):
    """What follows from a run's status.

    Attributes:
        under_way: its job is at work, or should be.
        ended: no further point is expected.
        over: there is no job that a command could reach.
    """

    under_way: bool = False
    ended: bool = False
    over: bool = False


#: The one table of statuses; pages get it with their head.
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
    """A run whose log is followed while another job writes it, as its follower leaves it in the config.

    Attributes:
        since: when the follower had sent what was there at its start, unix seconds: what comes later is news. None:
            not yet. longest_pause_s: between two arrivals of new rows, seconds; an alarm at most doubles it.
    """

    since: float | None = None
    longest_pause_s: float = 0.0

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Followed:
        """Return what a config has, whatever somebody else may have put there."""
        left = config.get(FOLLOWED_KEY)
        since, pause = (_positive(left.get(key)) for key in cls._fields) if isinstance(left, Mapping) else (None, None)
        return cls(since, pause or 0.0)

    def as_config(self) -> dict[str, float]:
        """Return it as ``of`` reads it."""
        return {key: value for key, value in self._asdict().items() if value is not None}


def _positive(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and 0 < value < math.inf else None


class WorldSize(msgspec.Struct):
    """The number of ranks of a run, and its last change.

    Attributes:
        now: ranks of the newest launch.
        before, since_step: ranks of the last launch with another number, and the first step since; null without one.
        gpus: GPUs in use on the nodes that are connected, null where none is seen.
    """

    now: int = 1
    before: int | None = None
    since_step: int | None = None
    gpus: int | None = None


class UnreadableReason(msgspec.Struct):
    """Why something was left out, how often, and who sent it first."""

    what: str
    why: str
    count: int
    source: str


class UnreadableCounts(msgspec.Struct):
    """What the run's agents sent and the server could not use.

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
    """The open incident of a run that somebody should look at first.

    Attributes:
        since: since when it lasts, unix seconds. acknowledged: somebody looks after it.
        advice: what its suggestion says to do, ``roll_back`` for one; "" without one.
    """

    incident_id: str
    kind: str
    severity: Severity
    title: str
    since: float | None = None
    acknowledged: bool = False
    advice: str = ""


class StoppedBy(msgspec.Struct, kw_only=True):
    """Who ordered the end of a run.

    Attributes:
        by, reason: of the order. before_step: the step that did not begin any more. saved: a checkpoint first.
        time: when all ranks had stopped, unix seconds.
    """

    by: str
    reason: str
    before_step: int | None
    time: float
    saved: bool
    command_id: str

    def text(self) -> str:
        """Return it as a sentence."""
        at = "" if self.before_step is None else f" before step {self.before_step:,}"
        reason = f": {self.reason.strip()}" if self.reason.strip() else ""
        return f"Stopped by {self.by}{at}{reason}{'' if reason[-1:] in ('.', '!', '?') else '.'}"


class RunView(msgspec.Struct, kw_only=True):
    """What a run's points and its job show; the defaults are those of a run without points. Fields: see ``Run``."""

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
        config: what the job gave to init().
        tags: short texts to find it by, of the job or as people changed them.
        created, updated: when it first and last reported.
        began, logged: when its ranks logged first and last, by the clock of the log; null without points.
        status: for programs. state: what people see of it: its worst open incident, else its phase.
        last_step: newest step of the effective timeline.
        head: id of the newest segment of the effective timeline.
        latest: newest values of the first 200 metrics; in lists that of the loss alone.
        metric_count: names of metrics; GET .../metrics has them.
        open_incidents: without those of severity info, which wake nobody.
        note: a sentence about its status, "" where there is nothing to say.
        note_incident: the open incident that it is about, where one stops the job.
        undo: the discarded segment that undoing its newest rollback goes back to; null where that was no command of the
            last day, or the job can't return.
        no_rollback: why nobody can order it back to a checkpoint now, half a sentence; "" where somebody can.
        twins: two living processes are the same rank (two jobs under one run id); the note names them.
        loss_metric: the metric that is watched as the training loss, null where none is.
        unwatched: what to do about that, "" where a loss is watched.
        dead_points: points that a rollback discarded.
        log_notes: sentences about what it logs: several rows a step, too many names, metrics with their own steps.
        own_steps: metrics that count their own steps, as batches of a validation; at most 64.
        stopped: who ordered its end, null where nobody did, or it was started again since.
    """

    run_id: str
    project: str
    name: str
    config: dict[str, Any]
    tags: list[str] = []
    created: float
    updated: float


class StoringProblem(msgspec.Struct, frozen=True):
    """What is wrong with the server, for all of its runs: mostly why nothing is stored.

    Attributes:
        code: for programs.
        problem, hint: what is wrong and what to do, for people.
        since: unix seconds.
    """

    code: str
    problem: str
    hint: str
    since: float


#: Names of metrics in the answer for one run.
FIRST_METRICS = 1_000


class RunWithStoring(Run, kw_only=True):
    """A run asked for by itself.

    Attributes:
        metrics: the first FIRST_METRICS names. storing: null while what comes is stored. about: what it is, in a line.
    """

    metrics: list[str]
    storing: StoringProblem | None
    about: AboutLine


class MetricList(msgspec.Struct):
    """Names of metrics of a run, in the order in which they appeared.

    Attributes:
        total: how many fit the search. next: ``after`` of the next page, null on the last one.
    """

    metrics: list[str]
    total: int
    next: int | None


def listed(run: Run) -> Run:
    """Return a run as lists have it: without the values of its metrics but the loss."""
    loss = run.loss_metric
    return msgspec.structs.replace(run, latest={loss: run.latest[loss]} if loss in run.latest else {})


class RunPage(msgspec.Struct):
    """A page of the list of runs, newest first.

    Attributes:
        total: all runs, on whatever page.
        next: ``cursor`` of the next page, null on the last one. No run comes twice or is left out.
    """

    runs: list[Run]
    total: int
    next: str | None
    storing: StoringProblem | None
