"""Search for live runs with the data of other runs of their project, next to the fold: a bounded share of a core.

A run's own detectors know its own points only, so that the same points give the same incidents wherever they are
judged. This is beyond their sight, and beyond a backtest's: it depends on the other runs in the store. A
finding is an incident of the run like any other, stored and shown, and is restored from that after a restart.
"""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import msgspec
from redis.exceptions import RedisError

from stabilitybackend.base.errors import StabilityBoardError
from stabilitybackend.base.rounds import ROUND_S, in_rounds
from stabilitybackend.base.tasks import in_thread
from stabilitybackend.judging.detectors.engine.base import Finding, State
from stabilitybackend.runs.idle_runs import LIVE_STATES
from stabilitybackend.runs.manager import RunManager
from stabilitybackend.runs.worker import RunWorker
from stabilitybackend.schema.evidence import BY_OTHER_RUNS, SHARED_DATA, SharedDataFacts, facts
from stabilitybackend.schema.incidents import Incident
from stabilityplugins.other_runs.library import Library
from stabilityplugins.other_runs.prints import Prints
from stabilityplugins.other_runs.search import Place, Stretch, goes_on, newest_step, search, search_ids, stretch_of

__all__ = ["OtherRuns"]

#: Key of a run's config for the origin of its weights, spelled as W&B's argument of ``init``.
ORIGIN_KEY = "fork_from"
_ORIGIN = re.compile(r"(?P<run>[A-Za-z0-9][A-Za-z0-9._-]*)\?_step=(?P<step>\d{1,15})")


class Origin(NamedTuple):
    """The run and its step whose weights another run began with."""

    run: str
    step: int


def origin_of(config: Mapping[str, Any]) -> Origin | None:
    """Return a run's declared origin, None where it can't be read.

    Example:
        >>> origin_of({"fork_from": "base-7b?_step=12000"})
        Origin(run='base-7b', step=12000)
    """
    found = _ORIGIN.fullmatch(str(config.get(ORIGIN_KEY, "")))
    return None if found is None else Origin(found["run"], int(found["step"]))


def note(place: Place, stretch: Stretch, name: str, now_step: int) -> Finding:
    """Return the single finding on a run that has the data of another one; it wakes no one.

    Args:
        name: of the other run. now_step: newest step.
    """
    offset = stretch.first - stretch.other
    known = _facts(place, stretch, name, None)
    text = f"Since step {stretch.first:,} this run reads what run {name} read"
    if offset:
        text += f" since its step {stretch.other:,}, in its order. If its weights come from that run, they have learned"
        text += " this data already: say so with config fork_from, and it is an alarm."
    else:
        text += " at the same steps, in its order: their curves can be compared point by point."
    title = f"The data of run {name} since step {stretch.first}"
    return _finding(SHARED_DATA, f"{BY_OTHER_RUNS}:note", "info", title, f"{text} {_how(place)}",
                    stretch, now_step, known)  # fmt: skip


def alarm(place: Place, stretch: Stretch, name: str, now_step: int, origin: Origin) -> Finding:
    """Return the finding on a run that gets the data again that its weights have learned in another run."""
    known = _facts(place, stretch, name, origin.step)
    text = f"The run says that it goes on from step {origin.step:,} of run {name}, and since step {stretch.first:,} it"
    text += f" reads what that run read since its step {stretch.other:,}, in its order: the weights have learned this"
    text += f" data. {_how(place)} Is the loader's place part of the checkpoint, and loaded?"
    title = f"The data of run {name} is fed again since step {stretch.first}"
    key = f"{BY_OTHER_RUNS}:{place.run}:{place.shift}"
    return _finding("repeat_data", key, "warning", title, text, stretch, now_step, known)


def over(incident: Incident, now_step: int) -> Finding:
    """Return the end of an alarm: other data is read now."""
    fields = {name: getattr(incident, name) for name in Finding.__dataclass_fields__}
    text = incident.text + f" It ended before step {now_step:,}."
    return replace(Finding(**fields), state="recovered", now_step=now_step, recovered_step=now_step, text=text)


def _how(place: Place) -> str:
    return "Their batch ids are equal." if place.by == "ids" else f"Found by the losses alone (r = {place.r:.2f})."


def _facts(place: Place, stretch: Stretch, name: str, from_step: int | None) -> SharedDataFacts:
    return SharedDataFacts(
        place.run, name, stretch.other, place.by, round(place.r, 3), place.shift, stretch.first - stretch.other,
        from_step,
    )  # fmt: skip


def _finding(
    kind: str, key: str, severity: Any, title: str, text: str, stretch: Stretch, now_step: int, known: SharedDataFacts
) -> Finding:
    state: State = "resolved" if severity == "info" else "open"
    return Finding(
        BY_OTHER_RUNS, key, kind, state, severity, title, text, stretch.first, now_step, now_step,
        score=known.r, evidence=msgspec.to_builtins(known),
    )  # fmt: skip


#: Part of the time that rounds may take: they are never waited for, and all runs share one core.
SHARE = 0.05
#: New points or batches after which a run is compared again: the past grows by whole blocks of so many.
EVERY_POINTS = 16
#: Comparisons that have to find the same place in the losses, and those in a row without it that end an alarm.
CONFIRM_TIMES = 2
LOST_TIMES = 2
#: Places of one run that are remembered until they are confirmed, newest ones.
MAX_PLACES = 64

_log = logging.getLogger(__name__)


@dataclass
class _Compared:
    """Memory of a live run between two comparisons.

    Attributes:
        head: its segment at the newest one. points, batches: that it had then. at: when that was, monotonic seconds.
        hits: how often each place was found. lost: comparisons in a row without the place of its alarm.
    """

    head: int
    points: int = 0
    batches: int = 0
    at: float = 0.0
    hits: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    lost: int = 0

    def is_confirmed(self, place: Place) -> bool:
        """Note a place that was found; say whether that was often enough."""
        key = (place.by, place.run, place.shift)
        self.hits[key] += 1
        if len(self.hits) > MAX_PLACES:
            del self.hits[next(iter(self.hits))]
        return place.by == "ids" or self.hits[key] >= CONFIRM_TIMES  # ids are equal, or they are not


class OtherRuns:
    """Compares the live runs of one server in turn.

    Args:
        manager: of the runs. library: data of the runs that they are compared with.
        clock: seconds that never go back.
    """

    def __init__(self, manager: RunManager, library: Library, clock: Callable[[], float] = time.monotonic) -> None:
        self._manager = manager
        self._library = library
        self._clock = clock
        self._compared: dict[str, _Compared] = {}

    async def follow(self) -> None:
        """Go on round by round, until it is cancelled."""
        undone = "runs are not compared with each other"
        expected = (RedisError, OSError, StabilityBoardError)
        await in_rounds(self.round, share=SHARE, undone=undone, expected=expected, log=_log, clock=self._clock)

    async def round(self) -> None:
        """Compare the live runs with news, those that waited longest first, as far as a round's time goes."""
        live = {
            run_id: worker
            for run_id, worker in self._manager.followed().items()
            if worker.has_agents and worker.listing.status in LIVE_STATES
        }
        for gone in self._compared.keys() - live.keys():
            del self._compared[gone]
        due = [run_id for run_id, worker in live.items() if self._has_news(worker)]
        due.sort(key=lambda run_id: self._compared[run_id].at)
        began = self._clock()
        for run_id in due:
            await self._compare(live[run_id])
            if self._clock() - began > ROUND_S * SHARE:
                break

    def _has_news(self, worker: RunWorker) -> bool:
        state, head = worker.state, worker.state.fold.tree.head
        known = self._compared.get(worker.run_id)
        if known is None or known.head != head:
            known = self._compared[worker.run_id] = _Compared(head)
        new_points = state.judge.past_points - known.points
        return max(new_points, state.batches.repeats.judged - known.batches) >= EVERY_POINTS

    async def _compare(self, worker: RunWorker) -> None:
        state, compared = worker.state, self._compared[worker.run_id]
        compared.points, compared.batches = state.judge.past_points, state.batches.repeats.judged
        compared.at = self._clock()
        origin = origin_of(worker.listing.run.config)
        reported = [one for one in state.incidents.all() if one.detector == BY_OTHER_RUNS and not one.dead]
        noted = any(one.kind == SHARED_DATA for one in reported)
        if noted and origin is None:
            return
        others = await self._library.others(worker, None if origin is None else origin.run)
        if noted:  # only an alarm is left to find
            others = {name: prints for name, prints in others.items() if origin and name == origin.run}
        own = await self._library.own(worker)
        earlier = next((one for one in reported if one.kind != SHARED_DATA and one.state == "open"), None)
        if earlier is not None:
            await self._follow_alarm(worker, earlier, own, others)
            return
        places = await in_thread(lambda: search_ids(own, others) or search(own, others))
        sure = [place for place in places if compared.is_confirmed(place)]
        declared = next((place for place in sure if origin and place.run == origin.run), None)
        if origin and declared and newest_step(own, others[origin.run], declared) <= origin.step:
            await self._report(worker, own, others, declared, partial(alarm, origin=origin))
        elif sure and not noted:
            # Of several with the same data the one that began first is the natural comparison.
            place = declared or min(sure, key=lambda one: self._library.created(one.run))
            await self._report(worker, own, others, place, note)

    async def _report(
        self,
        worker: RunWorker,
        own: Prints,
        others: Mapping[str, Prints],
        place: Place,
        finding: Callable[[Place, Stretch, str, int], Finding],
    ) -> None:
        stretch = await in_thread(lambda: stretch_of(own, others[place.run], place))
        name = self._library.name(place.run)
        await worker.take(finding(place, stretch, name, worker.state.judge.newest_step))

    async def _follow_alarm(
        self, worker: RunWorker, earlier: Incident, own: Prints, others: Mapping[str, Prints]
    ) -> None:
        """End an alarm where the data is no longer that of the other run, or none that its weights have learned."""
        known, compared = facts(earlier.evidence, SharedDataFacts), self._compared[worker.run_id]
        place, other = Place(known.by, known.other_run, known.shift, known.r, 0.0), others.get(known.other_run)
        if other is None or known.from_step is None:
            return
        compared.lost = 0 if goes_on(own, other, place) else compared.lost + 1
        if compared.lost >= LOST_TIMES or newest_step(own, other, place) > known.from_step:
            compared.lost = 0
            await worker.take(over(earlier, worker.state.judge.newest_step))
