"""Actions of a person from within a message, by the same functions as those of the HTTP API."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from msgspec import UNSET

from stabilityalerting import (
    ActionRefused,
    Branch,
    CommandNews,
    Curve,
    Facts,
    Proposed,
    RollbackNow,
    RollbackRequest,
    fingerprint,
)
from stabilitybackend.access.audit import AuditLog
from stabilitybackend.acting.commands.progress import progress_of
from stabilitybackend.acting.commands.proposals import Person, in_words
from stabilitybackend.alerts.proposals import ProposalRegistry
from stabilitybackend.alerts.ratings import Ratings, rating_of
from stabilitybackend.alerts.rules import AlertRules
from stabilitybackend.base.errors import StabilityBoardError
from stabilitybackend.base.keys import RunKeys
from stabilitybackend.runs.index import RunIndex
from stabilitybackend.runs.manager import RunManager
from stabilitybackend.runs.state import RunState
from stabilitybackend.schema.commands import KINDS, Command, CommandRequest
from stabilitybackend.schema.incidents import Incident, shown
from stabilitybackend.schema.lineage import Offer
from stabilitybackend.storage.query import query
from stabilitybackend.storage.query.lineage_view import LineageView
from stabilitybackend.storage.query.request import SeriesRequest
from stabilitybackend.storage.redis_link import redis_errors

__all__ = ["AlertActions"]

#: Steps in a curve before the onset, and at most after it.
BEFORE_STEPS = 100
AFTER_STEPS = 2_000
#: Points of a line, at most about so many.
POINTS = 400
#: Steps searched for the newest value: a metric need not be logged at each step.
NEWEST_WITHIN = 200

T = TypeVar("T")


class AlertActions:
    """The ``stabilityalerting.Actions`` of this server.

    Args:
        index: of the runs. audit: log of actions. rules: routes and mutes. ratings: of alerts.
        notified: returns the receivers that were sent an incident of a stream.
        two_persons: rollbacks take two persons.
    """

    offers_mute = True

    def __init__(
        self,
        manager: RunManager,
        index: RunIndex,
        audit: AuditLog,
        rules: AlertRules,
        proposals: ProposalRegistry,
        ratings: Ratings,
        notified: Callable[[str, str], Awaitable[list[str]]],
        *,
        two_persons: bool = False,
    ) -> None:
        self._manager = manager
        self._index = index
        self._audit = audit
        self._rules = rules
        self._proposals = proposals
        self._two_persons = two_persons
        self._ratings = ratings
        self._notified = notified

    async def facts(self, run_id: str, incident_id: str) -> Facts:
        """Return the facts of a message."""
        worker = await _for_person(self._manager.glance(run_id))
        run = worker.run()
        state = worker.state
        incident = state.incidents.get(incident_id)
        if incident is None:
            return Facts(run.name, run.project, gone=True)
        read = _curve_of(state, incident)
        curve = await asyncio.to_thread(read)
        return Facts(run.name, run.project, curve, "roll_back" in shown(incident).actions)

    async def acknowledge(self, run_id: str, incident_id: str, who: str, detail: str) -> str:
        """Acknowledge an incident; return its holder."""
        worker = await _for_person(self._manager.get(run_id))
        incident = await _for_person(worker.acknowledge(incident_id, who))
        if incident.acknowledged_by == who:
            await _for_person(self._audit.add(who, None, "incident.acknowledge", incident_id, detail, run_id))
        return incident.acknowledged_by or who

    async def note(self, run_id: str, incident_id: str, action: str, who: str, detail: str) -> None:
        """Log an action taken elsewhere."""
        await _for_person(self._audit.add(who, None, action, incident_id, detail, run_id))

    async def mute(self, run_id: str, incident_id: str, minutes: int, who: str, reason: str, person: str) -> float:
        """Mute incidents of this kind in the run; return the end, unix seconds."""
        incident = await _for_person(self._stored(run_id, incident_id))
        match = {"run": run_id, "kind": incident.kind}
        made = await _for_person(self._rules.mute(match, reason, None, time.time() + 60 * minutes, who))
        what = f"run {run_id}, kind {incident.kind}, for {minutes} min; {_in_slack(person)}"
        await _for_person(self._audit.add(who, None, "alerting.mute", made.mute_id, what, run_id))
        return made.ends

    async def rate(self, run_id: str, incident_id: str, useful: bool, who: str, person: str) -> None:
        """Rate an alert as useful or noise."""
        incident = await _for_person(self._stored(run_id, incident_id))
        sent_to = await self._notified(RunKeys(run_id).incident_events, incident_id)
        project = await _for_person(self._manager.project(run_id))
        await _for_person(self._ratings.put(rating_of(incident, project, useful, sent_to, who, time.time())))
        detail = f"{'useful' if useful else 'noise'}: {incident.title}; {_in_slack(person)}"
        await _for_person(self._audit.add(who, None, "incident.rate", incident_id, detail, run_id))

    async def rollback_now(self, run_id: str, incident_id: str) -> RollbackNow:
        """Return the facts of a rollback at this moment."""
        worker = await _for_person(self._manager.get(run_id))
        state = await _for_person(worker.ready())
        offer = await _for_person(_called(lambda: state.job.offer(incident_id)))
        job = state.job.view()
        chosen = next((c for c in offer.checkpoints if c.step == offer.to_step), None)
        return RollbackNow(
            head=job.head,
            head_key=job.head_key,
            step=job.running_step,
            to_step=None if chosen is None else chosen.step,
            checkpoint=None if chosen is None else chosen.path,
            saved=None if chosen is None else chosen.time,
            changes=_changes(offer),
            cannot=list(dict.fromkeys(offer.cannot.values())),
            text=offer.text,
            refused=_refused(state),
            warning=_warning(state),
            two_persons=self._two_persons,
            ranks=job.world_size,
            run_name=worker.run().name,
        )

    async def roll_back(self, wanted: RollbackRequest) -> CommandNews | Proposed:
        """Issue a rollback, or propose it, if the facts shown to the person still hold."""
        worker = await _for_person(self._manager.get(wanted.run_id))
        state = await _for_person(worker.ready())
        if (issued := state.commands.find(wanted.key)) is not None:
            return _news(issued)
        offer = await _for_person(_called(lambda: state.job.offer(wanted.incident_id)))
        request = CommandRequest(
            "rollback",
            to_step=wanted.to_step,
            lr_scale=offer.lr_scale,
            seed=secrets.randbelow(1 << 16) if offer.reseed else None,
            skip_range=offer.skip_range,
            skip_batches=None if offer.skip_range is not None else offer.skip_batches,
            reason=wanted.reason or "ordered in Slack",
            idempotency_key=None if self._two_persons else wanted.key,
        )
        if self._two_persons:
            _check_holds(state, wanted)
            person = Person(wanted.who, _key_of(wanted.person))
            made = await _for_person(self._proposals.propose(worker, request, person, by_program=False))
            detail = f"{made.what}; {_in_slack(wanted.person)}"
            await _for_person(
                self._audit.add(wanted.who, None, "proposal.made", made.proposal_id, detail, wanted.run_id)
            )
            return Proposed(made.proposal_id, made.what, made.expires)
        command_id = f"c-{secrets.token_hex(8)}"
        issued = await _for_person(
            worker.issue(request, command_id=command_id, issuer=wanted.who, check=lambda now: _check_holds(now, wanted))
        )
        detail = f"{in_words(request)}; {_in_slack(wanted.person)}"
        await _for_person(self._audit.add(wanted.who, None, "command.order", issued.command_id, detail, wanted.run_id))
        return _news(issued)

    async def approve(self, run_id: str, proposal_id: str, who: str, person: str) -> CommandNews:
        """Issue a command proposed by another person."""
        worker = await _for_person(self._manager.get(run_id))
        approving = Person(who, _key_of(person))
        made = await _for_person(self._proposals.approve(worker, proposal_id, approving, two_persons=self._two_persons))
        issued = None if made.command_id is None else worker.command(made.command_id)
        if issued is None:
            raise ActionRefused("It is approved, and was not sent: see the page of the run.")
        detail = f"{made.what}, proposed by {made.proposer}; {_in_slack(person)}"
        await _for_person(self._audit.add(who, None, "proposal.approved", proposal_id, detail, run_id))
        return _news(issued)

    async def decline(self, run_id: str, proposal_id: str, who: str, person: str) -> None:
        """Decline a proposal."""
        worker = await _for_person(self._manager.get(run_id))
        made = await _for_person(
            self._proposals.decline(worker, proposal_id, Person(who, _key_of(person)), "declined in Slack")
        )
        detail = f"{made.what}, proposed by {made.proposer}; {_in_slack(person)}"
        await _for_person(self._audit.add(who, None, "proposal.declined", proposal_id, detail, run_id))

    async def command(self, run_id: str, command_id: str) -> CommandNews | None:
        """Return the progress of a command."""
        worker = await _for_person(self._manager.glance(run_id))
        found = worker.command(command_id)
        return None if found is None else _news(found)

    async def check_follows(self, run_id: str) -> None:
        """Raise Unavailable where another process owns the run."""
        await self._manager.get(run_id)

    async def _stored(self, run_id: str, incident_id: str) -> Incident:
        with redis_errors():
            found = await self._index.incident(run_id, incident_id)
        if found is None:
            raise ActionRefused("There is no such incident any more.")
        return found


def _in_slack(person: str) -> str:
    """Return the name of a person in the audit log; the name in Slack can be changed."""
    return f"Slack user {person}"


def _key_of(person: str) -> str:
    """Return the identity of a person under any name in Slack: a proposer can't approve under another name."""
    return f"slack:{person}"


async def _for_person(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of ``work``. Raises ActionRefused, with the text of an error of the server."""
    try:
        return await work
    except StabilityBoardError as error:
        text = ". ".join(part for part in (error.message, error.hint) if part)
        raise ActionRefused(text, passing=error.status == 503) from error


async def _called(work: Callable[[], T]) -> T:
    return work()


def _check_holds(state: RunState, wanted: RollbackRequest) -> None:
    """Raise ActionRefused where the facts shown to the person have changed."""
    head = state.fold.tree[state.fold.tree.head]
    if fingerprint(head.key) != wanted.head:
        raise ActionRefused(
            f"The job has gone elsewhere since you were asked: it is in segment {head.id} now. Nothing was ordered. "
            "Press the button again and look at what is true now."
        )
    offer = state.job.offer(wanted.incident_id)
    chosen = next((c for c in offer.checkpoints if c.step == offer.to_step), None)
    if chosen is None or chosen.step != wanted.to_step or fingerprint(chosen.path) != wanted.checkpoint:
        now = "none is suggested" if chosen is None else f"step {chosen.step:,} is suggested"
        raise ActionRefused(
            f"The checkpoint has changed since you were asked: you were shown that of step {wanted.to_step:,}, now "
            f"{now}. Nothing was ordered. Press the button again."
        )


def _refused(state: RunState) -> str:
    """Return the reason against a rollback now, "" for none; the command is checked again when it is issued."""
    if why := state.job.no_rollback():
        return f"{why}."
    job = state.job.view(for_command=False)
    if job.agents == 0:
        return "no agent of this run is connected, so nobody can deliver a command."
    if job.duplicates:
        return f"ranks can't agree: {job.duplicates}."
    for busy in state.commands.waiting():
        if not KINDS[busy.kind].beside:
            return f"{busy.kind} {busy.command_id} is under way (state {busy.state})."
    return ""


def _warning(state: RunState) -> str:
    """Return why a command may fail although it can be issued, "" for no reason."""
    view = state.view()
    if view.status not in ("stalled", "unreachable"):
        return ""
    why = f" ({view.note.rstrip('.')})" if view.note else ""
    return (
        f"the run is {view.status}{why}. While no rank reaches a step boundary none can obey, and the order expires. "
        "A restart reaches a job that hangs: see the page."
    )


def _changes(offer: Offer) -> list[str]:
    found = []
    if offer.skip_range is not None:
        found.append(f"the batches of steps {offer.skip_range[0]:,} to {offer.skip_range[1]:,} left out")
    elif offer.skip_batches:
        found.append(f"{offer.skip_batches:,} batches left out")
    if offer.lr_scale not in (None, 1):
        found.append(f"the learning rate of its schedule x {offer.lr_scale:g}")
    if offer.reseed:
        found.append("a new seed")
    return found


def _news(command: Command) -> CommandNews:
    progress = progress_of(command)
    line = progress.line if command.warning is UNSET else f"{progress.line} {command.warning}"
    passed = [(one.state, max(0.0, one.time - command.issued)) for one in command.history if one.rank is None]
    return CommandNews(
        command.command_id, command.state, line, progress.trouble, progress.ended, progress.failed, passed
    )


def _curve_of(state: RunState, incident: Incident) -> Callable[[], Curve | None]:
    """Return a function for any thread that reads the curve around an onset; call this one on the event loop."""
    metric = incident.metric
    onset = incident.onset_step
    if metric is None:
        return lambda: None
    stored = state.store.view([metric])
    lineage = LineageView.of(state.fold)
    labels = {segment.id: segment.label for segment in state.fold.tree.view().segments}
    newest = state.view().last_step or onset
    rank = "primary" if incident.rank is None else str(incident.rank)
    start = max(0, onset - BEFORE_STEPS)
    stop = max(onset, min(newest, onset + AFTER_STEPS))
    window = SeriesRequest.of([metric], view="all", start=start, stop=stop, points=POINTS, rank=rank)
    tail = replace(window, view="effective", start=max(0, newest - NEWEST_WITHIN), stop=None, points=None)

    def read() -> Curve | None:
        found = [one for one in query.select(stored, lineage, window).series if not one.stray]
        if not found:
            return None
        last = [one for one in query.select(stored, lineage, tail).series if len(one.steps)]
        ends = [(int(one.steps[-1]), float(one.values[-1])) for one in last]
        found.sort(key=lambda one: (one.segment, one.dead))
        branches = []
        named: set[int] = set()
        for one in found:
            label = "" if one.segment in named else labels.get(one.segment, "")
            named.add(one.segment)
            branches.append(Branch(one.steps.tolist(), one.values.tolist(), one.dead, label))
        return Curve(metric, branches, onset, max(ends, default=None))

    return read
