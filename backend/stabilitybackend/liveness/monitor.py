"""Tells apart a job that hangs, a process that died, and an agent that does not reach us.

Pure: what agents report and the time are handed in, findings come out of ``tick``. It never claims more than it sees:
a hang is only said of ranks whose slots arrive, and a suspect is called a suspect.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from stabilitybackend.detectors.contract import Finding
from stabilitybackend.liveness.deaths import DeathWatch
from stabilitybackend.liveness.dumps import DumpBook, DumpRequest
from stabilitybackend.liveness.hang import MAX_NAMED_RANKS, hang_finding, name_ranks
from stabilitybackend.liveness.limits import Limits
from stabilitybackend.liveness.rank_watch import RankWatch, start_of

#: Ranks followed per run; more are counted, not followed.
MAX_RANKS = 20_000
#: Agents followed per run; the longest silent one is forgotten first.
MAX_AGENTS = 5_000
#: A hang is told again when it has lasted this many times longer.
HANG_NEWS_FACTOR = 2.0

__all__ = ["LivenessMonitor"]


@dataclass(slots=True)
class _Agent:
    node: str = ""
    connected: bool = True
    seen_at: float = 0.0
    lost_at: float | None = None


class LivenessMonitor:
    """Watches the processes of one run.

    Args:
        run_id: the run.
        limits: how long ranks may stand and agents be silent; may be replaced at any time.
    """

    def __init__(self, run_id: str, limits: Limits | None = None) -> None:
        self.run_id = run_id
        self.limits = limits or Limits()
        #: What agents collected on suspicion.
        self.dumps = DumpBook()
        self._wanted: list[DumpRequest] = []
        self._ranks: dict[int, RankWatch] = {}
        self._agents: dict[str, _Agent] = {}
        self._deaths = DeathWatch()
        self._hang: Finding | None = None
        self._lost: dict[str, Finding] = {}
        self._first_tick = math.inf
        #: Slots that did not have the fields of docs/wire.md.
        self.bad_slots = 0
        #: Ranks not followed because there were more than MAX_RANKS.
        self.ranks_not_followed = 0

    def load(self, incidents: Iterable[Mapping[str, Any]]) -> None:
        """Take over the stored incidents of the run: a restarted server goes on with them and opens none twice."""
        for incident in incidents:
            evidence = incident["evidence"]
            if incident["kind"] == "process_death":
                self._deaths.load(incident)
            elif incident["state"] == "open" and incident["kind"] == "hang":
                self._hang = _finding_of(incident)
            elif incident["state"] == "open" and incident["kind"] == "agent_lost":
                self._lost[str(evidence.get("agent", ""))] = _finding_of(incident)

    def saved(self) -> dict[str, Any]:
        """Return for ``restore`` what is known of the processes. Agents are not in it: they come by themselves."""
        return {
            "ranks": self._ranks,
            "deaths": self._deaths,
            "bad_slots": self.bad_slots,
            "ranks_not_followed": self.ranks_not_followed,
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Take over what ``saved`` returned, as after a restart: no agent has reached us yet.

        Call ``load`` with the stored incidents afterwards: an open hang or a lost agent is known from there.
        """
        self._ranks = dict(saved["ranks"])
        for watch in self._ranks.values():
            watch.unseen()
        self._deaths = saved["deaths"]
        self._deaths.tell_again()
        self.bad_slots = int(saved["bad_slots"])
        self.ranks_not_followed = int(saved["ranks_not_followed"])

    def agent_connected(self, agent: str, now: float) -> None:
        """Take note that an agent's connection opened."""
        self._agent(agent).connected = True
        self._agents[agent].seen_at, self._agents[agent].lost_at = now, None

    def agent_disconnected(self, agent: str, now: float) -> None:
        """Take note that an agent's connection closed; also call it for an agent that should be there and is not."""
        state = self._agent(agent)
        if state.connected or state.lost_at is None:
            state.connected, state.lost_at = False, now

    def observe(self, health: Mapping[str, Any], now: float) -> None:
        """Take a Health message as builtins (fields of ``wire.Health``), received at ``now``."""
        agent = self._agent(str(health["agent"]))
        agent.connected, agent.lost_at, agent.seen_at = True, None, now
        agent.node = str(health.get("node") or "")
        for slot in health["ranks"]:
            try:
                self._observe_slot(slot, health, now)
            except (KeyError, TypeError, ValueError):
                self.bad_slots += 1
        if any(watch.in_long_phase and watch.running for watch in self._ranks.values()):
            for watch in self._ranks.values():
                watch.excuse(now)

    def _observe_slot(self, slot: Mapping[str, Any], health: Mapping[str, Any], now: float) -> None:
        if slot["rank"] is None:
            return
        watch = self._watch_of(int(slot["rank"]), str(slot["source"]))
        if watch is None:
            return
        watch.observe(slot, health, now)
        if watch.running:
            self._deaths.runs_again(watch.rank, watch.source, watch.step, now)

    def logged(self, rank: int, source: str, step: int, time: float) -> None:
        """Take note of the newest row that a process logged, ``time`` in its own clock's unix seconds."""
        watch = self._watch_of(rank, source)
        if watch is not None:
            watch.logged(step, time)

    def event(self, event: Mapping[str, Any], rank: int | None, now: float) -> None:
        """Take one event of a source: ``start``, ``finish``, ``exception`` and ``process_death`` matter.

        Args:
            event: ``{"type", "time", "step", "data", "source"}``; ``source`` is the id of the process start.
            rank: the source's rank, None for an agent's.
            now: unix seconds.
        """
        kind, data = event["type"], event.get("data") or {}
        if kind == "stacks":
            self.dumps.take(data, str(event.get("node") or ""), float(event.get("time") or now))
            return
        if kind == "process_death":
            rank = data.get("rank", rank)
        if rank is None:
            return
        source = str((data if kind == "process_death" else event).get("source") or "")
        watch = self._watch_of(rank, source) if source else self._ranks.get(rank)
        if watch is None:
            return  # of a process that a newer one has replaced
        watch.step = max(watch.step, -1 if event.get("step") is None else int(event["step"]))
        time = float(event.get("time") or now)
        if kind == "start":
            self._deaths.runs_again(rank, watch.source, watch.step, time)
        elif kind == "finish":
            watch.state = "finished"
        elif kind == "exception":
            watch.state = "exception"
            self._deaths.add(watch.source, rank, watch.node, event, {"exception": dict(data)}, now)
        elif kind == "process_death" and watch.state not in ("finished", "left"):
            watch.dead, watch.alive = True, False
            facts = {name: data[name] for name in ("pid", "last_phase", "evidence") if name in data}
            self._deaths.add(watch.source, rank, watch.node, event, facts, now)

    def tick(self, now: float) -> list[Finding]:
        """Return what changed since the last call. Call it about once a second."""
        self._first_tick = min(self._first_tick, now)
        found = self._deaths.news(self._newest_step())
        found += self._tick_agents(now)
        found += self._tick_hang(now)
        return found

    def wants(self) -> list[DumpRequest]:
        """Return the dumps that shall be ordered, once each; call it after ``tick``."""
        wanted, self._wanted = self._wanted, []
        return wanted

    def status(self, now: float) -> tuple[str, str]:
        """Return the run's status word of ``docs/api.md`` and a note in plain words, empty when all is well."""
        ranks = list(self._ranks.values())
        death = self._deaths.open_finding(self._newest_step())
        if death is not None:
            return "crashed", death.text
        if ranks and all(watch.state in ("finished", "left") for watch in ranks):
            left = [watch.rank for watch in ranks if watch.state == "left"]
            return "finished", f"{name_ranks(left)} ended without run.finish()." if left else ""
        gone = [watch for watch in ranks if watch.state == "running" and not watch.alive]
        if gone:
            return "crashed", f"The process of {name_ranks([watch.rank for watch in gone])} is gone."
        lost = [name for name, agent in self._agents.items() if self._is_lost(agent, now) and self._ranks_of(name)]
        if lost:
            nodes = ", ".join(sorted({self._agents[name].node or name for name in lost}))
            seen = len(self._visible(now))
            rest = f" {seen} other rank(s) still report." if seen else ""
            note = f"We see nothing because the agent on {nodes} does not reach us; the job itself may be well.{rest}"
            return ("running" if seen else "unreachable"), note
        if self._hang is not None:
            return "stalled", self._hang.text
        unseen = [watch for watch in ranks if watch.running and watch.agent == ""]
        if unseen and not self._visible(now):
            if now - self._first_tick <= self.limits.agent_lost_s:
                return "running", "Waiting for the agents to come back."
            return "unreachable", "We see nothing because no agent has reached this server since it started."
        if self._agents and not any(agent.connected for agent in self._agents.values()):
            return "running", "No agent is connected at the moment."
        long = sorted({watch.phase for watch in self._visible(now) if watch.in_long_phase})
        return "running", f"In {', '.join(long)}." if long else ""

    def budget_s(self, rank: int, source: str) -> float | None:
        """Return how long a process may stand where it is, seconds; None where it is not the rank's newest."""
        watch = self._ranks.get(rank)
        return watch.budget_s(self.limits.hang_floor_s) if watch is not None and watch.source == source else None

    def _agent(self, agent: str) -> _Agent:
        if agent not in self._agents:
            if len(self._agents) >= MAX_AGENTS:
                del self._agents[min(self._agents, key=lambda name: self._agents[name].seen_at)]
            self._agents[agent] = _Agent()
        return self._agents[agent]

    def _watch_of(self, rank: int, source: str) -> RankWatch | None:
        """Return the state of a process, None for one that a newer process of its rank has replaced."""
        watch = self._ranks.get(rank)
        if watch is not None and watch.source == source:
            return watch
        if watch is not None and start_of(source) < start_of(watch.source):
            return None
        if watch is None and len(self._ranks) >= MAX_RANKS:
            self.ranks_not_followed += 1
            return None
        watch = self._ranks[rank] = RankWatch(rank, source, dead=self._deaths.knows(source))
        return watch

    def _is_lost(self, agent: _Agent, now: float) -> bool:
        away_since = agent.seen_at if agent.connected else (agent.lost_at or agent.seen_at)
        return now - away_since > self.limits.agent_lost_s

    def _ranks_of(self, agent: str) -> list[RankWatch]:
        return [watch for watch in self._ranks.values() if watch.agent == agent and watch.running]

    def _visible(self, now: float) -> list[RankWatch]:
        """Return the running ranks whose slots we see now, by rank."""
        fresh = [
            watch
            for watch in self._ranks.values()
            if watch.running and watch.agent in self._agents and not self._is_lost(self._agents[watch.agent], now)
        ]
        return sorted(fresh, key=lambda watch: watch.rank)

    def _unseen(self, visible: list[RankWatch]) -> list[int]:
        return sorted(watch.rank for watch in self._ranks.values() if watch.running and watch not in visible)

    def _newest_step(self) -> int:
        return max((watch.step for watch in self._ranks.values()), default=-1)

    def _tick_agents(self, now: float) -> list[Finding]:
        found: list[Finding] = []
        for name, agent in self._agents.items():
            ranks = self._ranks_of(name)
            if name not in self._lost and ranks and self._is_lost(agent, now):
                self._lost[name] = _agent_lost(name, agent, ranks, self.limits.agent_lost_s)
                found.append(self._lost[name])
        nodes_seen = {agent.node for agent in self._agents.values() if agent.node and not self._is_lost(agent, now)}
        for name, finding in list(self._lost.items()):
            agent = self._agents.get(name, _Agent(seen_at=0.0))
            back = agent.seen_at > 0 and not self._is_lost(agent, now)
            if back or (finding.node in nodes_seen and finding.node):
                del self._lost[name]
                text = f"The agent on {finding.node or name} reaches us again."
                found.append(
                    replace(finding, state="resolved", text=text, now_step=max(finding.now_step, self._newest_step()))
                )
        return found

    def _tick_hang(self, now: float) -> list[Finding]:
        visible = self._visible(now)
        overdue = [watch for watch in visible if watch.stood_s > watch.budget_s(self.limits.hang_floor_s)]
        died = self._deaths.is_open
        if self._hang is not None:
            return self._follow_hang(self._hang, visible, overdue, died)
        waits_for_long = any(watch.in_long_phase and watch not in overdue for watch in visible)
        if not overdue or died or waits_for_long:
            return []
        self._hang = hang_finding(visible, self._unseen(visible), self.limits.hang_floor_s)
        return [self._hang]

    def _follow_hang(
        self, hang: Finding, visible: list[RankWatch], overdue: list[RankWatch], died: bool
    ) -> list[Finding]:
        if died or (visible and not overdue):
            self._hang = None
            stood = float(hang.evidence.get("stood_s", 0.0))
            text = (
                "A process of the job died; see that incident."
                if died
                else f"The steps go on again. They had stood at step {hang.onset_step} for more than {stood:.0f} s."
            )
            now_step = max(hang.now_step, self._newest_step())
            recovered = None if died else now_step
            return [
                replace(
                    hang, state="resolved", severity="warning", text=text, now_step=now_step, recovered_step=recovered
                )
            ]
        if not overdue:
            return []
        fresh = replace(
            hang_finding(visible, self._unseen(visible), self.limits.hang_floor_s),
            key=hang.key,
            onset_step=hang.onset_step,
            step=hang.step,
        )
        longer = fresh.score > HANG_NEWS_FACTOR * hang.score
        if longer or fresh.evidence["suspects"] != hang.evidence.get("suspects"):
            self._hang = fresh
            return [fresh]
        return []


def _agent_lost(name: str, agent: _Agent, ranks: list[RankWatch], lost_after_s: float) -> Finding:
    step = max(watch.step for watch in ranks)
    where = agent.node or name
    return Finding(
        detector="liveness",
        key=f"agent_lost:{name}:{step}",
        kind="agent_lost",
        state="open",
        severity="warning",
        title=f"The agent on {where} does not reach us",
        text=(
            f"We see nothing of {name_ranks([watch.rank for watch in ranks])} for more than {lost_after_s:.0f} s "
            f"because the agent on {where} does not reach us. The job itself may be well: what it logs stays in its "
            "spool and comes later."
        ),
        onset_step=step,
        step=step,
        now_step=step,
        node=agent.node or None,
        score=lost_after_s,
        evidence={"agent": name, "node": agent.node, "ranks": [watch.rank for watch in ranks][:MAX_NAMED_RANKS]},
    )


def _finding_of(incident: Mapping[str, Any]) -> Finding:
    """Return the finding that an incident of this monitor was made of."""
    evidence = incident["evidence"]
    return Finding(
        detector="liveness",
        key=evidence["key"],
        kind=incident["kind"],
        state=incident["state"],
        severity=incident["severity"],
        title=incident["title"],
        text=incident["text"],
        onset_step=incident["onset_step"],
        step=incident["step"],
        now_step=evidence["now_step"],
        rank=incident["rank"],
        node=incident["node"],
        score=incident["score"],
        evidence={name: value for name, value in evidence.items() if name not in ("key", "detector", "now_step")},
    )
