"""Stacks, collectives and /proc of each rank, collected by agents on suspicion, grouped by identical stack."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from stabilitybackend.base.slices import at_once
from stabilitybackend.base.stateful import Stateful, fresh
from stabilitybackend.judging.liveness.rank_watch import MAX_RANK, number
from stabilitybackend.judging.liveness.stacks.collectives import (
    MAX_GROUPS,
    Active,
    FlightRecorder,
    Joined,
    ProcessGroup,
    Wavefront,
    finding_wavefront,
    read,
)
from stabilitybackend.judging.liveness.stacks.parse import (
    MAX_CHARS,
    ParsedFrame,
    classify,
    collective_of,
    lock_of,
    main_call,
    main_thread,
)
from stabilitybackend.schema.json_data import MAX_RANKS, SENTENCE_CHARS
from stabilitybackend.schema.ranks import DumpedRank, RankStacks, StackFrame, StackGroup, Where

__all__ = ["DUMP_WAIT_S", "Dump", "DumpBook", "DumpRequest", "Stack", "ranks_of"]

# Reader of ``stacks`` events (docs/wire.md): one for all ranks of a node, or one for each. Any content is possible:
# dangling references are ignored, and shared parts that are referred to many times may not grow without bound.

#: Ranks read of one event: an agent follows 256.
MAX_EVENT_RANKS = 1_024
#: Members of process groups that the runs of one event may expand to; groups beyond have no members. A node of 8 ranks
#: in a job of 2,048 has some ten groups a rank, of which those of all ranks are the same.
MAX_EVENT_MEMBERS = 500_000


def ranks_of(data: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Return an event's report of each rank, in the per-rank form: one whole text, members as a list.

    Args:
        data: of the event, in either form.
    """
    ranks = data.get("ranks")
    if not isinstance(ranks, list):
        yield data
        return
    threads, groups = _list(data.get("threads")), _Groups(_list(data.get("pgs")))
    for sample in ranks[:MAX_EVENT_RANKS]:
        if not isinstance(sample, Mapping):
            continue
        entry = {**sample, "request": data.get("request")}
        if isinstance(sample.get("stack"), list):
            entry["stack"] = _joined(threads, sample["stack"]) or None
        collectives = sample.get("collectives")
        if isinstance(collectives, Mapping):
            entry["collectives"] = {**collectives, "pgs": groups.of(_list(collectives.get("pgs")))}
        yield entry


def _joined(threads: list[Any], places: list[Any]) -> str:
    """Return the text of some threads; of a long one the end, with the main thread."""
    parts: list[str] = []
    room = MAX_CHARS
    for place in reversed(places[-MAX_CHARS:]):
        part = threads[place] if type(place) is int and 0 <= place < len(threads) else None
        if isinstance(part, str):
            parts.append(part)
            room -= len(part)
            if room <= 0:
                break
    return "".join(reversed(parts))[-MAX_CHARS:]


class _Groups:
    """The process groups of one event."""

    def __init__(self, groups: list[Any]) -> None:
        self._groups = groups
        self._whole: dict[int, Any] = {}
        self._members: dict[tuple[tuple[int, int, int], ...], list[int]] = {}
        self._room = MAX_EVENT_MEMBERS

    def of(self, places: list[Any]) -> list[Any]:
        """Return some groups with their members; one outside the table, itself complete, is left so."""
        found = []
        for place in places[:MAX_GROUPS]:
            if type(place) is not int:
                found.append(place)
            elif 0 <= place < len(self._groups):
                if place not in self._whole:
                    self._whole[place] = self._expanded(self._groups[place])
                found.append(self._whole[place])
        return found

    def _expanded(self, group: Any) -> Any:
        if not isinstance(group, Mapping):
            return group
        runs = tuple(
            (run[0], run[1], run[2])
            for run in _list(group.get("ranks"))
            if isinstance(run, list) and len(run) == 3 and all(type(number) is int for number in run)
        )
        if runs not in self._members:
            size = sum(max(0, count) for _, count, _ in runs)
            fits = size <= min(self._room, MAX_RANKS)
            self._room -= size if fits else 0
            self._members[runs] = (
                [first + at * stride for first, count, stride in runs for at in range(count)] if fits else []
            )
        return {**group, "ranks": self._members[runs]}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


#: Dumps kept per run, newest ones ...
MAX_DUMPS = 8
#: ... and bytes that all of them together may take in memory, as counted here.
MAX_BYTES = 8 * 1024 * 1024
#: Different stacks of one dump that are kept; ranks with another one are counted as without.
MAX_STACKS = 512
#: Characters of text kept of one dump, one text a stack, the first ones.
MAX_TEXT_CHARS = 1_000_000
#: Characters of one rank's text and of its small facts.
MAX_RANK_CHARS = 60_000
MAX_FACTS_CHARS = 4_000

#: Longest wait for stacks, seconds: a node needs at most 3.
DUMP_WAIT_S = 8.0


@dataclass(frozen=True, slots=True)
class DumpRequest:
    """Request for the stacks of all ranks.

    Attributes:
        request: id, also that of the command: the same for the same event, so that a restarted server asks once.
        reason: one clause for users.
    """

    request: str
    reason: str


@dataclass(slots=True)
class RankSample:
    """Sample of one rank. ``proc`` and ``slot`` are JSON texts, which take a fifth of the memory."""

    node: str
    pid: int
    stack: int
    missing: str
    proc: str
    slot: str
    recorder: FlightRecorder | None


@dataclass(slots=True)
class Stack:
    """One main thread's stack, and its meaning; ranks with the same one share it.

    Attributes:
        lock: the call that takes the awaited lock, as ``with cache``; "" for none in its own code.
    """

    frames: tuple[ParsedFrame, ...]
    where: Where
    text: str
    lock: str = ""


@dataclass(slots=True)
class Dump:
    """Answers of the agents to one request."""

    request: str
    reason: str = ""
    time: float = 0.0
    expected: frozenset[int] = frozenset()
    samples: dict[int, RankSample] = field(default_factory=dict)
    stacks: list[Stack] = field(default_factory=list)
    bytes: int = 0
    not_kept: int = 0
    _text_chars: int = 0
    _groups: dict[ProcessGroup, ProcessGroup] = field(default_factory=dict)
    _known: dict[tuple[tuple[ParsedFrame, ...], str, str], int] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether every expected rank has answered."""
        return bool(self.expected) and self.expected <= self.samples.keys()

    def take(self, rank: int, data: Mapping[str, Any], node: str) -> None:
        """Take the sample of one rank; a second report replaces the first."""
        if rank not in self.samples and len(self.samples) >= MAX_RANKS:
            self.not_kept += 1
            return
        slot, proc, text = data.get("slot"), data.get("proc"), data.get("stack")
        slot = slot if isinstance(slot, Mapping) else {}
        stack, missing = -1, str(data.get("stack_missing") or "")[:SENTENCE_CHARS]
        if isinstance(text, str) and text:
            stack = self._stack(text, str(slot.get("phase") or ""))
            missing = "" if stack >= 0 else missing or "the text shows no stack of the main thread"
        recorder = read(data.get("collectives"), self._groups)
        sample = RankSample(
            node=node,
            pid=int(number(data.get("pid"))),
            stack=stack,
            missing=missing,
            proc=_json(proc if isinstance(proc, Mapping) else {}),
            slot=_json({name: value for name, value in slot.items() if name != "phases"}),
            recorder=recorder,
        )
        if rank not in self.samples:
            entries = 0 if recorder is None else len(recorder.groups) + 2 * len(recorder.active)
            self.bytes += 400 + len(sample.proc) + len(sample.slot) + len(missing) + 120 * entries
        self.samples[rank] = sample

    def _stack(self, text: str, phase: str) -> int:
        frames = main_thread(text)
        if not frames:
            return -1
        call = main_call(text)
        where = classify(frames, phase, call)
        lock = lock_of(frames, call)
        key = (frames, where, lock)
        at = self._known.get(key)
        if at is None:
            if len(self.stacks) >= MAX_STACKS:
                return -1
            kept = text[-MAX_RANK_CHARS:] if self._text_chars < MAX_TEXT_CHARS else ""
            self._text_chars += len(kept)
            at = self._known[key] = len(self.stacks)
            self.stacks.append(Stack(frames, where, kept, lock))
            self.bytes += len(kept) + 300 * len(frames)
        return at

    def stack_of(self, rank: int) -> Stack | None:
        """Return a rank's stack, None for none."""
        sample = self.samples.get(rank)
        return None if sample is None or sample.stack < 0 else self.stacks[sample.stack]

    def proc_of(self, rank: int) -> dict[str, Any]:
        sample = self.samples.get(rank)
        return _object(sample.proc) if sample is not None else {}

    def groups(self) -> list[tuple[Stack, list[int]]]:
        """Return the stacks with their ranks, the most common first. One stack in two phases is two."""
        ranks: dict[int, list[int]] = {}
        for rank in sorted(self.samples):
            at = self.samples[rank].stack
            if at >= 0:
                ranks.setdefault(at, []).append(rank)
        order = sorted(ranks.items(), key=lambda group: (-len(group[1]), group[1]))
        return [(self.stacks[at], who) for at, who in order]

    def odd(self) -> list[int]:
        """Return the ranks outside the common wait: candidates of the awaited one.

        A rank in a collective waits, as long as another one is not. Where all are, or none is, the ranks outside the
        stack that more than half of them share are odd. Two equal halves are not distinguished.
        """
        groups = self.groups()
        if len(groups) < 2:
            return []
        busy = [(stack, ranks) for stack, ranks in groups if stack.where not in ("collective", "native", "idle")]
        waiting = sum(len(ranks) for stack, ranks in groups if stack.where == "collective")
        if busy and waiting:
            return sorted(rank for _, ranks in busy for rank in ranks)
        most, every = len(groups[0][1]), sum(len(ranks) for _, ranks in groups)
        return sorted(rank for _, ranks in groups[1:] for rank in ranks) if 2 * most > every else []

    def wavefront(self) -> Wavefront:
        """Return the stuck collectives, by the Flight Recorders that were read."""
        return at_once(self.finding_wavefront())

    def finding_wavefront(self) -> Generator[None, None, Wavefront]:
        """The same in slices."""
        return finding_wavefront(
            {rank: sample.recorder for rank, sample in self.samples.items() if sample.recorder is not None}
        )

    def shown(self) -> RankStacks:
        """Return the API form."""
        front, odd = self.wavefront(), set(self.odd())
        groups = []
        for stack, ranks in self.groups():
            in_ = Counter(one.name for one in (front.waiting(rank) for rank in ranks) if one is not None)
            called = collective_of(stack.frames) if stack.where == "collective" else stack.lock
            groups.append(
                StackGroup(
                    ranks=ranks,
                    nodes=sorted({self.samples[rank].node for rank in ranks}),
                    where=stack.where,
                    what=in_.most_common(1)[0][0] if in_ else called,
                    frames=[StackFrame(*frame) for frame in stack.frames],
                    text=stack.text,
                    odd=bool(odd.intersection(ranks)),
                )
            )
        return RankStacks(
            request=self.request,
            reason=self.reason,
            time=self.time,
            complete=self.complete,
            ranks={
                str(rank): DumpedRank(
                    sample.node, sample.pid, _object(sample.proc), _object(sample.slot), sample.missing or None
                )
                for rank, sample in sorted(self.samples.items())
            },
            groups=groups,
            collectives=[one.shown() for one in front.stuck],
            bytes=self.bytes,
            not_kept=self.not_kept,
        )


@dataclass(slots=True)
class _Saved:
    """A saved dump: thousands of ranks name a group of thousands of ranks by its number."""

    dump: Dump
    groups: list[ProcessGroup]
    #: Rank -> (group, enqueued, completed) of each group, (group, number, op, sizes) of each active collective.
    recorders: dict[int, tuple[list[tuple[int, int, int]], list[tuple[int, int, str, str]]]]

    @classmethod
    def of(cls, dump: Dump) -> _Saved:
        numbers = {group: at for at, group in enumerate(dump._groups)}
        recorders = {
            rank: (
                [(numbers[one.group], one.enqueued, one.completed) for one in sample.recorder.groups],
                [(numbers[one.group], *one[1:]) for one in sample.recorder.active],
            )
            for rank, sample in dump.samples.items()
            if sample.recorder is not None
        }
        samples = {rank: replace(sample, recorder=None) for rank, sample in dump.samples.items()}
        return cls(replace(dump, samples=samples, _groups={}), list(dump._groups), recorders)

    def whole(self) -> Dump:
        self.dump._groups = {group: group for group in self.groups}
        for rank, (groups, active) in self.recorders.items():
            joined = tuple(Joined(self.groups[at], *numbers) for at, *numbers in groups)
            entered = tuple(Active(self.groups[at], *facts) for at, *facts in active)  # type: ignore[arg-type]
            self.dump.samples[rank].recorder = FlightRecorder(joined, entered)
        return self.dump


class DumpBook(Stateful):
    """The newest dumps of one run.

    Attributes:
        run_id: of the run; part of a dump's id.
    """

    _saved: list[_Saved] = fresh(list)

    def __init__(self) -> None:
        super().__init__()
        self.run_id = ""
        self._dumps: dict[str, Dump] = {}
        #: To be requested from the agents.
        self._wanted: list[DumpRequest] = []

    def saved_values(self) -> list[Any]:
        return [[_Saved.of(dump) for dump in self._dumps.values()]]

    def restored(self) -> None:
        self._dumps = {saved.dump.request: saved.whole() for saved in self._saved}
        self._saved = []

    def request_id(self, key: str, now: float) -> str:
        """Return the id of a dump about ``key`` at ``now`` (unix seconds): one a second."""
        return "d-" + hashlib.sha256(f"{self.run_id}\0{key}\0{now:.0f}".encode()).hexdigest()[:16]

    def ask(self, request: str, reason: str, expected: Iterable[int], now: float) -> None:
        """Request a dump.

        Args:
            request: its id. reason: one clause for users.
            expected: the ranks that should answer.
        """
        self._wanted.append(DumpRequest(request, reason))
        dump = self._of(request, now)
        dump.reason = reason[:SENTENCE_CHARS]
        dump.expected = frozenset(expected)

    def wants(self) -> list[DumpRequest]:
        """Return the dumps to request, once each."""
        wanted, self._wanted = self._wanted, []
        return wanted

    def take(
        self, data: Mapping[str, Any], node: str, time: float, expected: Callable[[], Iterable[int]] = tuple
    ) -> str | None:
        """Take a ``stacks`` event of either form (docs/wire.md); return its request, None for an empty one.

        Args:
            expected: returns the running ranks; called once for a foreign request.
        """
        request = data.get("request")
        if not isinstance(request, str) or not request:
            return None
        dump = None
        for sample in ranks_of(data):  # one after the other: their texts together may be large
            rank = sample.get("rank")
            if type(rank) is int and 0 <= rank <= MAX_RANK:
                dump = dump or self._of(request[:SENTENCE_CHARS], time)
                dump.take(rank, sample, node)
        if dump is None:
            return None
        if not dump.expected:
            dump.expected = frozenset(expected())
        self._bound(dump)
        return dump.request

    def _of(self, request: str, time: float) -> Dump:
        dump = self._dumps.get(request)
        if dump is None:
            dump = self._dumps[request] = Dump(request, time=time)
            self._bound(dump)
        return dump

    def _bound(self, newest: Dump) -> None:
        while len(self._dumps) > 1 and (
            len(self._dumps) > MAX_DUMPS or sum(dump.bytes for dump in self._dumps.values()) > MAX_BYTES
        ):
            del self._dumps[next(name for name in self._dumps if name != newest.request)]

    def held(self) -> list[Dump]:
        """Return the answered dumps, newest first."""
        return [dump for dump in list(self._dumps.values())[::-1] if dump.samples]

    def get(self, request: str) -> RankStacks | None:
        """Return one dump in API form, None without an answer."""
        dump = self.dump(request)
        return None if dump is None else dump.shown()

    def dump(self, request: str) -> Dump | None:
        """Return one dump, None without an answer."""
        dump = self._dumps.get(request)
        return None if dump is None or not dump.samples else dump


def _json(value: Mapping[str, Any]) -> str:
    text = json.dumps(value, separators=(",", ":"), default=str)
    return text if len(text) <= MAX_FACTS_CHARS else "{}"


def _object(text: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(text)
    return value
