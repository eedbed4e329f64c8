"""One answer for all who ask the same, never one that no longer holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from stabilitybackend.base import shared_answers
from stabilitybackend.base.shared_answers import Read, SharedAnswers


class State:
    """Of a run."""


class Kitchen:
    """Makes answers, each when it is told to, and counts them."""

    def __init__(self) -> None:
        self.now = 0.0
        self.made = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.shared = SharedAnswers(lambda: self.now)
        self.state = State()

    async def ask(
        self, asked: str = "loss", lineage: str = "one", cursor: str = "7-0", age: float = 0.0, whole: bool = True
    ) -> bytes:
        async def make() -> Read:
            self.made += 1
            number = self.made
            await self.gate.wait()
            return Read(b"%d" % number, whole)

        return await self.shared.get(asked, self.state, lineage, cursor, age, make)


async def test_all_who_ask_at_the_same_time_get_one_answer() -> None:
    kitchen = Kitchen()
    kitchen.gate.clear()
    asked = [asyncio.create_task(kitchen.ask()) for _ in range(32)]
    await asyncio.sleep(0)
    kitchen.gate.set()
    assert set(await asyncio.gather(*asked)) == {b"1"}
    assert (kitchen.shared.made, kitchen.shared.shared) == (1, 31)


async def test_an_answer_holds_until_the_next_frame_and_for_a_moment_after_it_for_who_takes_that() -> None:
    kitchen = Kitchen()
    await kitchen.ask(cursor="7-0")
    kitchen.now = 1000.0
    assert await kitchen.ask(cursor="7-0") == b"1"  # nothing came since
    kitchen.now = 0.9
    assert await kitchen.ask(cursor="8-0", age=1.0) == b"1"
    assert await kitchen.ask(cursor="8-0", age=0.5) == b"2"
    assert await kitchen.ask(cursor="9-0") == b"3"


def _other_question(kitchen: Kitchen) -> dict[str, str]:
    return {"asked": "grad_norm"}


def _fork(kitchen: Kitchen) -> dict[str, str]:
    return {"lineage": "two"}


def _restored(kitchen: Kitchen) -> dict[str, str]:
    kitchen.state = State()
    return {}


@pytest.mark.parametrize("change", [_other_question, _fork, _restored])
async def test_an_answer_from_before_a_change_is_given_to_nobody_after_it(
    change: Callable[[Kitchen], dict[str, str]],
) -> None:
    kitchen = Kitchen()
    await kitchen.ask(age=1.0)
    assert await kitchen.ask(age=1.0, **change(kitchen)) == b"2"


async def test_an_answer_with_unreadable_parts_is_given_to_nobody_else() -> None:
    kitchen = Kitchen()
    assert await kitchen.ask(whole=False) == b"1"
    assert await kitchen.ask() == b"2"


async def test_all_who_wait_get_the_error_and_the_next_one_an_answer() -> None:
    kitchen = Kitchen()

    async def fail() -> Read:
        await asyncio.sleep(0)
        raise OSError("the disk is away")

    waiting = [kitchen.shared.get("loss", kitchen.state, "one", "7-0", 0.0, fail) for _ in range(3)]
    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert [str(one) for one in found] == ["the disk is away"] * 3
    assert await kitchen.ask() == b"1"


async def test_who_goes_away_stops_nobody_else() -> None:
    kitchen = Kitchen()
    kitchen.gate.clear()
    first, second = (asyncio.create_task(kitchen.ask()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    kitchen.gate.set()
    assert await second == b"1"


async def test_what_is_kept_is_bounded_and_the_oldest_answer_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_answers, "MAX_BYTES", 2)
    kitchen = Kitchen()
    for name in ("a", "b", "a", "c"):
        await kitchen.ask(name)
    assert (await kitchen.ask("a"), await kitchen.ask("c"), await kitchen.ask("b")) == (b"1", b"3", b"4")
