"""In-memory data of a project's runs, to look for the data of live ones in it. Read in slow motion.

Runs that are followed are copied where they have news. Of the others one is read at a time, newest first, and kept
until an hour after the last look: from another worker's newest snapshot, each minute again while
that follows it, else from the archive: a finished run does not change.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from stabilitybackend.base.errors import StabilityBoardError
from stabilitybackend.base.quiet_log import QuietLog
from stabilitybackend.base.tasks import in_thread
from stabilitybackend.runs.index import RunIndex
from stabilitybackend.runs.manager import RunManager
from stabilitybackend.runs.state import RunState
from stabilitybackend.runs.worker import RunWorker
from stabilitybackend.schema.runs import STATUSES, Run
from stabilityplugins.other_runs.prints import Prints, prints_of

__all__ = ["Library"]

#: Runs of a project that a live one is compared with, newest ones.
MAX_RUNS = 200
#: Memory for all projects together, bytes: 200 runs of 100,000 points take 40 MiB, with batch ids 115 MiB. A full one
#: takes no further run.
MAX_BYTES = 128 * 2**20
#: Greatest age of the list of a project's runs, and time of keeping a run after the last look, seconds.
LIST_S, FORGET_S = 60.0, 3_600.0
#: A run that could not be read is tried again after so long, seconds.
AGAIN_S = 600.0

_log = logging.getLogger(__name__)

#: How far a run was when it was copied: points, batches, head.
_Reached = tuple[int, int, int]


@dataclass
class _Known:
    """A run that is kept. final: it was over when it was copied. copied, used: when, monotonic seconds."""

    prints: Prints
    reached: _Reached
    name: str
    created: float
    final: bool
    copied: float
    used: float


class Library:
    """The data of runs.

    Args:
        manager: of the runs that are followed. index: of all runs.
        clock: seconds that never go back.
    """

    def __init__(self, manager: RunManager, index: RunIndex, clock: Callable[[], float] = time.monotonic) -> None:
        self._manager = manager
        self._index = index
        self._clock = clock
        self._known: dict[str, _Known] = {}
        #: Project -> when it was listed, and its newest runs.
        self._lists: dict[str, tuple[float, list[str]]] = {}
        self._failed: dict[str, float] = {}
        self._quiet = QuietLog(_log)

    @property
    def nbytes(self) -> int:
        """Bytes of all that is kept."""
        return sum(known.prints.nbytes for known in self._known.values())

    async def own(self, worker: RunWorker) -> Prints:
        """Return the present data of a followed run."""
        return (await self._copied(worker)).prints

    async def others(self, worker: RunWorker, first: str | None = None) -> dict[str, Prints]:
        """Return the data of a project's other runs that are read by now; one more is read.

        Args:
            worker: of the run that is compared. first: a run that is read before all others.

        Raises:
            RedisError: Redis is away.
        """
        run_ids = [one for one in await self._listed(worker.listing.run.project) if one != worker.run_id]
        if first in run_ids:
            run_ids.sort(key=lambda one: one != first)
        followed = self._manager.followed()
        for run_id in run_ids:
            if run_id in followed and (run_id in self._known or not self._is_full(run_ids)):
                await self._copied(followed[run_id])
        await self._read_one([run_id for run_id in run_ids if run_id not in followed])
        now, found = self._clock(), {}
        for run_id in run_ids:
            if (known := self._known.get(run_id)) is not None:
                known.used = now
                found[run_id] = known.prints
        return found

    def name(self, run_id: str) -> str:
        """Return the display name of a kept run."""
        return self._known[run_id].name

    def created(self, run_id: str) -> float:
        """Return when a run that is kept began, unix seconds."""
        return self._known[run_id].created

    async def _listed(self, project: str) -> list[str]:
        """Return the newest runs of a project, without those that were deleted since they were listed."""
        now = self._clock()
        at, run_ids = self._lists.get(project, (float("-inf"), []))
        if now - at > LIST_S:
            run_ids = (await self._index.page(MAX_RUNS, None, project)).ids
            self._lists = {name: kept for name, kept in self._lists.items() if now - kept[0] <= FORGET_S}
            self._lists[project] = (now, run_ids)
            self._failed = {run_id: failed for run_id, failed in self._failed.items() if now - failed <= AGAIN_S}
            self._known = {run_id: known for run_id, known in self._known.items() if now - known.used <= FORGET_S}
        return await self._index.existing(run_ids)

    async def _copied(self, worker: RunWorker) -> _Known:
        """Return a followed run's kept data, copied again where it has news."""
        return await self._copied_from(worker.state, worker.listing.run)

    async def _copied_from(self, state: RunState, run: Run) -> _Known:
        known = self._known.get(run.run_id)
        reached = (state.judge.past_points, state.batches.repeats.judged, state.fold.tree.head)
        if known is None or known.reached != reached:
            past, batches = state.judge.past, state.batches.ids.all_on(state.fold.tree.path())
            prints = await in_thread(lambda: prints_of(past, *batches()))
            now = self._clock()
            known = _Known(prints, reached, run.name or run.run_id, run.created, False, now, now)
            self._known[run.run_id] = known
        return known

    async def _read_one(self, run_ids: Iterable[str]) -> None:
        """Read the first of the runs that are unread, or that another worker follows and was read long ago."""
        now = self._clock()
        left = [
            one
            for one in run_ids
            if one not in self._failed
            and ((known := self._known.get(one)) is None or not (known.final or now - known.copied < LIST_S))
        ]
        if not left or self._is_full(left):
            return
        run_id = next((one for one in left if one not in self._known), left[0])
        try:
            known = await self._read(run_id)
            known.copied = now
        except StabilityBoardError as error:
            self._failed[run_id] = now
            self._quiet.log(logging.WARNING, f"run {run_id} is not compared with live ones for now: {error.message}")

    async def _read(self, run_id: str) -> _Known:
        """Read a run that is not followed here; where it is taken up for that, it is let go again by itself."""
        if (state := await self._manager.readers.written_down(run_id)) is not None:
            run = await self._index.stored(run_id)
            known = await self._copied_from(state, run)
            known.final = STATUSES[run.status].over
            return known
        known = await self._copied(await self._manager.glance(run_id))
        known.final = True
        return known

    def _is_full(self, left: Sequence[str]) -> bool:
        if self.nbytes < MAX_BYTES:
            return False
        text = f"some of {len(left)} runs of a project are not compared with live ones: no room for more than others"
        self._quiet.log(logging.WARNING, text)
        return True
