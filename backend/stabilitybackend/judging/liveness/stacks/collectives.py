"""The stuck collective, its missing ranks, and who waits for whom, by the Flight Recorders of all ranks.

The rules are those of NVRx's ``CollectiveAnalyzer``, Meta's analyzer and ``torchfrtrace`` (docs/liveness.md): in each
process group the lowest number that not all have joined; members that never enqueued it are missing; in chained groups,
a missing rank that itself waits in another group is no culprit, the one that it waits for is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from stabilitybackend.judging.liveness.format import name_ranks
from stabilitybackend.judging.liveness.rank_watch import MAX_RANK, number
from stabilitybackend.schema.json_data import MAX_RANKS, NAME_CHARS
from stabilitybackend.schema.ranks import StuckCollective

#: Process groups and active collectives read of one rank: a rank of a 4D parallel job is in about ten.
MAX_GROUPS = 32
MAX_ACTIVE = 16
#: Recorders compared in one slice.
RECORDERS_AT_ONCE = 512

#: Operations in which every member must give the same sizes. Others may differ by rank and are compared by name only.
_SAME_SIZES = frozenset({"all_reduce", "allreduce", "broadcast", "reduce", "barrier"})
#: Operations between two ranks: their numbers do not show a missing one.
_BETWEEN_TWO = re.compile(r"^(i?send|i?recv|batch_isend_irecv|coalesced)\b|[ _](send|recv)\b")

__all__ = ["Active", "Joined", "ProcessGroup", "Wavefront", "finding_wavefront", "read"]


class ProcessGroup(NamedTuple):
    """A process group in one rank's report: its key, description and its members' global ranks, sorted.

    Description and members are empty where unreported: gloo names them with its entries only.
    """

    key: str
    desc: str
    ranks: tuple[int, ...]

    @property
    def name(self) -> str:
        """Its name for users."""
        return self.desc or self.key

    def __hash__(self) -> int:
        # Each of its thousands of members looks it up: not by all the others every time.
        return hash((self.key, self.desc, len(self.ranks), self.ranks[:1], self.ranks[-1:]))


class Active(NamedTuple):
    """A collective that a rank has entered and not left."""

    group: ProcessGroup
    number: int
    op: str
    sizes: str


class Joined(NamedTuple):
    """Progress of one rank in one group: numbers of the newest collective that it enqueued and completed."""

    group: ProcessGroup
    enqueued: int
    completed: int


class FlightRecorder(NamedTuple):
    """The Flight Recorder of one rank."""

    groups: tuple[Joined, ...]
    active: tuple[Active, ...]


@dataclass(slots=True)
class Collective:
    """One stuck collective."""

    group: ProcessGroup
    number: int
    op: str
    joined: list[int] = field(default_factory=list)
    #: Members that have not enqueued it, by their own recorder.
    missing: list[int] = field(default_factory=list)
    #: Members without a readable recorder.
    unknown: list[int] = field(default_factory=list)

    @property
    def name(self) -> str:
        """``all_reduce #1841 of default_pg``."""
        return f"{self.op or 'collective'} #{self.number}" + (f" of {self.group.name}" if self.group.name else "")

    def shown(self) -> StuckCollective:
        return StuckCollective(self.group.name, self.number, self.op, self.joined, self.missing, self.unknown)


@dataclass(slots=True)
class Wavefront:
    """The stuck collectives of a job.

    Attributes:
        stuck: those with missing ranks first.
        culprits: awaited ranks that wait for no other, by their own recorders.
        silent: awaited ranks without a readable recorder.
        desync: one sentence on different collectives under one number, else empty.
        odd: ranks in the minority of a desync.
        circle: ranks that wait for each other in different groups.
    """

    stuck: list[Collective] = field(default_factory=list)
    culprits: list[int] = field(default_factory=list)
    silent: list[int] = field(default_factory=list)
    desync: str = ""
    odd: list[int] = field(default_factory=list)
    circle: list[int] = field(default_factory=list)
    _waits: dict[int, Collective] | None = None

    def waiting(self, rank: int) -> Collective | None:
        """Return the collective that a rank waits in; call it when all stuck ones are listed."""
        if self._waits is None:
            self._waits = {rank: one for one in reversed(self.stuck) for rank in one.joined}
        return self._waits.get(rank)

    @property
    def all_joined(self) -> bool:
        """True for a stuck collective without missing members."""
        return bool(self.stuck) and not any(one.missing or one.unknown for one in self.stuck)


def read(report: object, shared: dict[ProcessGroup, ProcessGroup]) -> FlightRecorder | None:
    """Return a rank's ``collectives`` (docs/wire.md), None for unreadable ones.

    Args:
        report: the field, of any content.
        shared: groups so far: one object serves all ranks.
    """
    if not isinstance(report, Mapping):
        return None
    by_name: dict[str, ProcessGroup] = {}
    joined = []
    for one in _entries(report.get("pgs"), MAX_GROUPS):
        key, desc = str(one.get("name") or "")[:NAME_CHARS], str(one.get("desc") or "")[:NAME_CHARS]
        given = one.get("ranks")
        members = tuple(given[:MAX_RANKS]) if isinstance(given, list) else ()
        group = ProcessGroup(key, "" if desc == "undefined" else desc, members)
        try:
            known = shared.get(group)  # as all other members of a large group reported it
        except TypeError:
            known = None
        if known is None:
            ranks = tuple(sorted({rank for rank in members if type(rank) is int and 0 <= rank <= MAX_RANK}))
            known = group._replace(ranks=ranks)
            known = shared.setdefault(known, known)
        group = known
        by_name.setdefault(key, group)
        by_name.setdefault(desc, group)
        completed = number(one.get("completed"), -1)
        joined.append(Joined(group, int(number(one.get("enqueued"), -1)), int(completed)))
    active = []
    for one in _entries(report.get("active"), MAX_ACTIVE):
        of = by_name.get(str(one.get("pg") or "")) or (joined[0].group if len(joined) == 1 else None)
        at = int(number(one.get("seq"), -1))
        if of is not None and at >= 0:
            op = re.sub(r"^\w+:", "", str(one.get("op") or ""))[:NAME_CHARS]
            active.append(Active(of, at, op, str(one.get("sizes"))[:NAME_CHARS]))
    return FlightRecorder(tuple(joined), tuple(active)) if joined else None


def _entries(value: object, most: int) -> Iterable[Mapping[str, Any]]:
    return [one for one in value[:most] if isinstance(one, Mapping)] if isinstance(value, list) else []


def finding_wavefront(recorders: Mapping[int, FlightRecorder]) -> Generator[None, None, Wavefront]:
    """Return the stuck collectives of a job, by rank -> Flight Recorder. Yields where others may be served."""
    found = Wavefront()
    members: dict[ProcessGroup, dict[int, Joined]] = {}
    active: dict[ProcessGroup, dict[int, Active]] = {}
    same = _same_groups(recorders.values())
    yield
    for count, (rank, recorder) in enumerate(sorted(recorders.items())):
        if count % RECORDERS_AT_ONCE == 0:
            yield
        for joined in recorder.groups:
            members.setdefault(same(joined.group, rank), {})[rank] = joined
        for one in recorder.active:
            group = same(one.group, rank)
            known = active.setdefault(group, {}).get(rank)
            if known is None or one.number < known.number:
                active[group][rank] = one
    for group, ranks in members.items():
        _desync(group, active.get(group, {}), found)
        collective = _stuck(group, ranks, active.get(group, {}))
        if collective is not None:
            found.stuck.append(collective)
        yield
    found.stuck.sort(key=lambda one: (not one.missing, not one.unknown, -len(one.joined), one.group.name))
    _blame(found)
    return found


def _same_groups(recorders: Iterable[FlightRecorder]) -> Callable[[ProcessGroup, int], ProcessGroup]:
    """Return the identity of a group for all its members, with any amount of facts."""
    known: dict[str, dict[tuple[int, ...], str]] = {}
    for group in {joined.group for recorder in recorders for joined in recorder.groups}:
        by_ranks = known.setdefault(group.key, {})
        by_ranks[group.ranks] = max(by_ranks.get(group.ranks, ""), group.desc)

    whole: dict[ProcessGroup, ProcessGroup] = {}

    def same(group: ProcessGroup, rank: int) -> ProcessGroup:
        found = whole.get(group)
        if found is None:
            by_ranks = known[group.key]
            ranks = group.ranks
            if not ranks:  # those that name their members know more
                ranks = min((other for other in by_ranks if rank in other), key=len, default=max(by_ranks, key=len))
            found = ProcessGroup(group.key, by_ranks[ranks] or max(by_ranks.values()), ranks)
            found = whole.setdefault(found, found)
            if group.ranks:  # else it may be another group for another rank
                whole[group] = found
        return found

    return same


def _stuck(group: ProcessGroup, ranks: Mapping[int, Joined], active: Mapping[int, Active]) -> Collective | None:
    """Return the lowest collective of a group with a waiting member, None for none."""
    waiting = {rank: one for rank, one in active.items() if not _BETWEEN_TWO.search(one.op)}
    if not waiting:
        return None
    lowest = min(one.number for one in waiting.values())
    ops = Counter(one.op for one in waiting.values() if one.number == lowest)
    found = Collective(group, lowest, ops.most_common(1)[0][0])
    for rank in sorted({*group.ranks, *ranks}):
        known = ranks.get(rank)
        if known is None or known.enqueued < 0:
            found.unknown.append(rank)
        elif known.enqueued < lowest:
            found.missing.append(rank)
        else:
            found.joined.append(rank)
    return found


def _desync(group: ProcessGroup, active: Mapping[int, Active], found: Wavefront) -> None:
    """Record ranks with different collectives under one number."""
    by_number: dict[int, dict[tuple[str, str], list[int]]] = {}
    for rank, one in active.items():
        if not _BETWEEN_TWO.search(one.op):
            kind = (one.op, one.sizes if one.op in _SAME_SIZES else "")
            by_number.setdefault(one.number, {}).setdefault(kind, []).append(rank)
    for at, kinds in sorted(by_number.items()):
        if len(kinds) < 2 or found.desync:
            continue
        order = sorted(kinds.items(), key=lambda kind: (-len(kind[1]), kind[1]))
        words = [
            f"{op or 'a collective'}{f' of {sizes}' if sizes not in ('', 'None') else ''} on {name_ranks(who)}"
            for (op, sizes), who in order[:4]
        ]
        found.desync = f"#{at} of {group.name or 'a group'} is {'; '.join(words)}"
        if len(order[0][1]) > sum(len(who) for _, who in order[1:]):
            found.odd = sorted(rank for _, who in order[1:] for rank in who)


def _blame(found: Wavefront) -> None:
    """Follow the edges from waiting to awaited ranks; those without a wait are the culprits."""
    wanted: set[int] = set()
    waiting: set[int] = set()
    for one in found.stuck:
        gone = {*one.missing, *one.unknown}
        if gone and one.joined:
            wanted |= gone
            waiting.update(one.joined)
    free = sorted(wanted - waiting)
    reported = {rank for one in found.stuck for rank in one.missing}
    # A rank may be missing in one group by its own report and unread in another: its report counts.
    found.culprits = [rank for rank in free if rank in reported]
    found.silent = [rank for rank in free if rank not in reported]
    if wanted and not free:
        found.circle = sorted(wanted)
