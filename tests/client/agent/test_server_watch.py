"""An agent says to an address of the job's own that its server is away, and that it is back: once each."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import stabilityclient
from stabilityclient.agent.server_watch import ServerWatch
from support.agent.gateway import Gateway
from support.outside.receiver_thread import ReceiverThread
from support.waiting import wait_until


@pytest.fixture(scope="module")
def receiver() -> Iterator[ReceiverThread]:
    with ReceiverThread() as running:
        yield running


@pytest.fixture
def path(request: pytest.FixtureRequest) -> str:
    """Where messages of one test go."""
    return f"/services/{request.node.name}/s3cret"


def texts(receiver: ReceiverThread, path: str) -> list[str]:
    return [json.loads(body)["text"] for at, body in receiver.received if at == path]


def test_one_message_when_the_server_has_been_away_and_one_when_it_is_back(
    start: Callable[..., stabilityclient.Run],
    receiver: ReceiverThread,
    path: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STABILITY_AGENT_ALERT_URL", f"{receiver.url}{path}")
    monkeypatch.setenv("STABILITY_AGENT_ALERT_AFTER_S", "1")
    with Gateway() as server:
        run = start(url=server.url, name="<7b>")
        run.log(1, {"loss": 1.0})
        wait_until(lambda: server.store.steps() == [1], 10, "the first point arrives")
    wait_until(lambda: texts(receiver, path), 20, "it says that the server is away")
    with Gateway(port=server.port, store=server.store) as again:
        wait_until(lambda: len(texts(receiver, path)) == 2, 20, "it says that the server is back")
        run.log(2, {"loss": 1.0})
        assert run.finish() == "delivered"
        assert again.store.steps() == [1, 2]
    away, back = texts(receiver, path)
    assert away.startswith(f":warning: Stabilityboard at 127.0.0.1:{server.port} can't be reached from ")
    assert "&lt;7b&gt; (r1)" in away
    assert back.startswith(f":white_check_mark: Stabilityboard at 127.0.0.1:{server.port} is back after ")
    assert "s3cret" not in (Path(str(run.folder)) / "agent" / "agent.log").read_text()


class Node:
    """What an agent knows, and a watch whose clock is the test's."""

    def __init__(self, folder: Path, url: str, ranks: tuple[int, ...] = (0, 1), **more: str) -> None:
        self.now, self.logged = 1_000.0, list[str]()
        (folder / "agent").mkdir(parents=True, exist_ok=True)
        self.uplink: Any = SimpleNamespace(connected=False, refused="")
        sources: Any = SimpleNamespace(
            ranks=lambda: [SimpleNamespace(info=SimpleNamespace(rank=rank), over=False) for rank in ranks]
        )
        environ = {"STABILITY_AGENT_ALERT_URL": url, **more}
        self.watch = ServerWatch(
            folder,
            environ,
            "http://u:p@board:80/hub/jo",
            "n0",
            sources,
            self.uplink,
            self.logged.append,
            lambda: self.now,
        )

    async def look(self, later_s: float = 0.0) -> bool:
        """Look once; return whether a message was taken."""
        self.now += later_s
        text = self.watch._news()
        return text is not None and await self.watch._posted(text)


async def test_only_the_agent_on_the_node_of_rank_0_says_it_and_after_its_time_alone(
    receiver: ReceiverThread, path: str, tmp_path: Path
) -> None:
    others = Node(tmp_path / "b", receiver.url + path, ranks=(2, 3))
    first = Node(tmp_path / "a", receiver.url + path)
    assert [await others.look(after) for after in (0, 119, 2, 600)] == [False] * 4
    assert [await first.look(after) for after in (0, 119, 2, 600)] == [False, False, True, False]
    assert len(texts(receiver, path)) == 1
    assert "Stabilityboard at board:80/hub/jo can't be reached from n0 for 2 min" in texts(receiver, path)[0]


async def test_an_agent_that_is_started_again_repeats_nothing_and_still_says_that_the_server_is_back(
    receiver: ReceiverThread, path: str, tmp_path: Path
) -> None:
    before = Node(tmp_path, receiver.url + path)
    assert [await before.look(), await before.look(130)] == [False, True]
    after = Node(tmp_path, receiver.url + path)
    after.now = before.now
    assert not await after.look(500)
    after.uplink.connected = True
    assert [await after.look(), await after.look(300)] == [True, False]
    assert [text.split(" ")[0] for text in texts(receiver, path)] == [":warning:", ":white_check_mark:"]


async def test_a_message_that_was_not_taken_is_tried_again_and_the_address_is_in_no_log(tmp_path: Path) -> None:
    node = Node(tmp_path, "http://127.0.0.1:9/s3cret", STABILITY_AGENT_ALERT_AFTER_S="soon")
    assert [await node.look(), await node.look(130), await node.look(5)] == [False, False, False]
    assert node.logged == [
        "STABILITY_AGENT_ALERT_AFTER_S is 'soon', expected seconds > 0: 120 is used",
        *["the address of STABILITY_AGENT_ALERT_URL did not take a message (URLError); it is tried again"] * 2,
    ]


@pytest.mark.parametrize(("url", "said"), [("", []), ("s3cret", ["STABILITY_AGENT_ALERT_URL is not an address"])])
async def test_without_an_address_nothing_is_watched(url: str, said: list[str], tmp_path: Path) -> None:
    node = Node(tmp_path, url)
    await node.watch.run()
    assert [text.split(",")[0] for text in node.logged] == said
