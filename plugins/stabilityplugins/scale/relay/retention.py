"""Removal of old runs where several workers share them: each removes its own, and no other's.

A run is its owner's; one without an owner, as most ended ones, is the worker's that would take it
(scale/placement.py). Two workers that see different members for a moment may both try: the fence of the run
lets one of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

import msgspec

from stabilitybackend.access.auth import Principal
from stabilitybackend.base.errors import BadRequest, Unavailable
from stabilitybackend.runs.archiving.retention import Retention, check_days
from stabilitybackend.schema.server import RetainedRun
from stabilityplugins.scale.members import Members
from stabilityplugins.scale.relay.calls import Calls
from stabilityplugins.scale.relay.owners import Owners, Target

__all__ = ["SharedRetention"]

_NAME = "retention"


class _Asked(msgspec.Struct, omit_defaults=True):
    """The arguments of ``Retention.apply``."""

    days: float
    who: str
    key_id: str | None = None
    dry_run: bool = False
    project: str | None = None


class SharedRetention:
    """``Retention`` over all workers.

    Args:
        here: of this process; it is given its share.
    """

    def __init__(self, here: Retention, calls: Calls, owners: Owners, members: Members) -> None:
        self._here = here
        self._calls = calls
        self._owners = owners
        self._members = members
        here.others = self._others
        calls.work[_NAME] = self._work

    async def apply(
        self, days: float, *, who: str, key_id: str | None = None, dry_run: bool = False, project: str | None = None
    ) -> list[RetainedRun]:
        """Let each worker delete its own; return all of them, oldest first. Args as ``Retention.apply``.

        Raises:
            BadRequest: ``days`` is too small.
            Unavailable: no worker is alive, or one went away meanwhile: its part is still there.
        """
        check_days(days)
        workers = [Target(one.member_id, one.url) for one in self._members.having("worker")]
        if not workers:
            raise Unavailable(
                "no worker is alive, and only workers delete runs",
                hint="start one (stabilityboard up --role worker)",
                code="no_worker",
            )
        asked = _Asked(days, who, key_id, dry_run, project)
        found = await asyncio.gather(*(self._of(each, asked) for each in workers), return_exceptions=True)
        runs = dict[str, RetainedRun]()
        for each in found:
            if isinstance(each, BaseException):
                raise each
            for run in each:
                known = runs.get(run.run_id)
                if known is None or not known.deleted:  # two may have tried: only its absence counts
                    runs[run.run_id] = run
        return sorted(runs.values(), key=lambda run: run.updated)

    async def _of(self, worker: Target, asked: _Asked) -> list[RetainedRun]:
        if self._owners.is_me(worker):
            return await self._done(asked)
        answer = await self._calls.ask(worker, _NAME, msgspec.json.encode(asked), answer_s=None)
        return msgspec.json.decode(answer, type=list[RetainedRun])

    async def _done(self, asked: _Asked) -> list[RetainedRun]:
        return await self._here.apply(
            asked.days, who=asked.who, key_id=asked.key_id, dry_run=asked.dry_run, project=asked.project
        )

    async def _work(self, body: bytes, person: Principal | None) -> bytes:
        try:
            asked = msgspec.json.decode(body, type=_Asked)
        except msgspec.MsgspecError as error:
            raise BadRequest(f"this is no retention of a version that is known here: {error}") from None
        return msgspec.json.encode(await self._done(asked))

    async def _others(self, run_ids: Sequence[str]) -> Collection[str]:
        """Return those runs that another process is to delete."""
        targets = await self._owners.find_all(run_ids)
        pairs = zip(run_ids, targets, strict=True)
        return {run_id for run_id, target in pairs if target is None or not self._owners.is_me(target)}
