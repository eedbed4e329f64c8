"""A server that answers wrongly, refuses the key or speaks another version: it is told, and nothing is lost."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

import stabilityclient
from stabilityclient.sidecar import agent_lives
from stabilityclient.wire import Ack, Error, Frame, Hello, Message, Nack, Welcome
from support.agent.gateway import Gateway
from support.agent.spooled import spools
from support.waiting import wait_until

Start = Callable[..., stabilityclient.Run]


def _every(
    nth: int, wrong: Callable[[Frame], Message | bytes | None]
) -> Callable[[Frame, Message], Message | bytes | None]:
    seen = [0]

    def answer(frame: Frame, message: Message) -> Message | bytes | None:
        seen[0] += 1
        return wrong(frame) if seen[0] % nth == 0 else message

    return answer


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(_every(3, lambda f: Error("busy", "Redis is away")), id="busy"),
        pytest.param(_every(3, lambda f: Error("bad_message", "a bit flipped")), id="bad-message"),
        pytest.param(_every(3, lambda f: Nack(f.source.source, 1, "from the start please")), id="nack-from-1"),
        pytest.param(_every(3, lambda f: Nack(f.source.source, 10**9, "what never was")), id="nack-beyond"),
        pytest.param(_every(3, lambda f: Ack(f.source.source, 10**9)), id="ack-beyond"),
        pytest.param(_every(3, lambda f: Ack("nobody", 5)), id="ack-for-nobody"),
        pytest.param(_every(3, lambda f: b"\xff\x00garbage"), id="garbage"),
        pytest.param(_every(3, lambda f: Hello("r", "a", "n", "0")), id="wrong-kind"),
    ],
)
def test_a_server_that_answers_wrongly_gets_everything_once_all_the_same(
    start: Start, answer: Callable[[Frame, Message], Message | bytes | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Gateway(answer=answer) as server:
        run = start(url=server.url)
        for step in range(300):
            run.log(step, {"loss": 1.0})
            time.sleep(0.001)
        assert run.finish() == "delivered"
        assert server.store.steps() == list(range(300))


def test_a_wrong_key_is_told_and_the_data_stays_for_the_right_one(
    start: Start, quiet: None, caplog: pytest.LogCaptureFixture
) -> None:
    with Gateway(key="right") as server:
        run = start(url=server.url, api_key="wrong-0af31c")
        run.log(0, {"loss": 1.0})
        wait_until(lambda: "401" in caplog.text, 10, "the job's log says why")
        assert run.finish() == "spooled"
        assert "STABILITY_API_KEY" in caplog.text
        assert server.store.frames == []
        wait_until(lambda: not agent_lives(run.folder), 10, "the agent leaves when the job is over")
        files = [path.read_bytes() for path in Path(str(run.folder)).rglob("*") if path.is_file()]
        assert not any(b"0af31c" in data for data in files), "the key is on disk"
    assert spools(run.folder)


@pytest.mark.usefixtures("quiet")
def test_a_missing_key_is_called_missing(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    with Gateway(key="right") as server:
        run = start(url=server.url)
        wait_until(lambda: "needs an API key and none is set" in caplog.text, 10, "the job's log says why")
        assert run.finish() == "spooled"


def test_the_right_key_is_taken(start: Start) -> None:
    with Gateway(key="right") as server:
        run = start(url=server.url, api_key="right")
        run.log(0, {"loss": 1.0})
        assert run.finish() == "delivered"


def test_a_server_of_another_version_is_named_and_the_agent_stays_quiet(start: Start) -> None:
    def refuse(hello: Hello, welcome: Welcome) -> Message:
        return Error("wrong_version", "speak version 2", fatal=True)

    with Gateway(welcome=refuse) as server:
        run = start(url=server.url)
        state = wait_until(
            lambda: run._components.sidecar.state().get("state") == "refused" and run._components.sidecar.state(),
            10,
            "",
        )
        assert "speak version 2" in state["error"]
        assert len(server.hellos) == 1
        assert run.finish() == "spooled"
