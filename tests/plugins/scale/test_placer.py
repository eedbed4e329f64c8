"""A worker takes the runs that are its own, and leaves alone for a while what can't be taken up."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stabilitybackend.runs.archiving.recovery import Recovery
from stabilitybackend.runs.index import RunIndex
from stabilityplugins.scale.members import Member, Members
from stabilityplugins.scale.roles.inbox import Outbox
from stabilityplugins.scale.roles.placer import FIRST_RETRY_S, MOST_RETRY_S, Placer
from support.job_frames import Job
from support.manager_stack import Stage


async def test_a_run_that_can_not_be_taken_up_is_tried_again_after_pauses_that_grow_until_it_can(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, tries = 0.0, 0
    await stage.send(Job().rows([1, 2, 3]))
    await stage.restart()
    restored = Recovery.restored

    async def broken(self: Recovery, *arguments: Any) -> Any:
        nonlocal tries
        tries += 1
        raise ZeroDivisionError

    monkeypatch.setattr(Recovery, "restored", broken)
    members, index = Members(stage.redis, Member("all", ("worker",), "http://w:1")), RunIndex(stage.redis)
    await members.beat()
    await index.note_live("run-1", stage.now)
    placer = Placer(stage.redis, members, index, stage.manager, Outbox(stage.redis), lambda: now)

    async def looked_at(second: float) -> int:
        """Return how often it was tried once a look at this second is over."""
        nonlocal now
        now, before = second, tries
        await placer.place()
        if placer._tried["run-1"][1] > now and placer._tried["run-1"][0] > before:
            await stage.until(lambda: tries > before and not stage.manager.owned(), "it is tried")
        return tries

    assert [await looked_at(at) for at in (0.0, 0.5 * FIRST_RETRY_S)] == [1, 1]
    assert [await looked_at(FIRST_RETRY_S * at) for at in (1.0, 2.5, 3.0, 6.5, 7.0)] == [2, 2, 3, 3, 4]
    monkeypatch.setattr(Recovery, "restored", restored)
    now += MOST_RETRY_S
    await placer.place()
    await stage.until(lambda: stage.manager.followed(), "it is judged")
    await placer.place()
    assert placer._tried == {}


async def test_a_worker_that_takes_no_part_takes_no_run_though_there_is_no_other(stage: Stage) -> None:
    await stage.send(Job().rows([1, 2, 3]))
    await stage.restart()
    await Members(stage.redis, Member("door", ("door",), "http://d:1", "0.1.0")).beat()
    await asyncio.sleep(0.002)  # Redis counts milliseconds
    members, index = Members(stage.redis, Member("all", ("worker",), "http://w:1", "0.3.0")), RunIndex(stage.redis)
    await members.beat()
    await index.note_live("run-1", stage.now)
    await Placer(stage.redis, members, index, stage.manager, Outbox(stage.redis)).place()
    assert (members.takes_part, stage.manager.owned(), stage.manager.waking.total) == (False, {}, 0)
