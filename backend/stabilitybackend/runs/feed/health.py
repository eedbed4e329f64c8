"""Sends a run's browsers the reports of its agents: one message a second, however many ranks there are.

An agent is sent whole when it is new, when a rare field changed, and once in WHOLE_EVERY messages in
any case. Otherwise only those of its columns come that changed since the last message
(``benchmarks/health_feed.py`` measures it).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from operator import attrgetter
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from stabilitybackend.judging.liveness.rank_status import RankStatuses
from stabilitybackend.runs.feed.pubsub import Channel
from stabilitybackend.schema.health import AgentHealth, Proc

__all__ = ["COLUMNS", "HealthFeed"]

#: Every agent is reported whole at least once in so many messages: errors of a browser are mended then.
WHOLE_EVERY = 60
#: A heartbeat that has not moved for so long is missing, seconds: it moves and is read once a second.
HEARTBEAT_STALLED_S = 3.0
#: In a phase for so long the kernel's name for where the process waits is reported, seconds; before it only flickers.
WCHAN_AFTER_S = 3.0
#: Agents whose columns are made in one go: a node has 8 ranks or so.
AGENTS_AT_ONCE = 32
#: Agents that are remembered; more, and all are reported whole again.
MAX_AGENTS = 4_096
#: Unix seconds from which on a time is garbage: the year 5138.
MAX_TIME = 1e11

#: Columns of an agent's ranks, in docs/api.md's words.
COLUMNS = ("step", "start", "since", "phase", "cpu", "proc", "wchan", "beat", "budget", "status")
#: Fields of a rank whose change makes its agent come whole ...
_STATIC_FIELDS = (
    *("rank", "source", "pid", "alive", "state", "expect_s", "dropped"),
    *("gpu", "local_rank", "world_size", "can_dump", "trouble"),
)
#: ... and all that come with it then.
_RANK_FIELDS = (*_STATIC_FIELDS, "step", "step_start", "phase", "phase_start", "budget_s", "time", "proc")
#: Fields of an agent's own state that a page shows.
_STATE_FIELDS = ("blind", "spool", "started", "clock_step_s", "log")

_static_of = attrgetter(*_STATIC_FIELDS)
_NO_PROC = Proc()

_Columns = dict[str, list[Any]]


class HealthFeed:
    """Collects the newest value of each agent between two messages to the run's browsers."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._due: dict[str, AgentHealth] = {}
        #: Last message of each agent: the fields that hardly ever change, and its columns.
        self._reported: dict[str, tuple[Any, _Columns]] = {}
        #: Of each agent and source the last beat, and when it was first seen on the agent's clock.
        self._beats: dict[str, dict[str, tuple[Any, float]]] = {}
        #: Of each agent the sources of its ranks, in their order.
        self._sources: dict[str, list[str]] = {}
        self._waits_for: list[int] = []
        self._joined = channel.joined
        self._messages = 0

    def put(self, agent: AgentHealth) -> None:
        """Take an agent's newest report."""
        name, time = agent.agent, _time(agent.time) or 0.0
        before, now = self._beats.get(name, {}), {}
        for rank in agent.ranks:
            known = before.get(rank.source)
            now[rank.source] = known if known is not None and known[0] == rank.beat else (rank.beat, time)
        self._beats[name], self._sources[name] = now, [rank.source for rank in agent.ranks]
        if len(self._beats) > MAX_AGENTS:
            oldest = next(iter(self._beats))
            del self._beats[oldest], self._sources[oldest]
        if self._channel:
            self._due[name] = agent

    def flushing(self, judge: Callable[[], RankStatuses]) -> Generator[None, None, None]:
        """Publish the changes since the last call, if any; ``judge`` returns the current activity of each rank.

        In slices: it yields where others may be served; ``put`` may not be called meanwhile.
        """
        if not self._channel:
            self._reported, self._due = {}, {}
            return
        judged = judge()
        yield
        self._messages += 1
        if self._joined != self._channel.joined:
            # A new browser asks for the agents and gets their current state: every column once more then.
            self._joined = self._channel.joined
            self._reported = {name: (static, {}) for name, (static, _) in self._reported.items()}
        if len(self._reported) > MAX_AGENTS:
            self._reported = {}
        due, self._due = self._due, {}
        times = [time for time in (_time(agent.time) for agent in due.values()) if time is not None]
        base = math.floor(max(times, default=0.0))
        words: dict[str, int] = {}
        whole, news = [], []
        for index, (name, agent) in enumerate(due.items()):
            static, columns = _static(agent), self._columns(agent)
            columns["status"] = self._statuses(name, judged)
            before = self._reported.get(name)
            self._reported[name] = (static, columns)
            if before is None or before[0] != static or (index + self._messages) % WHOLE_EVERY == 0:
                whole.append(_whole(agent))
                # All that is no field of a rank.
                changed = {"status": columns["status"]}
                changed |= {"beat": columns["beat"]} if any(at is not None for at in columns["beat"]) else {}
            else:
                changed = {key: column for key, column in columns.items() if before[1].get(key) != column}
            one: dict[str, Any] = {"agent": name, "time": _offset(_time(agent.time), base)}
            one.update((key, _packed(key, column, base, words)) for key, column in changed.items())
            news.append(one)
            if index % AGENTS_AT_ONCE == 0:
                yield
        news += self._rejudged(due, judged, words)
        if not news and judged.waits_for == self._waits_for:
            return
        self._waits_for = judged.waits_for
        message = {"type": "health", "base": base, "words": list(words), "waits_for": judged.waits_for}
        self._channel.publish({**message, "whole": whole, "news": news})

    def _rejudged(
        self, spoke: Collection[str], judged: RankStatuses, words: dict[str, int]
    ) -> Iterator[dict[str, Any]]:
        """Yield News of the agents silent since the last call and whose ranks are judged otherwise now."""
        for name, (_, columns) in self._reported.items():
            if name in spoke or name not in self._sources:
                continue
            column = self._statuses(name, judged)
            if columns.get("status") != column:
                columns["status"] = column
                yield {"agent": name, "status": _packed("status", column, 0, words)}

    def _statuses(self, name: str, judged: RankStatuses) -> list[str]:
        of = judged.of
        return [of.get(source, "") for source in self._sources.get(name, ())]

    def _columns(self, agent: AgentHealth) -> _Columns:
        """Return the columns of an agent's ranks: times as unix seconds, words as they are."""
        columns: _Columns = {name: [] for name in COLUMNS}
        time, beats = _time(agent.time) or 0.0, self._beats.get(agent.agent, {})
        for rank in agent.ranks:
            proc = rank.proc or _NO_PROC
            since = _time(rank.phase_start)
            _, beat_at = beats.get(rank.source, (None, time))
            cpu = proc.cpu
            stays = since is None or time - since >= WCHAN_AFTER_S
            columns["step"].append(rank.step)
            columns["start"].append(_time(rank.step_start))
            columns["since"].append(since)
            columns["phase"].append(_text(rank.phase))
            # Steps of 5 %: finer than a reader needs, and a column that mostly stays the same.
            columns["cpu"].append(None if cpu is None else 5 * round(20 * min(max(cpu, 0.0), 99.0)))
            columns["proc"].append((proc.state or " ")[:1])
            columns["wchan"].append(_text(proc.wchan) if stays else "")
            columns["beat"].append(beat_at if time - beat_at >= HEARTBEAT_STALLED_S else None)
            columns["budget"].append(_budget(rank.budget_s))
        return columns


def _packed(key: str, column: list[Any], base: int, words: dict[str, int]) -> Any:
    """Return a column as it travels: one value where all ranks have the same, letters as one text."""
    if key in ("start", "since", "beat"):
        column = [_offset(value, base) for value in column]
    elif key in ("phase", "wchan", "status"):
        column = [words.setdefault(word, len(words)) for word in column]
    elif key == "proc":
        return "".join(column)
    return column[0] if column and all(value == column[0] for value in column) else column


def _whole(agent: AgentHealth) -> dict[str, Any]:
    return {
        **{name: getattr(agent, name) for name in ("agent", "node", "time", "connected", "gpu")},
        "ranks": [_known(_RANK_FIELDS, rank) for rank in agent.ranks],
        "agent_state": _known(_STATE_FIELDS, agent.agent_state),
    }


def _known(names: Iterable[str], struct: Struct) -> dict[str, Any]:
    found = ((name, getattr(struct, name)) for name in names)
    return {name: value for name, value in found if value is not None and value is not UNSET}


def _static(agent: AgentHealth) -> Any:
    """Return the fields whose change sends an agent whole."""
    state, spool = agent.agent_state, agent.agent_state.spool
    return (
        agent.connected,
        agent.gpu,
        state.blind,
        # Free space changes with every chunk and is reported with the next whole message; losses are reported
        # immediately.
        spool and (spool.error, spool.dropped),
        bool(state.clock_step_s),
        [_static_of(rank) for rank in agent.ranks],
    )


def _text(value: str | None) -> str:
    return (value or "")[:64]


def _budget(budget: float | UnsetType | None) -> float | None:
    """Return a budget with two digits, so that learning with every step does not change it."""
    return None if budget is None or budget is UNSET or budget <= 0 else float(f"{budget:.2g}")


def _time(time: float | None) -> float | None:
    """Return unix seconds, None where they are missing or of no time that a job can have."""
    return time if time is not None and 0 < time < MAX_TIME else None


def _offset(time: float | None, base: int) -> int | None:
    """Return a time in tenths of a second after ``base``."""
    return None if time is None else round(10 * (time - base))
