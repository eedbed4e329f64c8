"""Reports of a job's processes about themselves: environment, random numbers saved and restored. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from stabilitybackend.base.stateful import Stateful, fresh
from stabilitybackend.lineage.changes import LineageEvent
from stabilitybackend.schema.json_data import MAX_NAMED
from stabilitybackend.schema.resumes import Changed

__all__ = ["EVENTS", "RandomStates", "Reported", "environment_changes"]

#: Events for ``take``.
EVENTS = frozenset({"environment", "checkpoint", "restored"})
#: Different environments, and processes with a recorded one; beyond it the oldest are dropped.
MAX_ENVIRONMENTS, MAX_PROCESSES = 256, 20_000
#: The lowest ranks, and newest checkpoints of each, whose random states are kept: 150 bytes each.
MAX_RANKS, MAX_CHECKPOINTS = 64, 16
#: Named differences of an environment.
MAX_CHANGES = 32
NOT_SET = "not set"


@dataclass(slots=True)
class _Environment:
    entries: dict[str, str]
    variables: dict[str, str]


@dataclass(slots=True)
class _States:
    """Digests by generator of a process at a step; ``idle``: nothing had drawn from these before."""

    source: str
    step: int
    states: dict[str, str]
    idle: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class RandomStates:
    """Random states of ranks after the resume, against those of the checkpoint.

    Attributes:
        step: of the checkpoint. ranks: compared ones.
        equal: generators with the same state on all of them. differing: generator -> ranks with another one.
        idle: differing generators without a draw before the checkpoint.
    """

    step: int
    ranks: int
    equal: list[str]
    differing: dict[str, list[int]]
    idle: list[str]


class Reported(Stateful):
    """The reports of one run."""

    #: Number -> environment, in order of arrival; most processes share one.
    _environments: dict[int, _Environment] = fresh(dict)
    #: Process -> number of its environment.
    _of: dict[str, int] = fresh(dict)
    #: Rank -> its newest checkpoints, by step; and the state of its last resume.
    _saved: dict[int, dict[int, _States]] = fresh(dict)
    _restored: dict[int, _States] = fresh(dict)

    def take(self, event: LineageEvent) -> None:
        """Take an event of EVENTS."""
        rank, step, source = event.source.rank, event.step, event.source.source
        if event.type == "environment":
            data = event.data
            self._take_environment(source, _Environment(data.get("entries") or {}, data.get("variables") or {}))
        elif rank is not None and rank < MAX_RANKS and step is not None and (states := event.data.get("rng")):
            taken = _States(source, step, states)
            if event.type == "restored":
                self._restored[rank] = taken
            else:
                self._take_saved(rank, taken)

    def _take_environment(self, source: str, given: _Environment) -> None:
        if source in self._of:
            return  # once a process: a flood must not have its resume compared again each time
        number = next((number for number, known in self._environments.items() if known == given), None)
        if number is None:
            number = next(reversed(self._environments), 0) + 1
            self._environments[number] = given
        self._of[source] = number
        if len(self._of) > MAX_PROCESSES:
            del self._of[next(iter(self._of))]
        if len(self._environments) > MAX_ENVIRONMENTS:
            del self._environments[oldest := next(iter(self._environments))]
            self._of = {process: number for process, number in self._of.items() if number != oldest}

    def _take_saved(self, rank: int, taken: _States) -> None:
        saved = self._saved.setdefault(rank, {})
        back, same = self._restored.get(rank), saved.get(taken.step)
        if same is not None and back is not None and (back.source, back.step) == (taken.source, taken.step):
            return  # saved again as it was loaded: the older one was to be loaded
        saved.pop(taken.step, None)
        known = (back, saved[next(reversed(saved))] if saved else None)
        before = [one for one in known if one is not None and one.source == taken.source]
        if same is not None and same.source == taken.source:  # the same state at another path
            taken.idle = same.idle
        elif before:
            taken.idle = {name for name, state in taken.states.items() if before[-1].states.get(name) == state}
        saved[taken.step] = taken
        if len(saved) > MAX_CHECKPOINTS:
            del saved[next(iter(saved))]

    def went_back(self, before: Collection[str]) -> None:
        """Begin a branch: restored states of earlier processes belong to an earlier one."""
        over = self._went_on(before)
        self._restored = {rank: one for rank, one in self._restored.items() if one.source not in over}

    def _went_on(self, processes: Collection[str]) -> set[str]:
        """Return those of some processes, up to 20,000 of a job, with a reported resume."""
        return {one.source for one in self._restored.values()}.intersection(processes)

    # --- compared ------------------------------------------------------------------------------------------------

    def environments(self, processes: Collection[str]) -> list[Mapping[str, str]]:
        """Return the different environments of some processes, with their set variables."""
        known = [self._environments[number] for number in {self._of[one] for one in processes if one in self._of}]
        return [one.entries | {f"${name}": value for name, value in one.variables.items()} for one in known]

    def random_states(self, since: Collection[str], fork_step: int) -> RandomStates | None:
        """Compare the states of resumed processes with saved ones; None where no rank has both.

        Args:
            since: the resumed processes.
            fork_step: of their state; in a log without every step it may be some steps ahead.
        """
        ranks, step, went_on = 0, -1, self._went_on(since)
        equal, differing, idle = set[str](), dict[str, list[int]](), set[str]()
        for rank, now in sorted(self._restored.items()):
            was = self._saved.get(rank, {}).get(now.step)
            if now.source not in went_on or now.step > fork_step or was is None:
                continue
            common = was.states.keys() & now.states.keys()
            ranks, step = ranks + bool(common), now.step
            for name in common:
                if was.states[name] == now.states[name]:
                    equal.add(name)
                elif name in was.idle:
                    idle.add(name)
                else:
                    differing.setdefault(name, []).append(rank)
        if not ranks:
            return None
        return RandomStates(step, ranks, sorted(equal - differing.keys()), differing, sorted(idle - differing.keys()))


def environment_changes(
    before: Collection[Mapping[str, str]], since: Collection[Mapping[str, str]]
) -> list[Changed] | None:
    """Return the differences between two launches of a job, None without reports of one side.

    For differing nodes a value names the first MAX_NAMED values. An entry of one side only (a package imported later)
    is no difference, but a variable is.
    """
    if not before or not since:
        return None
    names = sorted({name for one in (*before, *since) for name in one}, key=lambda name: (name.startswith("$"), name))
    found = []
    for name in names:
        was, now = (sorted({one.get(name, _absent(name)) for one in side} - {""}) for side in (before, since))
        if was and now and was != now:
            found.append(Changed(name, _named(was), _named(now)))
    return found[:MAX_CHANGES]


def _named(values: Sequence[str]) -> str:
    # Without their number: it would change with each further node.
    return " and ".join(values[:MAX_NAMED]) + (" and more" if len(values) > MAX_NAMED else "")


def _absent(name: str) -> str:
    return NOT_SET if name.startswith("$") else ""
