"""A close look at every rank: what each is in, whatever it is in, and nobody is harmed."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from stabilityclient.agent.commands.agent_commands import MAX_WAITING, AgentCommands, CommandToRun
from stabilityclient.agent.watch.stacks import _cut
from stabilityclient.rank_state.probe import MAX_STACK_CHARS
from support.agent.gateway import Gateway
from support.agent.small_job import SmallJob
from support.waiting import until, wait_until


def _order(request: str) -> dict[str, Any]:
    return {
        "command_id": request,
        "kind": "dump_stacks",
        "state": "pending",
        "attempt": 1,
        "expires": time.time() + 15,
    }


#: What each rank does, and whether it goes on after the look.
_STATES = {
    "livelock": "def spinning():\n    while True: pass\n"
    "import threading\nthreading.Thread(target=spinning, daemon=True).start()\nspinning()",
    "queue": "import queue\ndef loading():\n    queue.Queue().get()\nwith run.phase('data'): loading()",
    "gil": "import ctypes\ndef holding():\n    while True: ctypes.PyDLL(None).sleep(600)\nholding()",
    "stopped": "import signal\nos.kill(os.getpid(), signal.SIGSTOP)\ntime.sleep(600)",
    "unregistered": "import faulthandler, signal\nfaulthandler.unregister(signal.SIGRTMIN + 6)\ntime.sleep(600)",
    "off": "def resting():\n    time.sleep(600)\nresting()",
    "recorder": "import types\n"
    "torch, there = types.ModuleType('torch'), types.ModuleType('torch.distributed')\n"
    "there.is_available = there.is_initialized = lambda: True\n"
    "sys.modules.update({'torch': torch, 'torch.distributed': there})\n"
    "time.sleep(600)",
    "children": "import subprocess\nsubprocess.run(['sleep', '60'])\ntime.sleep(600)",
}
_RANK = {name: rank for rank, name in enumerate(_STATES)}


@pytest.mark.soak
def test_one_look_tells_of_every_rank_what_it_does_harms_none_and_is_made_once(agents: Path) -> None:
    off = {_RANK["off"]: {"STABILITY_DUMP_SIGNAL": "off"}}
    with Gateway() as gateway, SmallJob(agents, gateway, len(_STATES), of_rank=off) as job:
        for rank, code in enumerate(_STATES.values()):
            job.do(rank, code)

        def all_there(ranks: dict[int, dict[str, Any]], state: dict[str, Any]) -> bool:
            return (
                ranks[_RANK["livelock"]].get("proc", {}).get("cpu", 0) > 0.02
                and ranks[_RANK["stopped"]]["proc"]["state"] == "T"
                and ranks[_RANK["queue"]]["phase"] == "data"
                and not ranks[_RANK["unregistered"]]["can_dump"]
            )

        blind = job.wait_health(lambda r, s: s["blind"] if all_there(r, s) else None, "all ranks are where they go")
        signals = [entry["why"] for entry in blind if entry["what"] == "signals"]
        assert sum("has no handler for it any more (SIGRTMIN+6)" in why for why in signals) == 1
        assert sum("STABILITY_DUMP_SIGNAL" in why for why in signals) == 1
        gateway.send(_order("d1"))
        gateway.send(_order("d1"))
        (answer,) = job.wait_events("command", 1)
        assert (answer.data["command_id"], answer.data["state"]) == ("d1", "acted")
        events = job.wait_looks("d1", len(_STATES))
        assert len(gateway.store.events("stacks", None)) == 1
        seen = {name: events[rank] for name, rank in _RANK.items()}
        assert [event["rank"] for event in events] == list(range(len(_STATES)))
        assert seen["livelock"]["stack"].count("in spinning") == 2
        # The signal's handler reads frames without the interpreter's lock: that can crash a process whose threads run.
        signalled = {name for name, rank in _RANK.items() if job.slot_file(rank).with_name("stacks").stat().st_size}
        assert signalled == {"gil"}
        assert seen["livelock"]["proc"]["cpu"] > 0.02
        assert "in loading" in seen["queue"]["stack"]
        assert seen["queue"]["slot"] | {"phase": "data", "step": 3} == seen["queue"]["slot"]
        assert "in holding" in seen["gil"]["stack"]
        assert seen["gil"]["stack_missing"] is None
        assert (seen["stopped"]["stack"], "state T" in seen["stopped"]["stack_missing"]) == (None, True)
        assert "no handler" in seen["unregistered"]["stack_missing"]
        assert "in resting" in seen["off"]["stack"]  # written by its heart thread
        assert "STABILITY_DUMP_SIGNAL" in seen["off"]["stack_missing"]
        (child,) = seen["children"]["proc"]["children"]
        os.kill(child["pid"], signal.SIGKILL)
        assert child["name"] == "sleep"
        assert all(event["collectives"] is None and event["collectives_missing"] for event in events)

        (why,) = job.wait_health(
            lambda r, s: [e["why"] for e in s["blind"] if e["what"] == "collectives"], "the missing recorder is named"
        )
        assert why.startswith(f"rank {_RANK['recorder']}: ")

        began = gateway.healths[0].agent_state["started"]
        os.kill(job.agent_pid(), signal.SIGKILL)
        job.wait_health(lambda r, s: s["started"] > began, "a rank starts the agent again")
        gateway.send(_order("d2"))  # the Welcome repeated the first one
        wait_until(lambda: len(gateway.store.events("command", None)) >= 2, 20, "the second look")
        assert [e.data["command_id"] for e in gateway.store.events("command", None)] == ["d1", "d2"]
        assert [process.poll() for process in job.ranks] == [None] * len(_STATES)


def test_an_order_that_came_too_late_or_is_no_order_of_ours_is_left_alone(agents: Path) -> None:
    with Gateway() as gateway, SmallJob(agents, gateway, 1):
        gateway.send(_order("late") | {"expires": time.time() - 1})
        gateway.send(_order("done") | {"state": "acted"})
        gateway.send({"kind": "dump_stacks", "command_id": None})
        gateway.send(_order("d1"))
        wait_until(lambda: gateway.store.events("command", None), 20, "the good order is answered")
        assert [e.data["command_id"] for e in gateway.store.events("command", None)] == ["d1"]
        assert not list((agents / "r1" / "commands").glob("*.json"))


async def test_orders_are_carried_out_one_at_a_time_and_a_handler_that_fails_is_an_answer() -> None:
    said: list[tuple[str, str, str]] = []
    running: list[str] = []

    async def handler(command: CommandToRun, over: bool) -> tuple[str, str]:
        running.append(command.command_id)
        assert len(running) == 1
        await asyncio.sleep(0)
        running.clear()
        if command.command_id == "o1":
            raise OSError("no disk")
        return "acted", "well"

    newer = {"command": _order("new") | {"kind": "later"}, "clock_offset_s": 0.0}  # of a newer agent that was killed
    before = {"taken": ["old"], "open": [newer]}
    orders = AgentCommands({"dump_stacks": handler}, lambda c, s, d: said.append((c.command_id, s, d)), before)
    work = asyncio.create_task(orders.run())
    assert not orders.take({"command_id": "r", "kind": "rollback"}, 0.0)
    for command_id in ("old", "o0", "o1", "o0", "o2"):
        assert orders.take(_order(command_id), 0.0)
    await until(_soon(lambda: len(said) == 4), 5, "all are answered")
    work.cancel()
    assert [(command_id, state) for command_id, state, _ in said] == [
        ("new", "failed"),
        ("o0", "acted"),
        ("o1", "failed"),
        ("o2", "acted"),
    ]
    assert ("OSError: no disk", "update the job" in said[0][2]) == (said[2][2], True)
    assert (orders.state(), orders.busy) == ({"taken": ["old", "new", "o0", "o1", "o2"], "open": []}, False)
    for number in range(MAX_WAITING + 2):
        orders.take(_order(f"w{number}"), 0.0)
    assert [command_id for command_id, state, _ in said[4:]] == [f"w{MAX_WAITING}", f"w{MAX_WAITING + 1}"]


def _soon(condition: Callable[[], bool]) -> Callable[[], Awaitable[bool]]:
    async def ask() -> bool:
        return condition()

    return ask


def test_of_stacks_that_are_too_long_the_main_thread_is_kept() -> None:
    threads = [f"Thread 0x{number:016x} (most recent call first):\n{'  File' * 500}\n\n" for number in range(40)]
    text = _cut("".join(threads) + "Current thread 0x1 (most recent call first):\n  File main")
    assert len(text) <= MAX_STACK_CHARS
    assert text.splitlines()[1].startswith("Thread 0x")
    assert text.endswith("File main")
