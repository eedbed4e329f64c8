"""Removes runs that ended long ago, by a setting once an hour or by command; the removal is in the log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence

from stabilitybackend.access.audit import AuditLog
from stabilitybackend.base.errors import BadRequest, NotFound, StabilityBoardError
from stabilitybackend.runs.index import BATCH, RunIndex
from stabilitybackend.runs.manager import RunManager
from stabilitybackend.schema.runs import Run
from stabilitybackend.schema.server import RetainedRun
from stabilitybackend.storage.redis_link import redis_errors

__all__ = ["MIN_DAYS", "Retention"]

#: Shortest time that can be asked for, days: a run that was silent for a night is not over.
MIN_DAYS = 1.0
#: How often the setting is acted on, and how long after the start for the first time, seconds.
SWEEP_S = 3_600.0
FIRST_SWEEP_S = 60.0
_DAY_S = 86_400.0

_log = logging.getLogger(__name__)


class Retention:
    """Finds and removes runs that have not reported for some days.

    A run counts from its last frame. It has ended by its status, and also when no agent is connected: a job
    that was cut off for so long and comes back makes its run again, from the rest of its spool.

    Args:
        clock: unix seconds now.
        audit: record of deletions and their authors.

    Attributes:
        others: returns those of some runs that are another process' to delete; where one process does all, none is.
    """

    def __init__(self, manager: RunManager, index: RunIndex, clock: Callable[[], float], audit: AuditLog) -> None:
        self.others: Callable[[Sequence[str]], Awaitable[Collection[str]]] | None = None
        self._audit = audit
        self._manager = manager
        self._index = index
        self._clock = clock

    async def apply(
        self, days: float, *, who: str, key_id: str | None = None, dry_run: bool = False, project: str | None = None
    ) -> list[RetainedRun]:
        """Delete the runs that ended more than ``days`` ago; return them, oldest first.

        Args:
            days: >= MIN_DAYS.
            who: who asks, for the audit log. key_id: their key, if they have one.
            dry_run: delete nothing, only list the candidates.
            project: only runs of this project; None for all.

        Raises:
            BadRequest: ``days`` is too small.
            Unavailable: Redis is away.
        """
        check_days(days)
        found = []
        with redis_errors():
            over = [
                run
                async for run in self._over(self._clock() - days * _DAY_S)
                if project is None or run.project == project
            ]
        for run in over:
            entry = RetainedRun(run.run_id, run.project, run.name, run.status, run.updated)
            if not dry_run:
                entry.problem = await self._delete(entry, days, who, key_id)
                entry.deleted = entry.problem is None
            found.append(entry)
        return found

    async def _over(self, before: float) -> AsyncIterator[Run]:
        """Yield the runs without a frame since ``before``."""
        offset = 0
        while ids := await self._index.created_before(before, offset, BATCH):
            offset += len(ids)
            others = () if self.others is None else await self.others(ids)
            for run in await self._index.stored_all(ids):
                if run.run_id not in others and run.updated < before and not self._manager.has_agents(run.run_id):
                    yield run

    async def _delete(self, run: RetainedRun, days: float, who: str, key_id: str | None) -> str | None:
        """Delete a run; return why that was not possible, None where it was."""
        run_id = run.run_id
        try:
            if (await self._manager.get(run_id)).has_agents:
                return "an agent has just connected"
            # Forced, because a run whose job vanished silently stays "unreachable".
            await self._manager.delete_run(run_id, force=True)
            await self._audit.add(who, key_id, "run.delete", run_id, f"no report for more than {days:g} days")
        except NotFound:
            return "it was deleted by somebody else"
        except StabilityBoardError as error:
            _log.warning("run %s: not deleted: %s", run_id, error.message)
            return error.message
        _log.warning(
            "run %s (%s, %s) deleted by %s: no report for more than %g days", run_id, run.name, run.status,
            who, days,
        )  # fmt: skip
        return None

    async def follow(self, days: float) -> None:
        """Act on the setting without end; ``end`` it to stop."""
        await asyncio.sleep(FIRST_SWEEP_S)
        while True:
            try:
                await self.apply(days, who="the setting STABILITY_RETENTION_DAYS")
            except Exception as error:  # whatever it is, the server and its runs go on
                _log.warning("old runs stay for now: %s", error or type(error).__name__)
            await asyncio.sleep(SWEEP_S)


def check_days(days: float) -> None:
    """Raise BadRequest where ``days`` is no time after which a run may be deleted."""
    if not MIN_DAYS <= days < float("inf"):
        raise BadRequest(
            f"days is {days:g}, expected {MIN_DAYS:g} or more",
            hint="to delete one run now: stabilityboard archive delete RUN",
        )
