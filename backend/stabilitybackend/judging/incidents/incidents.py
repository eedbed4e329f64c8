"""The incidents of one run: one per real event, with advice and history, made from findings.

Pure: no I/O and no clock; the worker stores the results. Incidents are frozen, changes make new ones. They hold all
state needed after a restart.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

from msgspec.structs import replace

from stabilitybackend.judging.detectors.engine.base import SEVERITIES, Finding
from stabilitybackend.judging.incidents.affecting import (
    affects_weights,
    interval_of,
    marked_by_rate,
    rates_of,
    rates_off_at,
)
from stabilitybackend.judging.incidents.rollback_target import Usable
from stabilitybackend.judging.incidents.suggest import suggest
from stabilitybackend.judging.incidents.suggestion import JobNow
from stabilitybackend.lineage.changes import LineageEvent
from stabilitybackend.schema.evidence import (
    DeathFacts,
    GpuFaultFacts,
    LostAgentsFacts,
    MessageFacts,
    StragglerFacts,
    facts,
)
from stabilitybackend.schema.incidents import Incident, RolledBack
from stabilitybackend.schema.json_data import TEXT_CHARS, json_number
from stabilitybackend.schema.kinds import KINDS, kind_of
from stabilitybackend.schema.runs import WorstIncident
from stabilitybackend.schema.severity import NotBack

__all__ = ["IncidentBook", "alarms", "alert_finding", "discarded", "stops_job"]


def alert_finding(event: LineageEvent) -> Finding:
    """Return the finding of an ``alert`` event. One a title and step; acknowledging it closes it."""
    title, step = str(event.data.get("title") or "alert"), event.step or 0
    severity = event.data.get("severity")
    return Finding(
        detector="job",
        key=f"alert:{step}:{title}",
        kind="alert",
        state="open",
        severity=severity if severity in SEVERITIES else "warning",
        title=title,
        text=str(event.data.get("text") or ""),
        onset_step=step,
        step=step,
        now_step=step,
        rank=event.source.rank,
        node=event.source.node or None,
    )


#: Entries of evidence, and its nesting: it is shown and travels in every update.
MAX_EVIDENCE_ENTRIES = 64
MAX_EVIDENCE_DEPTH = 4


#: Between the first sentence of a text and the next one.
_SENTENCE_END = re.compile(r"(?<=[.!?]) (?=[A-Z])")
#: Phrases of the present -> of the past, in a first sentence.
_PAST = (
    (" and stays there.", "."),
    ("has not been finite since step", "was not finite from step"),
    ("have not been finite since step", "were not finite from step"),
    ("and is flat at", "and was flat at"),
    (", since step", ", from step"),
)


def fields_of(finding: Finding) -> dict[str, Any]:
    """Return the fields of an incident that a finding sets."""
    return {field.name: getattr(finding, field.name) for field in fields(finding)} | {
        "score": finding.score if math.isfinite(finding.score) else 0.0,
        "evidence": bounded(finding.evidence),
        "rolled_back": None,
    }


def incident_id_of(run_id: str, finding: Finding, segment: int) -> str:
    """Return the id of an event, the same in every worker and re-feed."""
    parts = (run_id, finding.kind, finding.metric, finding.rank, segment, finding.onset_step, finding.key)
    return "i-" + hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:16]


def discarded(incident: Incident, by: RolledBack, time: float) -> Incident:
    """Return an incident discarded by a rollback, of an open one without sentences about the present.

    Detectors begin with the event; later sentences are about its present state.
    """
    if incident.state == "open":
        text = incident.text
        if kind_of(incident.kind).about != "user":  # the job's own words
            text = _SENTENCE_END.split(text, maxsplit=1)[0]
            for present, past in _PAST:
                text = text.replace(present, past)
        incident = replace(incident, state="resolved", resolved=time, text=text)
    text = f"{incident.text} The run went back to step {by.step}; this happened on the branch that was left."
    return replace(incident, dead=True, rolled_back=by, suggestion=None, text=text)


def gone_back(incident: Incident, fork_step: int) -> Incident:
    """Undo changes of an incident after the fork; its detector reports the new course."""
    closed_step = incident.now_step if incident.closed_step is None else incident.closed_step
    recovered = incident.recovered_step
    new = replace(incident, now_step=fork_step)
    if incident.recovery is not None and (recovered is None or recovered > fork_step):
        new = replace(new, recovery="pending")
    if incident.state == "open" or closed_step <= fork_step:
        return new
    text = f"{incident.text} That was on a branch that was left: the run went back to step {fork_step}."
    return replace(new, state="open", recovered_step=None, resolved=None, closed_step=None, text=text)


def bounded(value: Any, depth: int = 0) -> Any:
    """Return evidence as bounded JSON: string keys, and non-finite numbers as in the API."""
    if isinstance(value, bool | int | None):
        return value
    if isinstance(value, float):
        return json_number(value)
    if isinstance(value, Mapping) and depth < MAX_EVIDENCE_DEPTH:
        entries = list(value.items())[:MAX_EVIDENCE_ENTRIES]
        return {str(name)[:200]: bounded(entry, depth + 1) for name, entry in entries}
    if isinstance(value, list | tuple | set | frozenset) and depth < MAX_EVIDENCE_DEPTH:
        return [bounded(entry, depth + 1) for entry in list(value)[:MAX_EVIDENCE_ENTRIES]]
    return str(value)[:TEXT_CHARS]


# Cause of an incident. A rule has a pair of kinds, the longest time between cause and effect, and their common part. Of
# several causes the first one counts: the others may be effects too.

#: A cause is seen at most so long after its effect, seconds: agents read a kernel log every few seconds, and report
#: once a second.
SEEN_LATER_S = 30.0
#: Longest time from the cause of a slow job, seconds: a block of steps is judged at its end.
SLOWED_WITHIN_S = 600.0
#: Longest time from the death of an awaited process, seconds: NCCL's watchdog ends the others after ten minutes
#: (``TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC``), and a hang is reported well before.
DIED_WITHIN_S = 900.0


class _Rule(NamedTuple):
    """Rule of cause and effect.

    Attributes:
        cause: its kind.
        within_s: longest time from its begin; infinite: it only has to last until then.
        shares: both are about the same rank, GPU or node; else about the whole job.
    """

    cause: str
    within_s: float
    shares: bool


_RULES: Mapping[str, Sequence[_Rule]] = {
    "hang": (
        _Rule("gpu_fault", math.inf, shares=True),
        _Rule("process_death", DIED_WITHIN_S, shares=False),
        _Rule("agent_lost", DIED_WITHIN_S, shares=True),
    ),
    "process_death": (_Rule("gpu_fault", math.inf, shares=True), _Rule("hang", math.inf, shares=False)),
    "agent_lost": (_Rule("gpu_fault", DIED_WITHIN_S, shares=True),),
    "straggler": (
        _Rule("gpu_fault", math.inf, shares=True),
        _Rule("hang", SLOWED_WITHIN_S, shares=False),
    ),
    "throughput": (
        _Rule("hang", SLOWED_WITHIN_S, shares=False),
        _Rule("gpu_fault", SLOWED_WITHIN_S, shares=False),
        _Rule("straggler", SLOWED_WITHIN_S, shares=False),
    ),
}
_CAUSES = frozenset(rule.cause for rules in _RULES.values() for rule in rules)


class _Place(NamedTuple):
    """Ranks, nodes and GPUs of an incident."""

    ranks: frozenset[int]
    nodes: frozenset[str]
    gpus: frozenset[str]


def may_cause(incident: Incident) -> bool:
    """Return whether an incident may be a cause: of notes only a slow rank, for which all others wait."""
    grave = incident.severity != "info" or incident.kind == "straggler"
    return (incident.kind in _CAUSES or kind_of(incident.kind).root_cause) and grave


def cause_of(incident: Incident, every: Iterable[Incident]) -> str:
    """Return the id of the cause of an incident, "" for none.

    Args:
        every: the incidents of the run.
    """
    rules = {rule.cause: rule for rule in _RULES.get(incident.kind, ())}
    kind = kind_of(incident.kind)
    if kind.about == "user":  # a message to users may name its incident
        of = facts(incident.evidence, MessageFacts).about
        return of if any(one.incident_id == of for one in every) else ""
    if not rules and (kind.root_cause or not kind.rollback_helps):
        return ""
    others = [one for one in every if one.incident_id != incident.incident_id and may_cause(one)]
    if kind.rollback_helps:
        rates = rates_of(others)
        found = marked_by_rate(incident, rates) if rates else []
    else:
        found = [one for one in others if one.kind in rules and _explains(rules[one.kind], one, incident)]
    return min(found, key=lambda one: (one.since, one.incident_id)).incident_id if found else ""


def _explains(rule: _Rule, cause: Incident, of: Incident) -> bool:
    if cause.caused_by == of.incident_id or cause.dead != of.dead:
        return False
    if of.kind == "process_death" and cause.kind == "hang":
        hung = facts(of.evidence, DeathFacts).hung
        return hung is not None and hung.key == cause.key
    early = of.since - cause.since
    if not -SEEN_LATER_S <= early <= rule.within_s:
        return False
    if cause.resolved is not None and cause.state != "open" and cause.resolved < of.since - SEEN_LATER_S:
        return False
    return not rule.shares or _share(_place(cause), _place(of))


def _share(cause: _Place, of: _Place) -> bool:
    if cause.gpus and of.gpus:
        return not cause.gpus.isdisjoint(of.gpus)
    if cause.ranks and of.ranks:
        return not cause.ranks.isdisjoint(of.ranks)
    return not cause.nodes.isdisjoint(of.nodes)


def _place(incident: Incident) -> _Place:
    verdict = incident.verdict
    ranks, nodes, gpus = set(verdict.culprits), set(verdict.nodes), {gpu.uuid for gpu in verdict.gpus}
    if incident.rank is not None:
        ranks.add(incident.rank)
    if incident.node:
        nodes.add(incident.node)
    if incident.kind == "gpu_fault":
        fault = facts(incident.evidence, GpuFaultFacts)
        ranks.update(fault.ranks)
        for gpu in (fault.gpu, *fault.gpus):
            ranks.update(gpu.ranks)
            nodes.add(gpu.node or "")
            gpus.add(gpu.uuid)
    elif incident.kind == "process_death":
        for death in facts(incident.evidence, DeathFacts).deaths:
            ranks.add(death.rank)
            nodes.add(death.node)
            gpus.add(None if death.gpu is None else death.gpu.uuid)
    elif incident.kind == "agent_lost":
        nodes.update(facts(incident.evidence, LostAgentsFacts).nodes)
    elif incident.kind == "straggler":
        ranks.update(facts(incident.evidence, StragglerFacts).slow)
    return _Place(frozenset(ranks), frozenset(nodes - {""}), frozenset(gpu for gpu in gpus if gpu))


def alarms(incidents: Iterable[Incident]) -> list[Incident]:
    """Return the open incidents that are alarms."""
    return [one for one in incidents if one.state == "open" and one.alarm]


def first_to_read(incidents: Iterable[Incident]) -> tuple[Incident, Incident] | None:
    """Return the open incident to read first, and the worst one; None without any.

    Returns:
        The cause of the worst of them (of equals the newest), and the worst itself.
    """
    every = {one.incident_id: one for one in alarms(incidents)}
    worst = min(every.values(), key=lambda one: (one.appearance.order, -one.opened), default=None)
    if worst is None:
        return None
    cause, seen = worst, {worst.incident_id}
    while cause.caused_by in every and cause.caused_by not in seen:
        cause = every[cause.caused_by]
        seen.add(cause.incident_id)
    return cause, worst


#: Incidents kept per run. Beyond it the oldest closed ones are dropped and counted.
MAX_INCIDENTS = 2_000
#: The detector of curves, and its predecessors: their events continue under the same metric, with onsets as near as
#: theirs, points.
CURVES = "curve"
OLDER_CURVES = frozenset({"spike", "level_shift", "divergence", "dataset_loss", "plateau", "grad_norm"})
OLDER_REACH_POINTS = 16
#: An incident joins a train when it opens so soon after the newest one there, seconds. As long as Alertmanager waits
#: before it repeats a notification (``repeat_interval``, 4 h).
TRAIN_GAP_S = 4 * 3_600.0
#: Recoveries or rollbacks after which a repeated incident notifies once more: one is chance, two may be.
RECURS_AT = 3
#: Patience relative to the longest recovery so far; and its maximum, seconds.
PATIENCE_FACTOR, MAX_PATIENCE_S = 2.0, 900.0

#: Actions asked for by NVIDIA before such a GPU is used again (docs/gpu.md). With other faults the job continues.
_GPU_CLASSES = frozenset({"reset", "reboot", "drain"})


def stops_job(incident: Incident) -> bool:
    """Return whether an incident stops its job now, for plan and status."""
    if incident.state != "open" or incident.dead or not kind_of(incident.kind).stops_job:
        return False
    if incident.kind == "gpu_fault":
        fault = facts(incident.evidence, GpuFaultFacts)
        return fault.asks in _GPU_CLASSES and not fault.foreign
    return incident.kind != "agent_lost" or incident.verdict.training == "stands"


class IncidentBook:
    """All incidents of one run."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self._incidents: dict[str, Incident] = {}
        self._by_key: dict[str, str] = {}
        #: Incident -> last step of its advised wait.
        self._until: dict[str, int] = {}
        #: Step of the last advice, and the state of the job at that time.
        self.now_step = -1
        self._job = JobNow()
        #: Incidents dropped beyond MAX_INCIDENTS.
        self.dropped = 0

    def load(self, incidents: Iterable[Incident]) -> None:
        """Replace all incidents by stored ones, in any order."""
        self._incidents.clear()
        self._by_key.clear()
        self._until.clear()
        for incident in sorted(incidents, key=lambda incident: (incident.opened, incident.incident_id)):
            self._keep(incident)
        of_model = (one for one in self._incidents.values() if not one.dead and not kind_of(one.kind).of_machine)
        self.now_step = max((one.now_step for one in of_model), default=-1)

    def all(self) -> list[Incident]:
        """Return all incidents, newest first."""
        return sorted(self._incidents.values(), key=lambda i: (i.opened, i.onset_step, i.incident_id), reverse=True)

    def get(self, incident_id: str) -> Incident | None:
        return self._incidents.get(incident_id)

    def of(self, kinds: Container[str]) -> list[Incident]:
        """Return the incidents of some kinds, in the order in which they were opened."""
        return [incident for incident in self._incidents.values() if incident.kind in kinds]

    def affects_weights(self) -> list[Incident]:
        """Return the open incidents that a rollback would help."""
        return affects_weights(self._incidents.values())

    def rate_was_off(self, onset_step: int, interval: float) -> bool:
        """Return whether the learning rate was off at a step or right before; interval: of two points, steps."""
        return bool(rates_off_at(onset_step, interval, rates_of(self._incidents.values())))

    def culprits(self) -> set[int]:
        """Return the culprits of open incidents."""
        open_ones = (i for i in self._incidents.values() if i.state == "open" and not i.dead)
        verdicts = [i.verdict for i in open_ones if kind_of(i.kind).blame]
        return {rank for verdict in verdicts for rank in verdict.culprits}

    def segments(self) -> set[int]:
        """Return the segments in which incidents opened."""
        return {incident.segment for incident in self._incidents.values()}

    def versions(self, kinds: Container[str]) -> list[tuple[str, int]]:
        """Return (id, version) of the incidents of some kinds, to detect changes without copies."""
        return [(name, one.version) for name, one in self._incidents.items() if one.kind in kinds]

    def open_count(self) -> int:
        """Return the number of open incidents, without notes (``info`` of a detector)."""
        return len(alarms(self._incidents.values()))

    def worst(self) -> WorstIncident | None:
        """Return the open incident to read first: the cause of the worst one, with its severity."""
        found = first_to_read(self._incidents.values())
        if found is None:
            return None
        first, worst = found
        acknowledged = worst.status == "acknowledged"
        advice = first.suggestion.action if first.suggestion else ""
        return WorstIncident(
            first.incident_id, first.kind, worst.severity, first.title, first.since, acknowledged, advice
        )

    def not_back(self) -> NotBack | None:
        """Return the newest alarm on the effective path that ended without recovery."""
        for one in reversed(self._incidents.values()):
            over = one.state == "resolved" and one.recovered_step is None and not one.dead
            if over and one.alarm and one.status == "accepted":  # the status is read last: it costs a look at the facts
                what = f"loss of {one.dataset}" if one.dataset else one.metric or kind_of(one.kind).label.lower()
                return NotBack(what, one.onset_step)
        return None

    def stopper(self, status: str) -> str | None:
        """Return the id of the open incident that stops the job, the newest of the kind of its status."""
        every = ((incident, kind_of(incident.kind)) for incident in self._incidents.values())
        stops = [
            (kind.status != status, list(KINDS).index(kind.name), -incident.opened, incident.incident_id)
            for incident, kind in every
            if stops_job(incident) or (kind.status == status and incident.state == "open" and not incident.dead)
        ]
        return min(stops)[-1] if stops else None

    def has_similar(self, finding: Finding, by: str) -> bool:
        """Return whether ``by`` reported the event of another's finding, or another one that of ``by``: an alarm of its
        kind in the same interval. ``by`` begins at the fork, others see it later."""
        if finding.key in self._by_key:
            return False
        own, others = finding.detector == by, [one for one in self.of({finding.kind}) if one.alarm and not one.dead]
        if own:
            return any(one.detector != by and one.onset_step >= finding.onset_step for one in others)
        return any(
            one.detector == by and one.state == "open" and one.onset_step <= finding.onset_step for one in others
        )

    def near(
        self, kinds: Container[str], first_step: float, last_step: float, since: float, until: float, *, but: str
    ) -> list[tuple[int, str, str]]:
        """Return (onset step, kind, title) of the incidents of some kinds near a step or a time, in order of steps.

        Args:
            first_step, last_step: both inclusive.
            since, until: unix seconds, both inclusive; either the step or the time has to fit.
            but: key of an incident that is left out.
        """
        found = [
            (incident.onset_step, incident.kind, incident.title)
            for incident in self._incidents.values()
            if incident.kind in kinds
            and (first_step <= incident.onset_step <= last_step or since <= incident.opened <= until)
            and incident.key != but
        ]
        return sorted(found)

    def apply(self, finding: Finding, *, segment: int, time: float, checkpoints: Usable) -> list[Incident]:
        """Take a finding; return the incident that it opened or changed, and those with changed advice.

        A repeated finding, or one older than the incident's state (points fed again), changes nothing.

        Args:
            finding: of a detector or the liveness monitor.
            segment: of the finding's step; an incident keeps the one in which it opened.
            time: unix seconds, of the point or of the server.
            checkpoints: usable ones, for the suggestion.

        Returns:
            Those that changed with their version one higher (1 for a new one), the finding's own first.
        """
        old = self.known(finding)
        if old is not None and finding.now_step < old.now_step:
            return []
        new = self._opened(finding, segment, time) if old is None else replace(old, **fields_of(finding))
        new = self._in_train(new)
        if finding.state == "open":
            new = replace(new, resolved=None, closed_step=None)
        else:
            closed_step = finding.now_step if new.closed_step is None else new.closed_step
            new = replace(new, resolved=new.resolved or time, closed_step=closed_step)
            if _healed(new) and kind_of(new.kind).of_machine and not new.recurring:
                new = replace(new, severity="info")  # it healed before anybody was to act
        if not kind_of(finding.kind).of_machine:
            self.now_step = max(self.now_step, finding.now_step)
        every = [*(one for one in self._incidents.values() if one.incident_id != new.incident_id), new]
        advice = suggest(new, checkpoints, self.now_step, every, self._job)
        new = replace(new, suggestion=advice, caused_by=cause_of(new, every))
        own = self._commit(old, new, time)
        if own is None:
            return []
        follow = self._follow_from(own, time)
        advised = self.refresh_suggestions(checkpoints, time) if kind_of(own.kind).rollback_helps else []
        again = {one.incident_id for one in advised}
        return [own, *(one for one in follow if one.incident_id not in again), *advised]

    def _follow_from(self, cause: Incident, time: float) -> list[Incident]:
        """Return the open incidents with a newly found cause: it may be seen later."""
        if not may_cause(cause):
            return []
        every = list(self._incidents.values())
        concerned = [one for one in every if one.state == "open" and one.incident_id != cause.incident_id]
        changed = [self._commit(old, replace(old, caused_by=cause_of(old, every)), time) for old in concerned]
        return [incident for incident in changed if incident is not None]

    def turns_at(self) -> int | None:
        """Return the step at which an advised wait ends, None for none."""
        return min(self._until.values(), default=None)

    def job_is(self, job: JobNow, checkpoints: Usable, time: float) -> list[Incident]:
        """Take the state of the job; return incidents with changed advice.

        Args:
            checkpoints, time: as of ``refresh_suggestions``.
        """
        if job == self._job:
            return []
        self._job = job
        return self.refresh_suggestions(checkpoints, time)

    def refresh_suggestions(self, checkpoints: Usable, time: float, now_step: int | None = None) -> list[Incident]:
        """Make the suggestions of open incidents again; return the changed ones.

        Call it for changed checkpoints, after an incident opened or ended, and at the end of a wait: all open ones have
        the one advice of the run.

        Args:
            checkpoints: usable ones. time: unix seconds.
            now_step: newest step of the run; None for unchanged.
        """
        self.now_step = self.now_step if now_step is None else now_step
        every = list(self._incidents.values())
        concerned = [one for one in every if one.state == "open" and not one.dead]
        changed = [
            self._commit(old, replace(old, suggestion=suggest(old, checkpoints, self.now_step, every, self._job)), time)
            for old in concerned
        ]
        return [incident for incident in changed if incident is not None]

    def rolled_back(self, ends: Mapping[int, int], time: float, by: RolledBack, kept_step: int) -> list[Incident]:
        """Take a rollback that discarded points; return the changed incidents.

        Incidents with a discarded onset become dead, and resolved if open; so do those not seen before the fork. One
        seen before the fork and ended after it is open again. Incidents about processes are marked only.

        Args:
            ends: segment with dead points -> its last step that is not.
            time: unix seconds.
            by: the rollback.
            kept_step: end of the unchanged path: the fork step, or an earlier one after a return to a discarded branch.
        """
        changed, by = [], replace(by, changes=bounded(by.changes))
        for old in list(self._incidents.values()):
            if old.segment not in ends or old.dead:
                continue
            of_machine = kind_of(old.kind).of_machine
            dies = old.onset_step > ends[old.segment] or (old.step > kept_step and not of_machine)
            if dies and of_machine:
                new = replace(old, dead=True)
            elif dies:
                new = discarded(old, by, time)
            elif of_machine or old.now_step <= kept_step:
                continue
            else:
                new = gone_back(old, kept_step)
            changed.append(self._commit(old, new, time))
        return [incident for incident in changed if incident is not None]

    def known(self, finding: Finding) -> Incident | None:
        """Return the incident of a finding, None for a new one."""
        found = self._incidents.get(self._by_key.get(finding.key, ""))
        if found is not None or finding.detector != CURVES:
            return found
        older = (one for one in self._incidents.values() if one.detector in OLDER_CURVES and one.state == "open")
        reach = OLDER_REACH_POINTS
        near = (
            one
            for one in older
            if abs(one.onset_step - finding.onset_step) <= reach * interval_of(one) and not one.dead
        )
        return next(
            (one for one in near if (one.metric, one.alarm) == (finding.metric, finding.severity != "info")), None
        )

    def acknowledge(self, incident_id: str, who: str, time: float, at: float | None = None) -> Incident | None:
        """Record the first acknowledgement of an incident and return it, None for an unknown id.

        Args:
            time: now, unix seconds. at: time of an earlier acknowledgement.
        """
        old = self._incidents.get(incident_id)
        if old is None or old.acknowledged_by is not None:
            return old
        new = replace(old, acknowledged_by=who, acknowledged=time if at is None else at)
        if kind_of(new.kind).about == "user" and new.state == "open":
            # The job reports it once: no later finding will end it.
            new = replace(new, state="resolved", resolved=time)
        return self._commit(old, new, time)

    def _opened(self, finding: Finding, segment: int, time: float) -> Incident:
        incident_id = incident_id_of(self.run_id, finding, segment)
        # Detected after a fork behind its onset, and now again: receivers count its versions.
        dead = self._incidents.get(incident_id)
        new = Incident(
            incident_id=incident_id,
            run_id=self.run_id,
            segment=segment,
            opened=time,
            updated=time,
            version=0 if dead is None else dead.version,
            **fields_of(finding),
        )
        return replace(new, notify_at=self._patience(new))

    def _in_train(self, new: Incident) -> Incident:
        """Return an incident with its train; a critical one in a milder train begins one, and continues the count."""
        if not kind_of(new.kind).recurring or not new.alarm:
            return new
        if not new.train:
            # Also on a discarded branch: a job that repeats the same spike after each rollback has one train.
            trains = [one for one in self._alike(new) if one.train and one.opened <= new.opened]
            last = max(trains, key=lambda one: (one.opened, one.nth), default=None)
            if last is None or new.opened - last.opened > TRAIN_GAP_S:
                return replace(new, train=new.incident_id, nth=1)
            in_vain = all(one.dead or _healed(one) for one in trains[-last.nth :])
            new = replace(new, train=last.train, nth=last.nth + 1, recurring=in_vain and last.nth + 1 == RECURS_AT)
            if (
                kind_of(new.kind).of_machine and new.notify_at
            ):  # one that does not heal is no follower of those that did
                return replace(new, train=new.incident_id)
        first = self._incidents.get(new.train)
        worse = new.severity == "critical" and first is not None and first.severity != "critical"
        return replace(new, train=new.incident_id) if worse else new

    def _alike(self, new: Incident) -> list[Incident]:
        """Return the other incidents that look the same: of processes by their cause, else by their subject."""
        what = _likeness(new)
        others = (one for one in self._incidents.values() if one.incident_id != new.incident_id)
        return [one for one in others if one.kind == new.kind and _likeness(one) == what]

    def _patience(self, new: Incident) -> float:
        """Return the end of the time to heal, unix seconds; 0 for kinds without one."""
        patience_s = kind_of(new.kind).patience_s
        if not patience_s:
            return 0.0
        healed = [one.resolved - one.opened for one in self.of({new.kind}) if one.resolved is not None]
        return new.opened + max(patience_s, min(PATIENCE_FACTOR * max(healed, default=0.0), MAX_PATIENCE_S))

    def _commit(self, old: Incident | None, new: Incident, time: float) -> Incident | None:
        lasts = new.state == "open" and not new.dead
        new = replace(new, no_rollback=self._job.no_rollback if lasts else "")
        if old == new:
            return None
        if old is not None and replace(old, now_step=new.now_step) == new:
            self._incidents[new.incident_id] = new  # a newer step with the same verdict: remembered, not news
            return None
        new = replace(new, version=new.version + 1, updated=time)
        self._keep(new)
        return new

    def _keep(self, incident: Incident) -> None:
        self._incidents[incident.incident_id] = incident
        self._until.pop(incident.incident_id, None)
        if incident.state == "open" and (advice := incident.suggestion) is not None and advice.until_step is not None:
            self._until[incident.incident_id] = advice.until_step
        reachable = incident.key and (not incident.dead or kind_of(incident.kind).of_machine)
        if reachable:
            self._by_key[incident.key] = incident.incident_id
        elif self._by_key.get(incident.key) == incident.incident_id:
            del self._by_key[incident.key]
        if len(self._incidents) > MAX_INCIDENTS:
            self._drop_one()

    def _drop_one(self) -> None:
        """Drop the oldest closed incident; the oldest of all when every one is open."""
        oldest = min(self._incidents.values(), key=lambda i: (i.state == "open", i.opened, i.incident_id))
        del self._incidents[oldest.incident_id]
        self._until.pop(oldest.incident_id, None)
        if self._by_key.get(oldest.key) == oldest.incident_id:
            del self._by_key[oldest.key]
        self.dropped += 1


def _healed(incident: Incident) -> bool:
    """Return whether an incident ended before its notification."""
    return incident.resolved is not None and incident.resolved < incident.notify_at


def _likeness(incident: Incident) -> tuple[object, ...]:
    if incident.kind != "process_death":
        return incident.metric, incident.dataset, incident.rank
    raised = facts(incident.evidence, DeathFacts).exception
    cause = incident.verdict.kind
    # An end from outside may leave no trace, and its status may not be read in time.
    return "signal" if cause == "unknown" else cause, "" if raised is None else raised.type
