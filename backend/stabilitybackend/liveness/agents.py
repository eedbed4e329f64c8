"""Which agents reach us, what each one's silence means, and whether the training goes on without their word."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from stabilitybackend.detectors.contract import Finding
from stabilitybackend.liveness.naming import MAX_NAMED_RANKS, join_words, name_ranks
from stabilitybackend.liveness.rank_watch import RankWatch, number

#: Agents followed per run; the longest silent one is forgotten first.
MAX_AGENTS = 5_000
#: Agents speak once a second. One that has said nothing for so long is silent, though not lost yet, seconds.
SILENT_AFTER_S = 5.0
#: A connection that closes so soon after the agent's last word was closed by its kernel: the process ended. After a
#: longer silence it was our own ping that gave up, seconds.
CLOSED_BY_KERNEL_S = 4.0
#: Steps that a peer can do after the last word of a silent rank before it has to wait for that rank.
STEPS_AHEAD = 2
#: Blind spots kept per agent.
MAX_BLIND = 16
#: Those that matter where a rank stands: the others are about GPUs, logs and disks.
BLIND_FOR_RANKS = frozenset({"clock", "signals", "slot"})

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
    blind: list[dict[str, str]] = field(default_factory=list)
    _told: float = 0.0
    clock: float = 0.0

    def hear(self, health: Mapping[str, Any], now: float) -> float:
        """Take the times of a Health message; return the same moment by a clock that never jumps back.

        A jump that the agent names (``clock_step_s``) is taken out; a time that goes back is one that nobody named.
        """
        state = health.get("agent_state")
        state = state if isinstance(state, Mapping) else {}
        told = number(health.get("time"))
        if self.seen_at == 0.0 or self._told == 0.0:
            self.clock = told
        else:
            passed = told - self._told - number(state.get("clock_step_s"))
            self.clock += passed if passed >= 0 else max(0.0, now - self.seen_at)
        self._told, self.seen_at, self.connected, self.lost_at = told, now, True, None
        self.node = str(health.get("node") or "")
        self.started = number(state.get("started"))
        blind = state.get("blind")
        if isinstance(blind, list):
            self.blind = [
                {name: str(one.get(name) or "")[:200] for name in ("what", "why")}
                for one in blind[:MAX_BLIND]
                if isinstance(one, Mapping)
            ]
        return self.clock


class AgentBook:
    """The agents of one run, and the open incidents about them."""

    def __init__(self) -> None:
        self.all: dict[str, Agent] = {}
        self._lost: dict[str, Finding] = {}

    def load(self, incident: Mapping[str, Any], finding: Finding) -> None:
        """Take over a stored open ``agent_lost`` incident."""
        self._lost[str(incident["evidence"].get("agent", ""))] = finding

    def of(self, name: str) -> Agent:
        """Return an agent, new where it is not known."""
        agent = self.all.get(name)
        if agent is None:
            if len(self.all) >= MAX_AGENTS:
                del self.all[min(self.all, key=lambda one: self.all[one].seen_at)]
            agent = self.all[name] = Agent()
        return agent

    def connected(self, name: str, now: float) -> None:
        """Take note that a connection opened."""
        agent = self.of(name)
        agent.connected, agent.lost_at, agent.opened_at = True, None, now

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
        """Return for how long nothing was heard of an agent, seconds."""
        agent = self.all.get(name)
        if agent is None:
            return 0.0
        return now - (max(agent.seen_at, agent.opened_at) or agent.lost_at or now)

    def blind(self, names: Iterable[str]) -> list[str]:
        """Return what some agents can't see of their ranks, one clause each."""
        return [
            f"node {agent.node}: {one['what']}: {one['why']}"
            for agent in (self.all[name] for name in sorted(names) if name in self.all)
            for one in agent.blind
            if one["what"] in BLIND_FOR_RANKS
        ]

    def twins(self) -> str:
        """Return what an agent says of two living processes of one rank on its node, empty where none does."""
        for agent in self.all.values():
            for one in agent.blind:
                if one["what"] == "twins" and agent.connected:
                    return f"Node {agent.node}: {one['why']}."
        return ""

    def is_lost(self, name: str, now: float, lost_after_s: float) -> bool:
        """Say whether an agent has been away for longer than we wait."""
        agent = self.all.get(name)
        if agent is None:
            return False
        return now - (max(agent.seen_at, agent.opened_at) or agent.lost_at or now) > lost_after_s

    def tick(
        self,
        ranks: Mapping[int, RankWatch],
        now: float,
        lost_after_s: float,
        usual_step_s: float | None,
        hang: Finding | None = None,
    ) -> list[Finding]:
        """Return what is news about agents; ``hang`` is the open one."""
        found: list[Finding] = []
        lost = [name for name in self.all if self.is_lost(name, now, lost_after_s)]
        if lost or self._lost:
            theirs: dict[str, list[RankWatch]] = {}
            for watch in ranks.values():
                if watch.running and watch.agent:
                    theirs.setdefault(watch.agent, []).append(watch)
            for name in lost:
                if name in theirs:
                    found += self._tell(name, theirs[name], ranks.values(), now, lost_after_s, usual_step_s, hang)
            newest_step = max((watch.step for watch in ranks.values()), default=-1)
            found += self._back(ranks.values(), set(lost), newest_step)
        return found

    def _tell(
        self,
        name: str,
        ranks: list[RankWatch],
        every: Iterable[RankWatch],
        now: float,
        lost_after_s: float,
        usual_step_s: float | None,
        hang: Finding | None,
    ) -> list[Finding]:
        agent, known = self.all[name], self._lost.get(name)
        verdict = _verdict(agent, ranks, self._peers(every, name, now), usual_step_s, now)
        if hang is not None and agent.node in ((hang.evidence.get("verdict") or {}).get("nodes") or ()):
            verdict["text"] += f" The hang of the job names {agent.node} already: it is the same trouble."
            verdict["because"].append(f"told before: {hang.title}")
        if known is not None:
            before = known.evidence.get("verdict") or {}
            if not before or before.get("training") == verdict["training"] or verdict["training"] == "unknown":
                return []
            verdict["class"] = before.get("class", verdict["class"])
            ranks_of = known.evidence.get("ranks", [])
            fresh = replace(
                known,
                text=verdict["text"],
                evidence={**known.evidence, "verdict": verdict, "ranks": ranks_of},
            )
        else:
            fresh = _finding(name, agent, ranks, verdict, lost_after_s)
        self._lost[name] = fresh
        return [fresh]

    def _peers(self, every: Iterable[RankWatch], name: str, now: float) -> list[RankWatch]:
        return [
            watch
            for watch in every
            if watch.running and watch.agent not in ("", name) and self.silent_s(watch.agent, now) < SILENT_AFTER_S
        ]

    def _back(self, every: Iterable[RankWatch], lost: set[str], newest_step: int) -> list[Finding]:
        """Return the ends of incidents whose agent, or another one on its node, speaks again."""
        found = []
        speaking = {agent.node: agent for name, agent in self.all.items() if agent.seen_at and name not in lost}
        running = {watch.node for watch in every if watch.running} if self._lost else set()
        for name, finding in list(self._lost.items()):
            agent, node = self.all.get(name), finding.node or ""
            if agent is not None and agent.seen_at > 0 and name not in lost:
                anew = agent.started > number(finding.evidence.get("last_word"), float("inf"))
                back, what = True, "It had died and was started again" if anew else "It had been cut off or stopped"
            elif node and node in speaking:
                back, what = True, "It had died and another one was started"
            elif node and name in self.all and node not in running:
                back, what = False, "It has not come back, and its ranks are over"
            else:
                continue
            del self._lost[name]
            word = "reaches us again" if back else "does not reach us any more"
            text = f"The agent on {node or name} {word}. {what}."
            verdict = {**(finding.evidence.get("verdict") or {}), "text": text}
            evidence = {**finding.evidence, "verdict": verdict, "was": what}
            step = max(finding.now_step, newest_step)
            found.append(replace(finding, state="resolved", text=text, now_step=step, evidence=evidence))
        return found


def _verdict(
    agent: Agent, ranks: list[RankWatch], peers: list[RankWatch], usual_step_s: float | None, now: float
) -> dict[str, Any]:
    """Say what an agent's silence means: its process ended, or nothing comes through; and whether training goes on."""
    last = agent.seen_at
    closed = agent.lost_at is not None and 0 <= agent.lost_at - last <= CLOSED_BY_KERNEL_S
    step = max(watch.step for watch in ranks)
    because, training = [], "unknown"
    if closed:
        because.append("its connection was closed within seconds of its last word, as when its process ends")
    elif last:
        because.append(f"its connection stayed open in silence, or was given up by us after {now - last:.0f} s of it")
    if peers:
        ahead = max(watch.step for watch in peers)
        stood = min(watch.stood_s for watch in peers)
        if stood >= max(SILENT_AFTER_S, 2 * (usual_step_s or SILENT_AFTER_S)):
            training = "stands"
            because.append(f"the other ranks have stood at step {ahead} for {stood:.0f} s; these were at step {step}")
        elif ahead > step + STEPS_AHEAD:
            training = "goes on"
            because.append(f"the other ranks are at step {ahead}, which they can't reach without these ranks")
        else:
            because.append(f"the other ranks are at step {ahead}, these were at step {step}")
    where = agent.node or "its node"
    words = {
        "goes on": "The training goes on: the other ranks make steps.",
        "stands": "The training stands: the other ranks make no step either.",
        "unknown": "Whether the training goes on is not seen from here.",
    }
    what = (
        f"The agent on {where} has ended"
        if closed
        else f"Nothing comes through from {where}: the network, the node or the agent is stuck"
    )
    named = name_ranks([watch.rank for watch in ranks])
    return {
        "class": "agent_dead" if closed else "partition",
        "text": f"{what}. {words[training]} We see nothing of {named}; what they log stays in their spool.",
        "confidence": "high" if closed and training == "goes on" else ("medium" if training != "unknown" else "low"),
        "culprits": [],
        "nodes": [agent.node] if agent.node else [],
        "gpus": [],
        "because": because,
        "blind": [f"{named}: no agent reaches us from there"],
        "since": last or None,
        "decided_after_s": round(now - last, 1) if last else None,
        "dump": None,
        "training": training,
    }


def _finding(
    name: str, agent: Agent, ranks: list[RankWatch], verdict: dict[str, Any], lost_after_s: float
) -> Finding:  # fmt: skip
    step = max(watch.step for watch in ranks)
    where = agent.node or name
    known = {"ranks": [watch.rank for watch in ranks][:MAX_NAMED_RANKS], "rank_count": len(ranks)}
    text = (
        f"We see nothing of {name_ranks([watch.rank for watch in ranks])} for more than {lost_after_s:.0f} s "
        f"because the agent on {where} does not reach us. {verdict['text']}"
    )
    return Finding(
        detector="liveness",
        key=f"agent_lost:{name}:{step}",
        kind="agent_lost",
        state="open",
        severity="warning",
        title=f"The agent on {where} {'has ended' if verdict['class'] == 'agent_dead' else 'does not reach us'}",
        text=join_words(text),
        onset_step=step,
        step=step,
        now_step=step,
        node=agent.node or None,
        score=lost_after_s,
        evidence={"agent": name, "node": agent.node, "last_word": agent.seen_at or None, **known, "verdict": verdict},
    )
