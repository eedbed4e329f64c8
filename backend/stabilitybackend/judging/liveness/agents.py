"""Connections of agents, the meaning of their silence, and whether training continues without them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from msgspec import structs, to_builtins

from stabilitybackend.judging.detectors.engine.base import Finding
from stabilitybackend.judging.liveness.format import MAX_NAMED_RANKS, name_nodes, name_ranks
from stabilitybackend.judging.liveness.rank_watch import RankWatch
from stabilitybackend.schema.evidence import JudgedFacts, LostAgentsFacts, facts
from stabilitybackend.schema.health import AgentHealth, LogFacts, VisibilityGap
from stabilitybackend.schema.incidents import Incident
from stabilitybackend.schema.json_data import MAX_LISTED, MAX_NODES, SENTENCE_CHARS
from stabilitybackend.schema.verdicts import Training, Verdict

__all__ = ["SILENT_AFTER_S", "Agent", "AgentBook"]

# One incident for agents lost together: a switch, a rack, a network is one cause. The meaning of their silence, and
# whether training continues, is judged once for all of them.

#: Agents whose last messages lie so close together were lost by one cause, seconds.
TOGETHER_S = 10.0
#: An incident waits so long for others about to be lost, to name them all, seconds.
GATHER_S = 2.0
#: Agents and nodes named in the evidence of one incident; all are counted.
MAX_NAMED = 64
#: A connection closed so soon after the agent's last message was closed by its kernel: the process ended. After a
#: longer silence the server's own ping gave up, seconds.
CLOSED_BY_KERNEL_S = 4.0
#: Longest silence of an agent whose ranks still count as observed, seconds.
SILENT_AFTER_S = 5.0
#: Steps of a peer after the last message of a silent rank before it has to wait for that rank.
STEPS_AHEAD = 2


@dataclass(frozen=True, slots=True)
class Silence:
    """State of a job with silent agents.

    Args:
        agents: all of them. lost: absent ones, with their running ranks.
        soon: silent ones, about to be lost.
        step, stalled_s: newest step of the visible ranks, and time that all have been stalled; -1 without any.
        lost_after_s: longest silence of an agent.
        usual_step_s: of the job, None for unknown.
        hang: the open one.
        now: unix seconds.
    """

    agents: Mapping[str, Agent]
    lost: Mapping[str, list[RankWatch]]
    soon: Collection[str]
    step: int
    stalled_s: float
    lost_after_s: float
    usual_step_s: float | None
    hang: Finding | None
    now: float

    def where(self, nodes: Collection[str]) -> str:
        return name_nodes(
            [node for node in nodes if node], {agent.node for agent in self.agents.values() if agent.node}
        )


@dataclass(slots=True)
class _LostTogether:
    """Agents lost together, with their nodes, and the reported finding."""

    finding: Finding | None
    members: dict[str, str]
    last_words: tuple[float, float]
    #: Ends of those that are no longer absent.
    ended: Counter[str] = field(default_factory=Counter)
    changed: bool = True


class LostAgents:
    """The open incidents about agents of one run."""

    def __init__(self) -> None:
        self._groups: list[_LostTogether] = []

    def __bool__(self) -> bool:
        return bool(self._groups)

    def load(self, incident: Incident, finding: Finding) -> None:
        """Take a stored open ``agent_lost`` incident, with the agents named in its evidence."""
        known = facts(incident.evidence, LostAgentsFacts)
        names, nodes = known.agents or [known.agent], known.nodes or [finding.node or ""]
        nodes = nodes + [""] * (len(names) - len(nodes))
        since = math.inf if known.last_word is None else known.last_word
        self._groups.append(
            _LostTogether(finding, dict(zip(names, nodes, strict=False)), (since, since), changed=False)
        )

    def tick(self, job: Silence) -> list[Finding]:
        """Return new findings about lost agents."""
        known = {name for group in self._groups for name in group.members}
        seen_at = {name: _seen_at(job.agents[name]) for name in job.lost if name not in known}
        fresh = sorted(seen_at, key=lambda name: (seen_at[name], name))
        if fresh and not (job.soon and job.now - seen_at[fresh[0]] <= job.lost_after_s + GATHER_S):
            for name in fresh:
                self._group_of(seen_at[name]).members[name] = job.agents[name].node
        reported = (_reported(group, job) for group in self._groups)
        return [finding for finding in reported if finding is not None]

    def _group_of(self, word: float) -> _LostTogether:
        """Return the group of an agent with its last message at this time, or a new one."""
        for group in self._groups:
            first, last = group.last_words
            if first - TOGETHER_S <= word <= last + TOGETHER_S:
                group.last_words, group.changed = (min(first, word), max(last, word)), True
                return group
        self._groups.append(_LostTogether(None, {}, (word, word)))
        return self._groups[-1]

    def back(self, how: Mapping[str, tuple[bool, str]], newest_step: int) -> list[Finding]:
        """Return changed findings for agents that are no longer absent.

        Args:
            how: of those, whether the agent or another one on its node reports again, and its former class.
            newest_step: of the run.
        """
        found = []
        for group in list(self._groups):
            over = [name for name in group.members if name in how]
            if not over:
                continue
            where = name_nodes({group.members[name] or name for name in over})
            group.ended.update(how[name][1] for name in over)
            left = {name: node for name, node in group.members.items() if name not in how}
            if left:
                group.members, group.changed = left, True
                continue
            self._groups.remove(group)
            if group.finding is None:
                continue
            reached = any(how[name][0] for name in over)
            many = sum(group.ended.values()) > 1
            who = f"The {'agents' if many else 'agent'} on {where}"
            does = "do" if many else "does"
            word = ("report again" if many else "reports again") if reached else f"{does} not report any more"
            was = ". ".join(_counted(what, count, many) for what, count in group.ended.most_common())
            text = f"{who} {word}. {was}."
            old = group.finding
            verdict = structs.replace(_judged(old), text=text)
            evidence = {**old.evidence, "verdict": to_builtins(verdict), "was": was}
            step = max(old.now_step, newest_step)
            found.append(replace(old, state="resolved", text=text, now_step=step, evidence=evidence))
        return found

    def last_message(self, name: str) -> float:
        """Return the latest last message of a lost agent, unix seconds."""
        found = (group.last_words[1] for group in self._groups if name in group.members)
        return next(found, math.inf)

    def members(self) -> list[tuple[str, str]]:
        """Return (agent, node) of all lost ones."""
        return [(name, node) for group in self._groups for name, node in group.members.items()]


def _reported(group: _LostTogether, job: Silence) -> Finding | None:
    """Return the new findings of one group."""
    ranks = [watch for name in group.members for watch in job.lost.get(name, ())]
    if not ranks:
        return None
    members = [job.agents[name] for name in group.members if name in job.agents]
    verdict = _verdict(members, ranks, job)
    named = set(group.members.values()) & set(_judged(job.hang).nodes) - {""}
    if job.hang is not None and named:
        text = f"{verdict.text} The hang of the job names {name_nodes(named)} already: it is the same trouble."
        verdict = structs.replace(verdict, text=text, because=[*verdict.because, f"reported before: {job.hang.title}"])
    old = group.finding
    if old is not None and not group.changed:
        before = _judged(old)
        if not before.kind or before.training == verdict.training or verdict.training == "unknown":
            return None
        verdict = structs.replace(verdict, kind=before.kind)
        group.finding = replace(old, text=verdict.text, evidence={**old.evidence, "verdict": to_builtins(verdict)})
        return group.finding
    fresh = _finding(list(group.members), members, ranks, verdict, job)
    if old is not None:
        now_step = max(old.now_step, fresh.now_step)
        fresh = replace(fresh, key=old.key, onset_step=old.onset_step, step=old.step, now_step=now_step)
    group.finding, group.changed = fresh, False
    return fresh


def _judged(finding: Finding | None) -> Verdict:
    """Return the verdict of a finding, or an empty one."""
    return (None if finding is None else facts(finding.evidence, JudgedFacts).verdict) or Verdict()


def _counted(what: str, count: int, many: bool) -> str:
    return f"{what} ({count} of them)" if many else what


def _seen_at(agent: Agent) -> float:
    return agent.seen_at or agent.opened_at or agent.lost_at or 0.0


def _closed(agent: Agent) -> bool:
    return agent.lost_at is not None and 0 <= agent.lost_at - agent.seen_at <= CLOSED_BY_KERNEL_S


def _verdict(agents: list[Agent], ranks: list[RankWatch], job: Silence) -> Verdict:
    """Return the verdict on silent agents: ended or cut off, and whether training continues."""
    closed, absent = sum(map(_closed, agents)), all(agent.expected for agent in agents)
    ended, many = 2 * closed > len(agents), len(agents) > 1
    last = min(agent.seen_at for agent in agents)
    silent_s = job.now - last
    step = max(watch.step for watch in ranks)
    because: list[str] = []
    training: Training = "unknown"
    if ended:
        because.append(
            f"{closed} connections were closed within seconds of their last message, as when processes end"
            if many
            else "its connection was closed within seconds of its last message, as when its process ends"
        )
    elif last:
        because.append(
            f"{len(agents) - closed} connections stayed open in silence, or were closed by the server after some of it"
            if many
            else f"its connection stayed open in silence, or was closed by the server after {silent_s:.0f} s of it"
        )
    if job.step >= 0 or job.stalled_s >= 0:
        ahead, stalled_s = job.step, job.stalled_s
        if stalled_s >= max(SILENT_AFTER_S, 2 * (job.usual_step_s or SILENT_AFTER_S)):
            training = "stands"
            because.append(
                f"the other ranks have been stalled at step {ahead} for {stalled_s:.0f} s; these were at step {step}"
            )
        elif ahead > step + STEPS_AHEAD:
            training = "goes on"
            because.append(f"the other ranks are at step {ahead}, which they can't reach without these ranks")
        else:
            because.append(f"the other ranks are at step {ahead}, these were at step {step}")
    nodes = sorted({agent.node for agent in agents if agent.node})
    where = job.where(nodes) or "its node"
    words = {
        "goes on": "Training goes on: the other ranks make steps.",
        "stands": "Training is stalled: the other ranks make no step either.",
        "unknown": "Whether training goes on is not known.",
    }
    followed = all(agent.log is not None for agent in agents)
    if followed:
        what = f"The log is no longer followed on {where}"
    elif absent:
        what = (
            f"No agent on {where} has connected since the server was restarted: it ended meanwhile, or can't reach it"
        )
    elif ended:
        what = f"The {len(agents)} agents on {where} have ended" if many else f"The agent on {where} has ended"
    else:
        stuck = "the nodes or the agents are stuck" if many else "the node or the agent is stuck"
        what = f"Nothing arrives from {where}: the network, {stuck}"
    named, kept = name_ranks([watch.rank for watch in ranks]), "the log's file" if followed else "their spool"
    return Verdict(
        kind="agent_dead" if ended else "partition",
        text=f"{what}. {words[training]} No data from {named}; what they log stays in {kept}.",
        confidence="high" if ended and training == "goes on" else ("medium" if training != "unknown" else "low"),
        nodes=nodes[:MAX_NAMED],
        because=because,
        blind=[f"{named}: no agent there is connected"],
        since=last or None,
        decided_after_s=round(silent_s, 1) if last else None,
        training=training,
    )


def _finding(names: list[str], agents: list[Agent], ranks: list[RankWatch], verdict: Verdict, job: Silence) -> Finding:
    step = max(watch.step for watch in ranks)
    many = len(agents) > 1
    nodes = [agent.node for agent in agents]
    where = job.where(nodes) or names[0]
    ended = verdict.kind == "agent_dead"
    numbers = [watch.rank for watch in ranks]
    text = (
        f"No data from {name_ranks(numbers)} for more than {job.lost_after_s:.0f} s because the "
        f"{'agents' if many else 'agent'} on {where} {'do' if many else 'does'} not report. {verdict.text}"
    )
    one = "has ended" if ended else "does not report"
    title = f"{len(agents)} agents on {where} {'have ended' if ended else 'do not report'}"
    return Finding(
        detector="liveness",
        key=f"agent_lost:{names[0]}:{step}",
        kind="agent_lost",
        state="open",
        severity="warning",
        title=title if many else f"The agent on {where} {one}",
        text=" ".join(text.split()),
        onset_step=step,
        step=step,
        now_step=step,
        node=None if many else nodes[0] or None,
        score=job.lost_after_s,
        evidence={
            "agent": names[0],
            "node": None if many else nodes[0],
            "agents": names[:MAX_NAMED],
            "agent_count": len(agents),
            "nodes": nodes[:MAX_NAMED],
            "last_word": min(agent.seen_at for agent in agents) or None,
            "ranks": numbers[:MAX_NAMED_RANKS],
            "rank_count": len(numbers),
            "verdict": to_builtins(verdict),
        },
    )


#: Blind spots that matter for a stalled rank: the others are about GPUs, logs and disks.
BLIND_FOR_RANKS = frozenset({"clock", "signals", "slot"})
#: Time for all healthy agents to return after a restart of the server, seconds: each tries every 10 s, and a connection
#: may take 10 s.
RECONNECT_S = 25.0


@dataclass(slots=True)
class Agent:
    """One agent's connection, and its steady clock."""

    node: str = ""
    connected: bool = True
    seen_at: float = 0.0
    lost_at: float | None = None
    opened_at: float = 0.0
    #: Start of its process, unix seconds by its own clock, 0 for unknown.
    started: float = 0.0
    blind: list[VisibilityGap] = field(default_factory=list)
    #: No agent: a follower of this log.
    log: LogFacts | None = None
    #: Placeholder of one from before a restart of the server that has not returned yet.
    expected: bool = False
    _reported_at: float = 0.0
    clock: float = 0.0

    def silent_s(self, now: float) -> float:
        """Return the time of its silence, seconds."""
        seen, opened = self.seen_at, self.opened_at
        return now - ((seen if seen > opened else opened) or self.lost_at or now)

    def hear(self, health: AgentHealth, now: float) -> float:
        """Take the times of a Health message; return the same moment by a clock that never jumps back.

        A reported jump (``clock_step_s``) is subtracted; a time that goes back is an unreported one.
        """
        state, reported = health.agent_state, health.time
        if self.seen_at == 0.0 or self._reported_at == 0.0:
            self.clock = reported
        else:
            passed = reported - self._reported_at - (state.clock_step_s or 0.0)
            self.clock += passed if passed >= 0 else max(0.0, now - self.seen_at)
        self._reported_at, self.seen_at, self.connected, self.lost_at = reported, now, True, None
        self.expected = False
        self.node = health.node
        self.started = state.started or 0.0
        self.log = state.log
        if state.blind is not None:
            self.blind = state.blind[:MAX_LISTED]
        return self.clock


def _why(spot: VisibilityGap) -> str:
    return (spot.why or "")[:SENTENCE_CHARS]


class AgentBook:
    """The agents of one run, and the open incidents about them."""

    def __init__(self) -> None:
        self.all: dict[str, Agent] = {}
        self._lost = LostAgents()

    def load(self, incident: Incident, finding: Finding) -> None:
        """Take over a stored open ``agent_lost`` incident."""
        self._lost.load(incident, finding)

    def of(self, name: str) -> Agent:
        """Return an agent, new ones too."""
        agent = self.all.get(name)
        if agent is None:
            if len(self.all) >= MAX_NODES:
                del self.all[min(self.all, key=lambda one: self.all[one].seen_at)]
            agent = self.all[name] = Agent()
        return agent

    @property
    def nodes(self) -> set[str]:
        """Return the nodes of all agents."""
        return {agent.node for agent in self.all.values() if agent.node}

    def connected(self, name: str, now: float) -> None:
        """Take an opened connection."""
        agent = self.of(name)
        agent.connected, agent.lost_at, agent.opened_at = True, None, now

    def expect(self, ranks: Iterable[RankWatch], now: float, lost_after_s: float) -> None:
        """Wait for the agents of ranks from before a restart of the server: an absent one is lost."""
        reported = {node: name for name, node in self._lost.members() if node}
        for watch in ranks:
            if watch.agent:
                continue  # it reports already
            name = reported.get(watch.node, f"the agent of {watch.node or 'an unknown node'}")
            if name not in self.all:
                agent = self.of(name)
                agent.node, agent.connected, agent.expected = watch.node, False, True
                agent.lost_at = now + max(0.0, RECONNECT_S - lost_after_s)
            watch.agent = name

    def expects(self, name: str) -> bool:
        """Return whether an agent has not returned since a restart of the server."""
        agent = self.all.get(name)
        return agent is not None and agent.expected

    def disconnected(self, name: str, now: float) -> None:
        """Take a closed or missing connection."""
        agent = self.of(name)
        if agent.connected or agent.lost_at is None:
            agent.connected, agent.lost_at = False, now

    def left_at(self, name: str) -> float | None:
        """Return the end of a connection, None for an open or unknown one."""
        agent = self.all.get(name)
        return None if agent is None else agent.lost_at

    def silent_s(self, name: str, now: float) -> float:
        """Return the time of an agent's silence, seconds."""
        agent = self.all.get(name)
        return 0.0 if agent is None else agent.silent_s(now)

    def gaps(self, names: Iterable[str]) -> list[str]:
        """Return blind spots of some agents at their ranks, one clause each."""
        return [
            f"node {agent.node}: {one.what}: {_why(one)}"
            for agent in (self.all[name] for name in sorted(names) if name in self.all)
            for one in agent.blind
            if one.what in BLIND_FOR_RANKS
        ]

    def duplicates(self) -> str:
        """Return an agent's report of two living processes of one rank on its node, empty for none."""
        for agent in self.all.values():
            for one in agent.blind:
                if one.what == "twins" and agent.connected:
                    return f"Node {agent.node}: {_why(one)}."
        return ""

    def here(self, now: float, lost_after_s: float) -> set[str]:
        """Return the agents that are not lost."""
        return {name for name, agent in self.all.items() if not agent.silent_s(now) > lost_after_s}

    def unheard(self, now: float) -> set[str]:
        """Return the agents that are absent, or silent for too long."""
        agents = self.all.items()
        return {
            name
            for name, agent in agents
            if not (agent.connected or agent.expected) or agent.silent_s(now) > SILENT_AFTER_S
        }

    def tick(
        self,
        ranks: Mapping[int, RankWatch],
        now: float,
        lost_after_s: float,
        usual_step_s: float | None,
        hang: Finding | None = None,
    ) -> list[Finding]:
        """Return new findings about agents; ``hang`` is the open one. Each agent and rank is visited once."""
        soon_s = max(lost_after_s - GATHER_S, lost_after_s / 2)
        silent = {name: agent.silent_s(now) for name, agent in self.all.items()}
        away = {name for name, silent_s in silent.items() if silent_s > lost_after_s}
        if not self._lost and not any(silent_s > soon_s for silent_s in silent.values()):
            return []
        lost: dict[str, list[RankWatch]] = {}
        soon, step, stalled_s, newest_step = set(), -1, math.inf, -1
        running = set()
        for watch in ranks.values():
            newest_step = max(newest_step, watch.step)
            if not watch.running:
                continue
            running.add(watch.node)
            name = watch.agent
            if name in away:
                lost.setdefault(name, []).append(watch)
            elif name:
                silent_s = silent.get(name, 0.0)
                if silent_s > soon_s:
                    soon.add(name)
                if silent_s < SILENT_AFTER_S:
                    step, stalled_s = max(step, watch.step), min(stalled_s, watch.stalled_s)
        stalled_s = stalled_s if stalled_s < math.inf else -1.0
        job = Silence(self.all, lost, soon, step, stalled_s, lost_after_s, usual_step_s, hang, now)
        return self._lost.tick(job) + self._lost.back(self._over(away, running), newest_step)

    def _over(self, away: Collection[str], running: Collection[str]) -> dict[str, tuple[bool, str]]:
        """Return of each agent that is no longer lost whether it reports again, and its former class.

        Args:
            away: agents that are lost now. running: nodes of the running ranks.
        """
        speaking = {agent.node for name, agent in self.all.items() if agent.seen_at and name not in away}
        found = {}
        for name, node in self._lost.members():
            agent = self.all.get(name)
            if agent is not None and agent.expected and node and node in speaking:
                found[name] = (True, "It had not come back after a restart of the server")
            elif agent is not None and agent.seen_at > 0 and name not in away:
                anew = agent.started > self._lost.last_message(name)
                found[name] = (True, "It had died and was started again" if anew else "It had been cut off or stopped")
            elif node and node in speaking:
                found[name] = (True, "It had died and another one was started")
            elif node and name in self.all and node not in running:
                found[name] = (False, "It has not come back, and its ranks are over")
        return found
