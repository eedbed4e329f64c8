"""The agents that reach one run, and their reports on its ranks, once a second."""

from __future__ import annotations

from collections.abc import Iterable

from stabilitybackend.judging.gpus.readings import GpuReadings
from stabilitybackend.lineage.consumer import Consumer
from stabilitybackend.lineage.lineage import Given, Lineage
from stabilitybackend.runs.consumers.liveness import Liveness
from stabilitybackend.runs.gpu_notes import GpuNotes
from stabilitybackend.runs.step_clock import StepClock
from stabilitybackend.runs.unreadable import Unreadable
from stabilitybackend.schema.events import GpuNote
from stabilitybackend.schema.health import AgentHealth, AgentState, RankHealth, read_health
from stabilityclient.wire import Health, Hello

__all__ = ["MAX_AGENTS", "Agents"]

#: Agents whose last health is retained; the longest silent ones go first.
MAX_AGENTS = 4_096
_NO_GPU_NOTE = GpuNote(text="no report about GPUs from this node yet")


class Agents(Consumer):
    """The newest report of each agent. None is in frames: a snapshot has none either.

    Attributes:
        all: by agent, in the order of their reports.
    """

    reads = (Given, Lineage, StepClock, Liveness, GpuReadings, GpuNotes, Unreadable)

    def __init__(
        self, given: Given, lineage: Lineage, step_clock: StepClock, liveness: Liveness, readings: GpuReadings,
        notes: GpuNotes, unreadable: Unreadable,
    ) -> None:  # fmt: skip
        self._clock, self._fold, self._step_clock, self._liveness = given.clock, lineage.fold, step_clock, liveness
        self._readings, self._notes, self._unreadable = readings, notes, unreadable
        self.all: dict[str, AgentHealth] = {}

    @property
    def connected(self) -> list[AgentHealth]:
        """Those that can deliver something: one that follows a log can't."""
        return [agent for agent in self.all.values() if agent.connected and agent.agent_state.log is None]

    def connect(self, hello: Hello) -> None:
        """Note that an agent's connection opened."""
        now = self._clock()
        agent = AgentHealth(agent=hello.agent, node=hello.node, time=now, agent_state=AgentState(), ranks=[])
        self.all.setdefault(hello.agent, agent).connected = True
        self._liveness.monitor.agent_connected(hello.agent, now)

    def disconnect(self, agent: str) -> AgentHealth | None:
        """Note that an agent's connection ended; return its report, None if unknown."""
        self._liveness.monitor.agent_disconnected(agent, self._clock())
        if (known := self.all.get(agent)) is None:
            return None
        known.connected = False
        return self.shown(known)

    def health(self, health: Health, *, looked_at: bool = True) -> AgentHealth:
        """Take an agent's newest report; return it as shown.

        Args:
            looked_at: it is shown now: with the time that each rank may stay where it is.
        """
        agent, left_out = read_health(health)
        for why in left_out:
            self._unreadable.field("health", why, health.agent)
        head = self._fold.tree[self._fold.tree.head]
        for rank in agent.ranks:
            if rank.step is None or rank.step <= self._step_clock.newest:
                continue
            # A rank names the segment it is in; one that was inferred here it does not know, there the fold knows.
            if (rank.segment_key or "") == head.key or (
                head.cause == "restart" and self._fold.segment_of(rank.source) == head.id
            ):
                self._step_clock.in_step(rank.step)
        self.all[health.agent] = agent
        while len(self.all) > MAX_AGENTS:
            del self.all[next(iter(self.all))]
        self._liveness.monitor.observe(agent, self._clock())
        if looked_at:
            self.set_budgets(agent.ranks)
        return self.shown(agent)

    def set_budgets(self, ranks: Iterable[RankHealth]) -> None:
        """Set of ranks how long each may stay where it is."""
        monitor = self._liveness.monitor
        allowance = monitor.allowance()
        for rank in ranks:
            if rank.rank is not None:
                rank.budget_s = monitor.budget_s(rank.rank, rank.source, allowance)

    def shown(self, agent: AgentHealth) -> AgentHealth:
        """Return an agent's report with the newest of its node's GPUs."""
        agent.gpu = self._notes.of.get(agent.node, _NO_GPU_NOTE)
        agent.gpus = self._readings.of(agent.node)
        return agent
