"""An order whose agent is killed in its middle is ended by the next one, which knows from its files what was begun."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stabilityclient.agent.commands.agent_commands import MAX_BEGINS, AgentCommands, CommandToRun
from stabilityclient.plan import PLAN_VERSION
from stabilityclient.wire import started_ns
from support.agent.gateway import Gateway
from support.agent.small_job import SmallJob
from support.waiting import until, wait_until

#: Each says ``in`` when it is there: before that it obeys and answers as any rank.
_HOLDS_THE_LOCK = (
    "import ctypes\nsleep = ctypes.PyDLL(None).sleep\n"
    "def holding():\n    print('in', flush=True)\n    while True: sleep(600)\nholding()"
)
#: Leaves the interpreter's lock to its heart, which starts the next agent.
_RESTS = "def resting():\n    print('in', flush=True)\n    while True: time.sleep(600)\nresting()"
_DEAF = f"import signal\nsignal.signal(signal.SIGTERM, lambda *_: None)\n{_RESTS}"


def _gateway() -> Gateway:
    """Return a server that repeats no order to an agent that comes back."""
    return Gateway(welcome=lambda hello, welcome: msgspec.structs.replace(welcome, commands=[]))


def _order(kind: str, **more: Any) -> dict[str, Any]:
    # Far away, and not from now: cases are made when this file is read, minutes before they run.
    head = {"command_id": "c-1", "kind": kind, "state": "pending", "attempt": 1, "expires": 4e9}
    return head | more


def _restart(job: SmallJob, **more: Any) -> dict[str, Any]:
    """Return an order for the processes that run now."""
    sources = [str(rank["source"]) for rank in job.health_now()]
    starts = {job.gateway.healths[-1].node: f"{max(map(started_ns, sources)):x}"}
    plan = {"version": PLAN_VERSION, "run_id": "r1", "command_id": "c-1", "action": "relaunch", "checkpoint": None}
    return _order("restart", plan=plan, fence={"segment": 0, "segment_key": "", "starts": starts}, **more)


def _kill_agent(job: SmallJob) -> None:
    os.kill(job.agent_pid(), signal.SIGKILL)


def _wait_begun(job: SmallJob) -> None:
    def begun() -> list[int]:
        found = json.loads((job.folder / "agent" / "cursor.json").read_bytes())["orders"]["open"]
        return [1 for order in found if order["begun"]]

    wait_until(begun, 20, "the agent has begun")


def _the_answer(job: SmallJob) -> tuple[str, str]:
    """Return (state, detail) of the one answer, once the agent has had time for another."""
    job.wait_events("command", 1, 30.0)
    agent, heard = job.agent_pid(), len(job.gateway.healths)

    def later() -> bool:  # it leaves when no rank lives any more and all is delivered
        return len(job.gateway.healths) > heard or not Path(f"/proc/{agent}").exists()

    wait_until(later, 20, "the agent goes on or leaves")
    (answer,) = job.gateway.store.events("command", None)
    assert answer.data["command_id"] == "c-1"
    return answer.data["state"], answer.data["detail"]


def test_a_look_is_taken_again_by_the_agent_that_follows_the_killed_one(agents: Path) -> None:
    with _gateway() as gateway, SmallJob(agents, gateway, 2) as job:
        job.do(0, _RESTS)
        job.wait_in(0)
        job.do(1, _HOLDS_THE_LOCK)  # a look waits for its heart, for seconds
        job.wait_in(1)
        gateway.send(_order("dump_stacks"))
        _wait_begun(job)
        assert gateway.store.events("stacks", None) == []
        _kill_agent(job)
        state, detail = _the_answer(job)
        assert (state, detail) == ("acted", "the agent that began it ended in the middle; stacks of 2 of 2 ranks")
        assert ["in resting" in look["stack"] for look in job.wait_looks("c-1", 2)] == [True, False]
        assert [process.poll() for process in job.ranks] == [None, None]


def test_a_restart_is_brought_to_its_end_by_the_agent_that_follows_the_killed_one(agents: Path) -> None:
    with _gateway() as gateway, SmallJob(agents, gateway, 2) as job:
        job.do(0, _DEAF)
        job.do(1, _RESTS)
        job.wait_in(0)
        gateway.send(_restart(job, grace_s=3.0))
        job.ranks[1].wait(60)
        plan = (job.folder / "plan.json").read_bytes()
        _kill_agent(job)
        state, detail = _the_answer(job)
        assert (state, detail.partition("; ")[0]) == ("acted", "the agent that began it ended in the middle")
        assert "1 rank is ended" in detail
        assert (job.ranks[1].returncode, job.ranks[0].wait(60)) == (-signal.SIGTERM, -signal.SIGKILL)
        assert (job.folder / "plan.json").read_bytes() == plan


def test_a_restart_is_not_repeated_on_the_job_that_has_come_up_since(agents: Path) -> None:
    with _gateway() as gateway:
        with SmallJob(agents, gateway, 1) as job:
            job.do(0, _DEAF)
            job.wait_in(0)
            gateway.send(_restart(job, grace_s=60.0))
            wait_until((job.folder / "plan.json").exists, 20, "the plan is written")
            _wait_begun(job)
            _kill_agent(job)
            job.ranks[0].kill()
        with SmallJob(agents, gateway, 1) as job:
            state, detail = _the_answer(job)
            assert (state, job.ranks[0].poll()) == ("acted", None)
            assert detail == (
                "the agent that began it ended in the middle; the plan is written, and no rank that it was decided on "
                f"is alive here; rank 0 (pid {job.ranks[0].pid}) started since"
            )


async def _answers(before: object, **more: Any) -> list[tuple[str, str, bool]]:
    """Return what the agent answers that finds ``before`` in its files, and whether its handler knew that it is late.

    The server says nothing.
    """
    said: list[tuple[str, str, bool]] = []
    late: list[bool] = []

    async def handler(command: CommandToRun, over: bool) -> tuple[str, str]:
        late.append(over)
        return "acted", "looked"

    def say(command: CommandToRun, state: str, detail: str) -> None:
        said.append((state, detail, any(late)))

    orders = AgentCommands({"dump_stacks": handler, "restart": handler}, say, before, **more)
    work = asyncio.create_task(orders.run())

    async def done() -> bool:
        return not orders.busy

    await until(done, 5, "all is answered")
    work.cancel()
    return said


def _open(begun: int, kind: str = "dump_stacks", **more: Any) -> dict[str, Any]:
    return {"taken": [], "open": [{"command": _order(kind, **more), "clock_offset_s": 0.0, "begun": begun}]}


@pytest.mark.parametrize(
    ("before", "state", "detail"),
    [
        (_open(0), "acted", "looked"),
        (_open(1), "acted", "the agent that began it ended in the middle; looked"),
        (_open(1, expires=5.0), "failed", "the agent that began it ended in the middle; it is not begun again"),
        (_open(0, expires=5.0), "failed", "it expired before an agent could begin it here: nothing was done"),
        (
            _open(MAX_BEGINS),
            "failed",
            "the agent that began it ended in the middle, and so did the next one; it is not begun again",
        ),
    ],
    ids=["waited", "begun", "begun and expired", "waited and expired", "ended two agents"],
)
async def test_what_is_found_without_an_answer_gets_one(before: object, state: str, detail: str) -> None:
    assert [answer[:2] for answer in await _answers(before)] == [(state, detail)]


async def test_a_restart_that_is_too_late_is_given_to_who_knows_what_was_done() -> None:
    ((state, detail, late),) = await _answers(_open(1, "restart", expires=5.0))
    assert (state, detail) == ("acted", "the agent that began it ended in the middle; looked")
    assert late


@pytest.mark.parametrize(
    "garbage", [None, 5, ["a"], {"taken": 3, "open": 4}, {"open": [None, {}, {"command": {"command_id": "x"}}]}]
)
async def test_files_that_say_nonsense_give_no_order(garbage: object) -> None:
    assert await _answers(garbage) == []
