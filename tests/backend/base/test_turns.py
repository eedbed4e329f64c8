"""Long work of many is done one at a time; who is urgent goes first, and who was cancelled is in nobody's way."""

from __future__ import annotations

import asyncio

import pytest

from stabilitybackend.base.turns import Turns
from support.waiting import until


class Work:
    """Work that notes when it begins and goes on until ``end`` is set."""

    def __init__(self, turns: Turns, began: list[str], name: str, *, urgent: bool = False) -> None:
        self.end, self.urgent = asyncio.Event(), urgent
        self._turns, self._began, self._name = turns, began, name
        self.task = asyncio.create_task(self._do())

    async def _do(self) -> None:
        async with self._turns.mine(lambda: self.urgent):
            self._began.append(self._name)
            await self.end.wait()


async def test_one_works_at_a_time_those_that_are_urgent_first() -> None:
    turns, began = Turns(), list[str]()
    works = {name: Work(turns, began, name) for name in "abcd"}
    await until(lambda: began == ["a"], 10, "the first one works")
    works["c"].urgent = True  # while it waits
    for number, name in enumerate("acbd"):
        await until(lambda count=number + 1: len(began) == count, 10, "the next one works")
        assert began[-1] == name
        works[name].end.set()
    await asyncio.gather(*(work.task for work in works.values()))


@pytest.mark.parametrize("also_first", [True, False])
async def test_who_is_cancelled_while_it_waits_or_works_lets_the_next_one_work(also_first: bool) -> None:
    turns, began = Turns(), list[str]()
    first, second, third = (Work(turns, began, name) for name in "abc")
    await until(lambda: began == ["a"], 10, "the first one works")
    if also_first:
        first.task.cancel()  # in the same moment, and before the other one notices
    second.task.cancel()
    first.end.set()
    await until(lambda: began == ["a", "c"], 10, "the third one works")
    third.end.set()
    await third.task
    assert (first.task.cancelled(), second.task.cancelled()) == (also_first, True)


async def test_a_turn_that_was_just_given_to_one_that_is_cancelled_goes_on_to_the_next() -> None:
    turns, began = Turns(), list[str]()
    first, second, third = (Work(turns, began, name) for name in "abc")
    await until(lambda: began == ["a"], 10, "the first one works")
    first.end.set()
    first.task.add_done_callback(lambda _: second.task.cancel())
    await until(lambda: "c" in began, 10, "the third one works")
    third.end.set()
    await asyncio.gather(first.task, third.task)
