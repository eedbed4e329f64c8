"""The bytes that an agent of version 62f28c5 sent are served by today's server, from hello to the end of its job."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from golden import samples
from golden.samples import Message
from stabilityclient.wire import (
    Ack,
    CommandMessage,
    EventBlock,
    Frame,
    Health,
    Hello,
    PointsBlock,
    SourceInfo,
    Welcome,
    decode_message,
    encode_message,
)
from support.gateway_stack import RawAgent, event_frame
from support.server_stack import RunningServer

_ANSWERS = samples.answers()
#: What is asked again of today's server when the older one had sent a command for the first time.
_REQUEST = ("kind", "to_step", "seed", "grace_s", "reason")
_COMPARED = [path for path in _ANSWERS if path.startswith(("/runs/job/segments", "/runs/job/series"))]
_COMPARED += ["/runs/job/incidents"]
_COMMANDS = {each["command_id"]: each for each in _ANSWERS["/runs/job/commands"]["commands"]}


class Replay:
    """Says what the agent said, in its order; people order what they had ordered, at the same places.

    Args:
        server: today's. agent: a connection to it.
    """

    def __init__(self, server: RunningServer, agent: RawAgent) -> None:
        self._server, self._agent = server, agent
        #: Ids of the recorded commands -> those of today's.
        self.ids: dict[bytes, bytes] = {}
        self._points = 0
        #: Sources of the ranks and their last numbers.
        self.ranks: dict[str, tuple[SourceInfo, int]] = {}

    async def say(self, messages: list[Message]) -> None:
        """Replay the talk; each frame has to be confirmed, each command to be sent to the agent."""
        for message in messages:
            what = decode_message(message.data)
            if message.by == "agent":
                await self._send(samples.with_other_ids(message.data, self.ids), what)
            elif isinstance(what, CommandMessage) and what.command["command_id"].encode() not in self.ids:
                await self._order(_COMMANDS[what.command["command_id"]])

    async def _send(self, data: bytes, what: Any) -> None:
        await self._agent.send(data)
        if isinstance(what, Hello):
            welcome = await self._agent.next(Welcome)
            assert set(welcome.last_seq) == {source.source for source in what.sources}
        elif isinstance(what, Frame):
            ack = await self._agent.next(Ack)
            assert (ack.source, ack.last_seq) == (what.source.source, what.last_seq)
            if what.source.rank is not None:
                self.ranks[what.source.source] = (what.source, what.last_seq)
            self._points += sum(len(block.values) // 8 for block in what.blocks if isinstance(block, PointsBlock))
        else:
            assert isinstance(what, Health)

    async def _order(self, then: dict[str, Any]) -> None:
        await asyncio.to_thread(self._caught_up)
        if then["kind"] == "restart":  # people had seen why
            await asyncio.to_thread(self._server.wait_for, "/runs/job/incidents", _has_a_death, "the death is known")
        body = {name: then[name] for name in _REQUEST if then.get(name) is not None}
        answer = await asyncio.to_thread(self._server.client.post, "/api/v1/runs/job/commands", json=body)
        assert answer.status_code == 201, answer.text
        given = answer.json()["command_id"]
        while (await self._agent.next(CommandMessage)).command["command_id"] != given:
            pass
        self.ids[then["command_id"].encode()] = given.encode()

    def _caught_up(self) -> None:
        """Wait until all that was confirmed is part of what a person sees."""
        self._server.wait_for(
            "/runs/job/segments",
            lambda r: sum(segment["points"] for segment in r["segments"]) == self._points,
            f"{self._points} points are read",
        )


def test_an_older_agent_is_served_from_hello_to_the_end_of_its_job_with_rollback_dump_and_restart(
    redis_url: str, tmp_path: Path
) -> None:
    async def replayed(server: RunningServer) -> list[str]:
        async with RawAgent(server.agent_url) as agent:
            replay = Replay(server, agent)
            await replay.say(samples.talk())
            await asyncio.to_thread(
                server.wait_for, "/runs/job/health", lambda r: [1 for a in r["agents"] if a["ranks"]] == [1], "Health"
            )
            return [now.decode() for now in replay.ids.values()]

    with RunningServer(redis_url, tmp_path / "data") as server:
        ids = asyncio.run(replayed(server))
        server.wait_for("/runs/job", lambda r: r["status"] == "finished", "the job is over")

        states = [server.get(f"/runs/job/commands/{each}")["state"] for each in ids]
        facts = {path: facts_of(server.client.get(f"/api/v1{path}").json()) for path in _COMPARED}
        [dump] = server.get("/runs/job/stacks")["dumps"]

    assert states == ["done", "done", "done"]
    assert facts == {path: facts_of(_ANSWERS[path]) for path in _COMPARED}
    assert dump["complete"]


@pytest.mark.parametrize("steps", [True, False], ids=["its job steps", "its job hangs"])
def test_a_task_for_an_agent_that_is_too_old_to_know_it_ends_with_what_to_do(
    redis_url: str, tmp_path: Path, steps: bool
) -> None:
    talk = samples.talk()
    before = next(at for at, message in enumerate(talk) if message.by == "server" and _is_command(message))

    async def ordered(server: RunningServer) -> str:
        async with RawAgent(server.agent_url) as agent:
            replay = Replay(server, agent)
            await replay.say(talk[:before])
            body = {"kind": "task", "task": "disk_space", "expires_s": 60 if steps else 1}
            answer = await asyncio.to_thread(server.client.post, "/api/v1/runs/job/commands", json=body)
            command_id: str = answer.json()["command_id"]
            assert (await agent.next(CommandMessage)).command["command_id"] == command_id
            # It put the command into its ranks' mailbox, and this is what they answered at their next boundary.
            says = {"state": "rejected", "detail": "task is not supported by this job yet"}
            for source, last_seq in replay.ranks.values() if steps else ():
                event = EventBlock("command", source.started, 1, {"command_id": command_id, "attempt": 1, **says})
                await agent.send(encode_message(event_frame(last_seq + 1, event, source)))
                await agent.next(Ack)
            await asyncio.to_thread(
                server.wait_for, f"/runs/job/commands/{command_id}", lambda r: r["progress"]["ended"], "it has ended"
            )
            return command_id

    with RunningServer(redis_url, tmp_path / "data") as server:
        command = server.get(f"/runs/job/commands/{asyncio.run(ordered(server))}")

    assert command["state"] == ("failed" if steps else "expired")
    assert "update stabilityclient" in command["progress"]["line"]


def _is_command(message: Message) -> bool:
    return isinstance(decode_message(message.data), CommandMessage)


def _has_a_death(answer: dict[str, Any]) -> bool:
    return any(each["kind"] == "process_death" for each in answer["incidents"])


def facts_of(answer: dict[str, Any]) -> list[Any]:
    """Return what segments, points and incidents are, without ids and times."""
    names = ("kind", "cause", "parent", "fork_step", "last_step", "metric", "rank", "segment", "steps", "values")
    [several] = [answer[each] for each in ("segments", "series", "incidents") if each in answer]
    return sorted(json.dumps({name: each.get(name) for name in names}) for each in several)
