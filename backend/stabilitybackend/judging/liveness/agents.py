"""Which agents reach the server, what each one's silence means, and whether training goes on without them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from stabilitybackend.judging.detectors.engine.base import Finding
from stabilitybackend.judging.liveness.lost_agents import GATHER_S, SILENT_AFTER_S, LostAgents, Silence
from stabilitybackend.judging.liveness.rank_watch import RankWatch
from stabilitybackend.schema.health import AgentHealth, LogFacts, VisibilityGap
from stabilitybackend.schema.incidents import Incident
from stabilitybackend.schema.json_data import MAX_LISTED, MAX_NODES, SENTENCE_CHARS

#: Those that matter where a rank is stalled: the others are about GPUs, logs and disks.
BLIND_FOR_RANKS = frozenset({"clock", "signals", "slot"})
#: Within so long after a restart of the server every agent that is well is back, seconds: it tries at least each 10 s,
#: and a connection may take 10 s.
RECONNECT_S = 25.0

__all__ = ["SILENT_AFTER_S", "Agent", "AgentBook"]


@dataclass(slots=True)
class Agent:
    """One agent's connection, and its steady clock."""

    node: str = ""
    connected: bool = True
    seen_at: float = 0.0
    lost_at: float | None = None
    opened_at: float = 0.0
    #: When its process started, unix seconds by its own clock, 0 where it does not say.
    started: float = 0.0
    blind: list[VisibilityGap] = field(default_factory=list)
    #: It is no agent: it follows this log.
    log: LogFacts | None = None
    #: It stands for one that was there before the server was restarted, and has not come back yet.
    expected: bool = False
    _reported_at: float = 0.0
    clock: float = 0.0

    def silent_s(self, now: float) -> float:
        """Return how long it has been silent, seconds."""
        seen, opened = self.seen_at, self.opened_at
        return now - ((seen if seen > opened else opened) or self.lost_at or now)

    def hear(self, health: AgentHealth, now: float) -> float:
        """Take the times of a Health message; return the same moment by a clock that never jumps back.

        A jump that the agent names (``clock_step_s``) is taken out; a time that goes back is one that nobody named.
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
        """Return an agent, new where it is not known."""
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
        """Take note that a connection opened."""
        agent = self.of(name)
        agent.connected, agent.lost_at, agent.opened_at = True, None, now

    def expect(self, ranks: Iterable[RankWatch], now: float, lost_after_s: float) -> None:
        """Wait for the agents of ranks that ran before a restart of the server: one that stays away is lost."""
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
        """Return whether an agent has not come back since a restart of the server."""
        agent = self.all.get(name)
        return agent is not None and agent.expected

    def disconnected(self, name: str, now: float) -> None:
        """Take note that a connection closed, or is not there."""
        agent = self.of(name)
        if agent.connected or agent.lost_at is None:
            agent.connected, agent.lost_at = False, now

    def left_at(self, name: str) -> float | None:
        """Return when a connection ended, None while it is there and for an agent that is not known."""
        agent = self.all.get(name)
        return None if agent is None else agent.lost_at

    def silent_s(self, name: str, now: float) -> float:
        """Return how long an agent has been silent, seconds."""
        agent = self.all.get(name)
        return 0.0 if agent is None else agent.silent_s(now)

    def gaps(self, names: Iterable[str]) -> list[str]:
        """Return what some agents can't see of their ranks, one clause each."""
        return [
            f"node {agent.node}: {one.what}: {_why(one)}"
            for agent in (self.all[name] for name in sorted(names) if name in self.all)
            for one in agent.blind
            if one.what in BLIND_FOR_RANKS
        ]

    def duplicates(self) -> str:
        """Return what an agent says of two living processes of one rank on its node, empty where none does."""
        for agent in self.all.values():
            for one in agent.blind:
                if one.what == "twins" and agent.connected:
                    return f"Node {agent.node}: {_why(one)}."
        return ""

    def here(self, now: float, lost_after_s: float) -> set[str]:
        """Return the agents that are not lost."""
        return {name for name, agent in self.all.items() if not agent.silent_s(now) > lost_after_s}

    def unheard(self, now: float) -> set[str]:
        """Return the agents that are away, or silent for so long that their ranks report nothing any more."""
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
        """Return what is news about agents; ``hang`` is the open one. Each agent and rank is looked at once."""
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
        """Return of each agent that is no longer lost whether it reports again, and what it had been.

        Args:
            away: agents that are lost now. running: nodes of the ranks that run.
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
