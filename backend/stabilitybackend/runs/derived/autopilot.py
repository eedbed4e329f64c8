"""The autopilot of one run at work: its stored policy, its past actions, and its orders, which are ordinary commands.

An action is stored in one transaction with the command, and both are named by their cause. So a server that
is killed, before it or after it, neither forgets an order nor gives one twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import asdict, replace
from redis.exceptions import RedisError

from stabilitybackend.acting.autopilot.ladder import IDLE, PilotDecision, PilotSituation, decide, gave_up
from stabilitybackend.acting.autopilot.policy import Policy, read_policy
from stabilitybackend.base.errors import BadRequest, Conflict
from stabilitybackend.base.keys import RunKeys
from stabilitybackend.judging.detectors.engine.base import Finding
from stabilitybackend.lineage.consumer import Effects
from stabilitybackend.runs.feed.pubsub import Channel
from stabilitybackend.runs.ownership.fence import Fence
from stabilitybackend.schema.incidents import Incident
from stabilitybackend.schema.job.autopilot import (
    ISSUER,
    MAX_ENTRIES,
    Autopilot,
    PilotEntry,
    PilotMode,
    PolicyChange,
    ShownEntry,
)
from stabilitybackend.storage.points.store import SeriesKey

if TYPE_CHECKING:
    from stabilitybackend.runs.state import RunState

__all__ = ["KIND", "RunAutopilot", "handed_over", "situation"]

#: Kind of the incident by which it asks a person.
KIND = "autopilot_gave_up"
#: Entries that are shown, newest first.
SHOWN_ENTRIES = 200
#: Steps of a curve that are read: several times the longest wait that anybody sets.
CURVE_STEPS = 50_000
_OFF = PilotDecision("off", "Nothing is ordered without a person.")

_log = logging.getLogger(__name__)


class RunAutopilot:
    """The autopilot of one run.

    Args:
        patiently: does something with Redis, again and again while it is away.
        channel: the run's browsers, which get each change.
        clock: unix seconds now.

    Attributes:
        two_persons: rollbacks take two persons on this server, so that it orders none: it is a dry run at most.
    """

    two_persons = False

    def __init__(
        self,
        run_id: str,
        fence: Fence,
        patiently: Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]],
        channel: Channel,
        clock: Callable[[], float],
    ) -> None:
        self._run_id, self._fence, self._channel, self._clock = run_id, fence, channel, clock
        self._patiently = patiently
        self._keys = RunKeys(run_id)
        self._set: PolicyChange | None = None
        self._policy: Policy | None = None
        self._entries: dict[str, PilotEntry] = {}
        self._now = _OFF
        self._published: Autopilot | None = None
        self._storing = asyncio.Lock()

    async def load(self) -> None:
        """Take up the stored policy and actions."""
        async with self._storing:
            stored, entries = await self._patiently(self._stored)
        self._entries = {one.entry_id: one for data in entries if (one := _entry(data)) is not None}
        self._take(None if stored is None else msgspec.json.decode(stored, type=PolicyChange))

    async def refresh(self) -> None:
        """Take up a policy that the owner of the run has stored meanwhile; unchanged while Redis is away."""
        with contextlib.suppress(RedisError, OSError):
            stored, _ = await self._stored()
            if self._storing.locked():
                return  # a concurrent change: the answer read is from before it
            change = None if stored is None else msgspec.json.decode(stored, type=PolicyChange)
            if change != self._set:
                self._take(change)

    async def _stored(self) -> tuple[bytes | None, list[bytes]]:
        stored: Any = await self._fence.redis.get(self._keys.autopilot)
        entries: Any = await self._fence.redis.lrange(self._keys.autopilot_entries, 0, -1)
        return stored, entries

    def _take(self, change: PolicyChange | None) -> None:
        policy = None
        if change is not None and change.text is not None:
            try:
                policy = read_policy(change.text)
                if self.two_persons:  # set since then, perhaps
                    policy = msgspec.structs.replace(policy, dry_run=True)
            except BadRequest as error:  # of another version: an unreadable policy orders nothing
                _log.error("run %s: the stored policy is passed over: %s", self._run_id, error)
        if change != self._set:
            self._now = _OFF if policy is None else PilotDecision("idle", "It looks with the next second.")
        self._set, self._policy = change, policy

    async def put(self, text: str | None, who: str, file: str = "policy.yaml") -> None:
        """Put a policy in the place of the one that is there, or end it (None); store it and notify browsers.

        It holds from the next look on; an order under way continues.

        Raises:
            BadYaml: it is none; nothing changed.
            Conflict: orders take two persons here, and it is no dry run.
        """
        policy = None if text is None else await asyncio.to_thread(read_policy, text, file)
        if policy is not None and not policy.dry_run and self.two_persons:
            raise Conflict(
                "the policy would let one person order rollbacks, and on this server each takes two persons",
                hint="set dry_run: true; it then notes what it would do, and two persons order it",
                code="two_persons",
            )
        change = PolicyChange(text, who, self._clock())
        data = msgspec.json.encode(change)

        async def store() -> None:
            await self._fence.write(
                ("SET", self._keys.autopilot, data), ("XADD", self._keys.command_audit, "*", "p", data)
            )

        if text is None:
            self._take(change)  # before the write: nothing is ordered while it is stored
        async with self._storing:
            await self._patiently(store)
        self._take(change)
        _log.info("run %s: autopilot %s by %s", self._run_id, self.mode, who)

    @property
    def mode(self) -> PilotMode:
        """Whether it orders, only notes its would-be orders, or is off."""
        return "off" if self._policy is None else "dry run" if self._policy.dry_run else "on"

    # --- once a second -------------------------------------------------------------------------------------------

    def judge(self, state: RunState, changes: Effects) -> None:
        """Decide and act; the results are added to ``changes``, to be stored before they are sent."""
        if self._policy is None:
            return
        now = self._clock()
        for finding in _over(state):
            state.found(finding, now, changes)
        if (ended := state.liveness.ended(now)) is not None:
            self._now = PilotDecision("idle", f"The job is over: {ended[1]}")
            return
        if not state.incidents.open_count():
            self._now = IDLE
            return
        facts = situation(state, list(self._entries.values()))
        self._now = self._done(state, facts, decide(facts, self._policy), now, changes)

    def _done(
        self, state: RunState, now: PilotSituation, decision: PilotDecision, time: float, changes: Effects
    ) -> PilotDecision:
        """Carry out a decision; return it, or the one in its place where the job is not ready for the order."""
        assert self._policy is not None
        entry, request = decision.entry, decision.request
        if entry is None or entry.entry_id in self._entries or state.commands.get(entry.entry_id) is not None:
            return decision
        if request is not None and not entry.dry_run:
            try:
                command = state.issue(request, command_id=entry.entry_id, issuer=ISSUER)
            except Conflict as error:
                text = f"Would roll back to step {entry.to_step:,}, but not now: {error.message}."
                return _not_now(decision, text)
            except BadRequest as error:
                lead = next(one for one in now.incidents if one.incident_id == entry.incident_id)
                return self._done(state, now, gave_up(now, self._policy, lead, error.message), time, changes)
            changes.add_commands([command])
        entry = replace(entry, time=time)
        self._entries[entry.entry_id] = changes.entries[entry.entry_id] = entry
        if len(self._entries) > MAX_ENTRIES:
            del self._entries[next(iter(self._entries))]
        if entry.action == "gave_up" and not entry.dry_run:
            state.found(handed_over(entry, now.incidents), time, changes)
        _log.warning("run %s: autopilot (%s): %s", self._run_id, self.mode, decision.text)
        return decision

    # --- for users -----------------------------------------------------------------------------------------------

    def shown(self, state: RunState) -> Autopilot:
        """Return it as the API has it."""
        newest = [_shown(entry, state) for entry in self._entries.values()][::-1][:SHOWN_ENTRIES]
        change = self._set
        return Autopilot(
            mode=self.mode,
            policy=None if change is None or self._policy is None else change.text,
            set_by=None if change is None else change.who,
            set_at=None if change is None else change.time,
            phase=self._now.phase,
            text=self._now.text,
            until_step=self._now.until_step,
            to_step=self._now.to_step,
            incident_id=self._now.incident_id,
            entries=newest,
        )

    def publish(self, state: RunState) -> None:
        """Notify the run's browsers of changes since the last call."""
        if self._set is None and self._published is None:
            return
        shown = self.shown(state)
        if shown != self._published:
            self._published = shown
            self._channel.publish({"type": "autopilot", "autopilot": shown})


def _not_now(decision: PilotDecision, text: str) -> PilotDecision:
    """Return a decision that has to wait until the job can take the order."""
    return PilotDecision("held", text, None, decision.to_step, decision.incident_id)


def situation(state: RunState, entries: list[PilotEntry]) -> PilotSituation:
    """Return the input of a decision; entries: past actions, oldest first."""
    known = {one.entry_id: state.commands.get(one.entry_id) for one in entries}
    return PilotSituation(
        run_id=state.run_id,
        incidents=state.incidents.all()[::-1],
        checkpoints=state.job.checkpoints(),
        now_step=state.judge.newest_step,
        head_key=state.fold.tree[state.fold.tree.head].key,
        cannot=state.handlers.cannot(),
        entries=entries,
        outcomes={entry_id: command.state for entry_id, command in known.items() if command is not None},
        curve=partial(_curve, state),
        no_rollback=state.handlers.no_rollback(state.launch_sizes.size),
    )


def _curve(state: RunState, incident: Incident) -> list[float]:
    """Return the effective values of an incident's metric from its onset on, at most CURVE_STEPS."""
    metric, rank = incident.metric or "", state.judge.primary
    metric = state.judge.names.chosen.get(metric, metric)
    last = incident.onset_step + CURVE_STEPS
    values: list[float] = []
    for part in state.fold.tree.path(since=incident.onset_step):
        low, high = max(incident.onset_step, part.first), last if part.last is None else min(last, part.last)
        if low <= high and rank is not None:
            values += state.store.rows(SeriesKey(metric, part.segment, rank, ""), low, high).values.tolist()
    return values


def handed_over(entry: PilotEntry, incidents: Iterable[Incident]) -> Finding:
    """Return the finding that asks a person."""
    lead = next(one for one in incidents if one.incident_id == entry.incident_id)
    advice = f" The advice: {lead.suggestion.text}" if lead.suggestion is not None else ""
    return Finding(
        detector=ISSUER,
        key=f"{KIND}:{entry.entry_id}",
        kind=KIND,
        state="open",
        severity="critical",  # training is ill and nothing else is at work on it
        title=f"Autopilot asks people: {lead.title}",
        text=f"Autopilot gave up at step {entry.step:,}: {entry.text}. It does nothing more about it.{advice}",
        onset_step=entry.step,
        step=entry.step,
        now_step=entry.step,
        metric=lead.metric,
        dataset=lead.dataset,
        evidence={"about": entry.incident_id},
    )


def _over(state: RunState) -> list[Finding]:
    """Return that the question to a person has ended."""
    found = []
    for asked in state.incidents.of({KIND}):
        about = state.incidents.get(str(asked.evidence.get("about")))
        if asked.state == "open" and not asked.dead and (about is None or about.state != "open" or about.dead):
            ended = "it is no longer known" if about is None else f"it is {about.status}"
            fields = {name: getattr(asked, name) for name in ("key", "kind", "severity", "title", "metric", "dataset")}
            found.append(
                Finding(
                    **fields, detector=ISSUER, state="resolved", text=f"{asked.text} Over: {ended}.",
                    onset_step=asked.onset_step, step=asked.step,
                    now_step=max(asked.now_step, state.judge.newest_step), evidence=dict(asked.evidence),
                )
            )  # fmt: skip
    return found


def _shown(entry: PilotEntry, state: RunState) -> ShownEntry:
    command = state.commands.get(entry.entry_id)
    return ShownEntry(**asdict(entry), command=None if command is None else command.state)


def _entry(data: bytes) -> PilotEntry | None:
    try:
        return msgspec.json.decode(data, type=PilotEntry)
    except msgspec.ValidationError as error:
        _log.warning("a stored entry of the autopilot is passed over: %s", error)
        return None
