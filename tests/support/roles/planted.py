"""Faults that are planted into a server's own process, so that a checker can be shown to see them.

``STABILITY_TEST_PLANTED`` names some of FAULTS, separated by commas. Only processes that tests fork read it.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

__all__ = ["ACCEPTED", "CLOCK_FILE", "FAULTS", "PLANTED", "plant"]

#: Environment variable that names the faults.
PLANTED = "STABILITY_TEST_PLANTED"
#: Environment variable: the file that says how far the clock of a process is off.
CLOCK_FILE = "STABILITY_TEST_CLOCK"

#: Behind the key of a run's owner, a list: the token of each write that was accepted, in the order in which Redis
#: carried them out.
ACCEPTED = ":accepted"

#: What ``write.lua`` and ``commit.lua`` compare of the numbers of writes.
_LOST = "written < tonumber(ARGV[2]) or written >= tonumber(ARGV[3])"


def plant(names: str) -> None:
    """Plant faults into this process, before its server is made."""
    for name in filter(None, names.split(",")):
        FAULTS[name]()


def _accepted() -> None:
    """No fault: every write that is accepted is noted, in the same call."""
    from stabilitybackend.runs.ownership import fence

    original: Callable[[str], str] = fence._script
    note = f"redis.call('RPUSH', KEYS[1] .. '{ACCEPTED}', ARGV[1])\n"
    marks = {"write.lua": "return 1\n", "commit.lua": "return {1}\n"}

    def script(name: str) -> str:
        text = original(name)
        mark = marks.get(name)
        if mark is None:
            return text
        assert text.endswith(mark)
        return text[: -len(mark)] + note + mark

    fence._script = script  # type: ignore[assignment]


def _no_fence() -> None:
    """Writes compare no token, and no number."""
    from stabilitybackend.runs.ownership import fence

    original: Callable[[str], str] = fence._script
    compared = ("redis.call('HGET', KEYS[1], 'token') ~= ARGV[1]", _LOST)

    def script(name: str) -> str:
        text = original(name)
        for one in compared:
            text = text.replace(one, "false")
        return text

    fence._script = script  # type: ignore[assignment]


def _lost_writes() -> None:
    """Writes do not ask whether those before them are still there."""
    from stabilitybackend.runs.ownership import fence

    original: Callable[[str], str] = fence._script
    assert _LOST in original("write.lua")
    fence._script = lambda name: original(name).replace(_LOST, "false")  # type: ignore[assignment]


def _stepped_clock() -> None:
    """No fault: the wall clock of this process is off by what the file says that CLOCK_FILE names, seconds.

    Our code gets its clock handed in as ``time.time``; what was imported before this process was forked has it as a
    default already. The clocks that run evenly stay as they are, as they do where an administrator sets the time.
    """
    right, file = time.time, Path(os.environ[CLOCK_FILE])

    def stepped() -> float:
        try:
            return right() + float(file.read_text() or 0.0)
        except FileNotFoundError:
            return right()

    time.time = stepped
    for one in gc.get_objects():  # noqa: TID251  # before the process has other threads
        if isinstance(one, FunctionType):
            if one.__defaults__ is not None and right in one.__defaults__:
                one.__defaults__ = tuple(stepped if value is right else value for value in one.__defaults__)
            named = one.__kwdefaults__ or {}
            named.update({name: stepped for name, value in named.items() if value is right})
        elif isinstance(one, ModuleType) and one.__name__.startswith("stability"):
            for name in [name for name, value in vars(one).items() if value is right]:
                setattr(one, name, stepped)


def _impatient() -> None:
    """No fault: files that nobody knows are looked for within seconds, as a test can wait for it."""
    from stabilitybackend.runs.archiving import archiver, unlisted, window

    archiver.FOREIGN_S, window.SWEEP_AFTER_S, unlisted.LOOK_AGAIN_S = 3.0, 3.0, 5.0


def _number_only() -> None:
    """The token is the number of the takeover as its taker counts them, and no random one."""
    from stabilitybackend.runs.ownership import fence

    async def take(self: Any) -> None:
        epoch = int(await self.redis.hget(self._keys.owner, "epoch") or 0) + 1
        self._ownership.token = lambda: str(epoch)
        await original(self)

    original = fence.Fence.take
    fence.Fence.take = take  # type: ignore[method-assign]


def _young_sweep() -> None:
    """Files that another process may be writing are swept at once."""
    from stabilitybackend.runs.archiving import archiver

    archiver.FOREIGN_S = 0.0


def _no_connection_numbers() -> None:
    """The end of any connection of an agent is the end of the agent's connection."""
    from stabilityplugins.scale.roles import owner_side, reports

    first = "if redis.call('HGET', KEYS[1], 'n:' .. ARGV[1]) ~= ARGV[2] then return 0 end\n"
    assert first in reports._DISCONNECT
    reports._DISCONNECT = reports._DISCONNECT.replace(first, "")
    original = owner_side.OwnerSide._take

    async def take(self: Any, run: Any, report: Any) -> None:
        if isinstance(report, reports.Disconnected):
            report = reports.Disconnected(report.agent, 2**60)
        await original(self, run, report)

    owner_side.OwnerSide._take = take  # type: ignore[method-assign]


def _stored_is_durable() -> None:
    """What is stored counts as durable at once."""
    from stabilitybackend.ingest import durability

    async def holding(self: Any) -> set[str]:
        return set(self._asks())

    durability.Durability._holding = holding  # type: ignore[method-assign]
    durability.EVERY_S = 0.02


def _clock_off(seconds: float) -> Callable[[], None]:
    """Set the clock of this process, and of nothing else: also where it was taken as a default before."""

    def plant_it() -> None:
        real = time.time

        def off() -> float:
            return real() + seconds

        time.time = off
        modules = [one for name, one in list(sys.modules.items()) if name.startswith("stability")]
        for owner in [*modules, *(one for module in modules for one in vars(module).values() if isinstance(one, type))]:
            for each in vars(owner).values():
                if isinstance(each, FunctionType):
                    each.__defaults__ = each.__defaults__ and tuple(off if d is real else d for d in each.__defaults__)
                    each.__kwdefaults__ = each.__kwdefaults__ and {
                        name: off if d is real else d for name, d in each.__kwdefaults__.items()
                    }

    return plant_it


FAULTS: Mapping[str, Callable[[], None]] = {
    "accepted": _accepted,
    "impatient": _impatient,
    "stepped_clock": _stepped_clock,
    "lost_writes": _lost_writes,
    "no_fence": _no_fence,
    "number_only": _number_only,
    "young_sweep": _young_sweep,
    "no_connection_numbers": _no_connection_numbers,
    "stored_is_durable": _stored_is_durable,
    "hour_ahead": _clock_off(3_600.0),
    "hour_behind": _clock_off(-3_600.0),
}


def plant_from_environment() -> None:
    """Plant what the environment names."""
    plant(os.environ.get(PLANTED, ""))
