"""Looks whether live runs have the data of other runs of their project, beside the fold: a bounded share of one core.

A run's own detectors know its own points only, so that the same points give the same incidents wherever they are
judged. This is what they can't see, and no backtest sees it either: it depends on which other runs are stored. What is
found is an incident of the run like any other, stored and shown, and is known by that after a restart.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from redis.exceptions import RedisError

from stabilitybackend.detectors.engine.base import Finding
from stabilitybackend.errors import StabilityBoardError
from stabilitybackend.other_runs import report
from stabilitybackend.other_runs.library import Library
from stabilitybackend.other_runs.prints import Prints
from stabilitybackend.other_runs.search import Place, Stretch, goes_on, newest_step, search, search_ids, stretch_of
from stabilitybackend.process.quiet_log import QuietLog
from stabilitybackend.process.tasks import in_thread
from stabilitybackend.runs.manager import LIVE_STATES, RunManager
from stabilitybackend.runs.worker import RunWorker
from stabilitybackend.schema.evidence import facts
from stabilitybackend.schema.incidents import Incident
from stabilitybackend.schema.other_runs import BY_OTHER_RUNS, NOTE_KIND, SharedDataFacts

__all__ = ["OtherRuns"]

#: Pause between two rounds, seconds, at least; and at most, where a round took long.
ROUND_S, LONGEST_PAUSE_S = 1.0, 30.0
#: Part of the time that rounds may take: looking has no hurry, and all runs share one core.
SHARE = 0.05
#: New points or batches after which a run is looked at again.
LOOK_POINTS = 16
#: Looks that have to find the same place, and looks in a row without it that end an alarm.
CONFIRM_LOOKS = 2
LOST_LOOKS = 2
#: Places of one run that are remembered until they are confirmed.
MAX_PLACES = 64

_log = logging.getLogger(__name__)


@dataclass
class _Looked:
    """What is remembered of a live run between two looks.

    Attributes:
        points, batches: that it had at the newest one; at: when that was, monotonic seconds.
        head: its segment then. hits: how often each place was found. lost: looks without the place of its alarm.
    """

    points: int = 0
    batches: int = 0
    at: float = 0.0
    head: int = 0
    hits: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    lost: int = 0

    def is_confirmed(self, place: Place) -> bool:
        """Note a place that was found; say whether that was often enough."""
        key = (place.by, place.run, place.shift)
        self.hits[key] += 1
        if len(self.hits) > MAX_PLACES:
            del self.hits[next(iter(self.hits))]
        return place.by == "ids" or self.hits[key] >= CONFIRM_LOOKS  # ids are equal, or they are not


class OtherRuns:
    """Looks at the live runs of one server in turn.

    Args:
        manager: of the runs. library: what is kept of the runs that they are compared with.
    """

    def __init__(self, manager: RunManager, library: Library, clock: Callable[[], float] = time.monotonic) -> None:
        self._manager = manager
        self._library = library
        self._clock = clock
        self._looked: dict[str, _Looked] = {}
        self._quiet = QuietLog(_log)

    async def follow(self) -> None:
        """Look again and again, until it is cancelled."""
        while True:
            began = self._clock()
            try:
                await self.round()
            except (RedisError, OSError, StabilityBoardError) as error:
                self._quiet.log(logging.WARNING, f"runs are not compared with each other for now: {error}")
            except Exception as error:  # one run's mistake must not end it for all
                self._quiet.log(logging.ERROR, f"a run could not be compared with others: {error}", error)
            spent = self._clock() - began
            await asyncio.sleep(min(LONGEST_PAUSE_S, max(ROUND_S, spent / SHARE)))

    async def round(self) -> None:
        """Look at the live runs with news, those that waited longest first, as far as a round's time goes."""
        live = {
            run_id: worker
            for run_id, worker in self._manager.followed().items()
            if worker.listing.status in LIVE_STATES and worker.has_agents
        }
        for gone in self._looked.keys() - live.keys():
            del self._looked[gone]
        due = [run_id for run_id, worker in live.items() if self._has_news(worker)]
        due.sort(key=lambda run_id: self._looked[run_id].at)
        began = self._clock()
        for run_id in due:
            await self._look(live[run_id])
            if self._clock() - began > ROUND_S * SHARE:
                break

    def _has_news(self, worker: RunWorker) -> bool:
        state, looked = worker.state, self._looked.setdefault(worker.run_id, _Looked())
        points, batches = state.judge.past_points, state.batches.repeats.judged
        if looked.head != state.fold.tree.head:
            self._looked[worker.run_id] = looked = _Looked(head=state.fold.tree.head)
        return points - looked.points >= LOOK_POINTS or batches - looked.batches >= LOOK_POINTS

    async def _look(self, worker: RunWorker) -> None:
        state, looked = worker.state, self._looked[worker.run_id]
        looked.points, looked.batches = state.judge.past_points, state.batches.repeats.judged
        looked.at = self._clock()
        origin = report.origin_of(worker.listing.run.config)
        told = [one for one in state.incidents.all() if one.detector == BY_OTHER_RUNS and not one.dead]
        noted = any(one.kind == NOTE_KIND for one in told)
        if noted and origin is None:
            return
        others = await self._library.others(worker, origin and origin.run)
        if noted:
            others = {name: prints for name, prints in others.items() if origin and name == origin.run}
        own = await self._library.own(worker)
        alarm = next((one for one in told if one.kind != NOTE_KIND and one.state == "open"), None)
        if alarm is not None:
            await self._follow_alarm(worker, alarm, own, others)
            return
        places = await in_thread(lambda: search_ids(own, others) or search(own, others))
        sure = [place for place in places if looked.is_confirmed(place)]
        declared = next((place for place in sure if origin and place.run == origin.run), None)
        if origin and declared and newest_step(own, others[origin.run], declared) <= origin.step:
            await self._report(worker, own, others, declared, partial(report.alarm, origin=origin))
        elif sure and not noted:
            # All that had it are as good: the one that began first is where people look.
            place = declared or min(sure, key=lambda one: self._library.created(one.run))
            await self._report(worker, own, others, place, partial(report.note, more_runs=len(sure) - 1))

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
        self, worker: RunWorker, alarm: Incident, own: Prints, others: Mapping[str, Prints]
    ) -> None:
        """End an alarm where the data is no longer that of the other run, or none that its weights have learned."""
        known, looked = facts(alarm.evidence, SharedDataFacts), self._looked[worker.run_id]
        place, other = Place(known.by, known.other_run, known.shift, known.r, 0.0), others.get(known.other_run)
        if other is None or known.from_step is None:
            return
        looked.lost = 0 if goes_on(own, other, place) else looked.lost + 1
        if looked.lost >= LOST_LOOKS or newest_step(own, other, place) > known.from_step:
            await worker.take(report.over(alarm, worker.state.judge.newest_step))
