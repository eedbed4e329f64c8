"""A server that says it has what it can't have, at the Welcome of a connection, loses nothing and stops nobody."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import stabilityclient
from stabilityclient.agent.upload.importer import ImportFailed, upload
from stabilityclient.wire import Ack, Frame, Hello, Message, Welcome, encode_message
from support.agent.gateway import Gateway, Store
from support.agent.spooled import spools, stored
from support.waiting import wait_until

Start = Callable[..., stabilityclient.Run]

#: What no process ever logs.
NEVER = 10**15


def _log_of(run: stabilityclient.Run) -> str:
    return (Path(str(run.folder)) / "agent" / "agent.log").read_text()


def _ranks(hello: Hello) -> list[str]:
    return [source.source for source in hello.sources if source.rank is not None]


class _Once:
    """Changes the first Welcome that names a rank; later ones are true."""

    def __init__(self, change: Callable[[Welcome, str], None]) -> None:
        self._change = change
        self._done = False

    def __call__(self, hello: Hello, welcome: Welcome) -> Message:
        if not self._done and _ranks(hello):
            self._done = True
            self._change(welcome, _ranks(hello)[0])
        return welcome


def _spoilt(store: Store) -> Callable[[Hello, Welcome], Message]:
    """A server that really holds such a number: whatever comes is a duplicate for it."""

    def welcome(hello: Hello, message: Welcome) -> Message:
        for name in _ranks(hello):
            store.last_seq[name] = message.last_seq[name] = NEVER
        return message

    return welcome


@pytest.mark.parametrize(
    ("change", "line"),
    [
        pytest.param(lambda w, name: w.last_seq.update({name: NEVER}), f"up to {NEVER}, and", id="beyond"),
        pytest.param(lambda w, name: w.last_seq.update({name: 200}), "up to 200, and 0 were sent", id="never-sent"),
        pytest.param(lambda w, name: w.last_seq.update({name: -5}), "up to -5, expected 0 or more", id="below-zero"),
        pytest.param(lambda w, name: w.last_seq.update({"r9-1-1": 7}), "'r9-1-1'", id="unknown-source"),
        pytest.param(lambda w, name: setattr(w, "server_time", float("nan")), "time is nan", id="no-time"),
        pytest.param(lambda w, name: setattr(w, "server_time", 1e300), "time is 1e+300", id="time-beyond"),
    ],
)
def test_a_welcome_with_a_number_that_cannot_be_is_named_in_the_log_and_all_arrives_once(
    start: Start, free_port: int, change: Callable[[Welcome, str], None], line: str
) -> None:
    run = start(url=f"http://127.0.0.1:{free_port}")
    for step in range(300):
        run.log(step, {"loss": 1.0})
    with Gateway(port=free_port, welcome=_Once(change)) as server:
        assert run.finish() == "delivered"
        assert server.store.steps() == list(range(300))
    assert line in _log_of(run)


def test_a_welcome_whose_number_is_no_integer_is_named_in_the_log_and_the_next_one_is_taken(
    start: Start, free_port: int
) -> None:
    met = [0]

    def welcome(hello: Hello, message: Welcome) -> Message | bytes:
        met[0] += 1
        if met[0] > 1:
            return message
        told = msgspec.to_builtins(message) | {"last_seq": dict.fromkeys(message.last_seq, "all")}
        return _with_body(encode_message(message), msgspec.msgpack.encode(told))

    run = start(url=f"http://127.0.0.1:{free_port}")
    run.log(0, {"loss": 1.0})
    with Gateway(port=free_port, welcome=welcome) as server:
        assert run.finish() == "delivered"
        assert server.store.steps() == [0]
    assert "Expected `int`, got `str`" in _log_of(run)


def test_what_a_server_takes_for_stored_that_was_never_written_stays_in_the_spool_until_one_takes_it(
    start: Start, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STABILITY_SPOOL_MIB", "16")  # so that confirmed chunks would go soon
    monkeypatch.setenv("STABILITY_FINISH_S", "20")
    row = {f"metric/{at}": 1.0 for at in range(500)}
    store = Store()
    with Gateway(store, port=free_port, welcome=_spoilt(store)) as server:
        run = start(url=server.url)
        for step in range(2000):
            run.log(step, row)
        wait_until(lambda: "nothing of it is sent" in _log_of(run), 20, "the agent says that it holds back")
        wait_until(lambda: _blind(server), 10, "the page can show it")
        met = len(server.hellos)
        assert run.finish() == "spooled"
        assert store.steps() == []
        # Refusing it by closing would be a loop of connections; one may be lost on a machine under load.
        assert len(server.hellos) <= met + 1, "the connection serves the others on the node meanwhile"
        wait_until(lambda: store.frames, 20, "the agent's own records are delivered")
        assert len(spools(run.folder)) >= 8
    store.last_seq.clear()
    again = start(url=f"http://127.0.0.1:{free_port}")
    with Gateway(store, port=free_port):
        wait_until(lambda: len(store.steps()) == 2000, 20, "all of it arrives at a server that is mended")
        assert again.finish() == "delivered"
    assert store.steps() == list(range(2000))


def test_an_answer_that_confirms_what_was_never_written_confirms_nothing(start: Start, free_port: int) -> None:
    lies = [3]

    def answer(frame: Frame, message: Message) -> Message:
        if frame.source.rank is None or not lies[0]:
            return message
        lies[0] -= 1
        return Ack(frame.source.source, NEVER)

    run = start(url=f"http://127.0.0.1:{free_port}")
    for step in range(3000):
        run.log(step, {"loss": 1.0})
    with Gateway(port=free_port, answer=answer) as server:
        assert run.finish() == "delivered"
        assert server.store.steps() == list(range(3000))
    assert f"confirms {NEVER}" in _log_of(run)


def test_a_server_that_has_more_than_this_agent_sent_gets_nothing_twice(start: Start, free_port: int) -> None:
    """As after an upload of a copy of the spool by hand, while the agent could not reach the server."""
    store = Store()
    run = start(url=f"http://127.0.0.1:{free_port}")
    for step in range(20_000):
        run.log(step, {"loss": 1.0})
    by_hand = stored(run.folder)
    store.frames, store.last_seq = by_hand.frames, by_hand.last_seq
    with Gateway(store, port=free_port):
        assert run.finish() == "delivered"
    assert store.steps() == list(range(20_000))


async def test_an_upload_of_what_a_server_takes_for_stored_fails_with_the_reason(start: Start) -> None:
    run = start()
    run.log(0, {"loss": 1.0})
    run.finish()
    store = Store()
    with (
        Gateway(store, welcome=_spoilt(store)) as server,
        pytest.raises(ImportFailed, match=f"confirms {NEVER}, and 4 were sent"),
    ):
        await upload(str(run.folder), server.url)
    assert spools(run.folder)


def _blind(server: Gateway) -> list[str]:
    found = [one["what"] for health in server.healths for one in health.agent_state["blind"]]
    return [what for what in found if what == "numbers"]


def _with_body(message: bytes, body: bytes) -> bytes:
    """Return a message of the same kind with another body and the right checksum."""
    return message[:4] + zlib.crc32(body).to_bytes(4, "little") + body
