"""What goes out by apprise: each address gets a notice once, in few words, and no address is ever shown."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from stabilityalerting import Alert, AlertingSettingsError, Notice, SendError, sinks_from_env
from stabilityplugins.apprise.channel import MAX_TEXT_CHARS, AppriseSink, text_of
from support.incident_stream import incident

pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated")  # apprise asks for it on Python before 3.13

URL = "http://board/runs/run-1/incidents/i-1"


def notice(change: Any = "opened", why: str = "", **changes: Any) -> Notice:
    return Notice(Alert.from_json(json.dumps(incident(**changes))), change, URL, why=why)


async def mark() -> None:
    pass


@contextlib.asynccontextmanager
async def made(*urls: str, **more: Any) -> AsyncIterator[AppriseSink]:
    sink = AppriseSink(urls, **more)
    yield sink
    await sink.aclose()


def address(receiver: Any, path: str) -> str:
    return f"json://user:s3cret@127.0.0.1:{receiver.port}/{path}"


async def test_a_notice_is_a_title_a_short_text_and_how_grave_it_is(receiver: Any) -> None:
    async with made(address(receiver, "a")) as sink:
        for one in (notice(severity="critical"), notice("resolved", state="resolved", version=2)):
            await sink.send(one, mark)

    first, second = [request.json for request in receiver.received]
    assert (first["title"], first["type"]) == ("[critical] Loss spike at step 100 (run run-1)", "failure")
    assert first["message"] == f"The loss rose from 2 to <3>.\n\nWhat to do: Roll back to step 50.\n\n{URL}"
    assert (second["title"], second["type"]) == ("[resolved] Loss spike at step 100 (run run-1)", "success")


def test_a_long_text_is_cut_and_its_link_is_whole() -> None:
    title, text = text_of(notice(text="x" * 1_990, title="t" * 300, why="Nobody acknowledged it for 10 min."))

    assert len(title) == 200
    assert len(text) <= MAX_TEXT_CHARS
    assert text.startswith("Nobody acknowledged it for 10 min.\n\nxxx")
    assert text.endswith(f"x ...\n\n{URL}")


async def test_an_address_that_took_it_does_not_get_it_again_when_another_one_did_not(receiver: Any) -> None:
    receiver.script = [(200, {})]
    receiver.status = 503
    async with made(address(receiver, "good"), "json://127.0.0.1:9/s3cret") as sink:
        for _ in range(2):
            with pytest.raises(SendError, match=r"1 of 2 addresses did not take it: address 2 \(JSON\)") as caught:
                await sink.send(notice(), mark)

    assert caught.value.recoverable
    assert [request.path for request in receiver.received] == ["/good"]


async def test_an_address_that_never_answers_holds_up_nothing_for_longer_than_its_time_out(receiver: Any) -> None:
    receiver.answering.clear()
    async with made(address(receiver, "slow"), timeout_s=0.2) as sink:
        with pytest.raises(SendError, match=r"no answer from address 1 \(JSON\) in 0.2 s"):
            await sink.send(notice(), mark)
    receiver.answering.set()


async def test_no_address_is_logged_shown_or_in_an_error(receiver: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    receiver.status = 401
    async with made(address(receiver, "t0ken")) as sink:
        with pytest.raises(SendError) as caught:
            await sink.send(notice(), mark)
        with pytest.raises(AlertingSettingsError) as wrong:
            sinks_from_env({"STABILITY_APPRISE_URLS": "json://host/t0ken, slack://s3cret"}, [AppriseSink])

    shown = "".join((str(caught.value), str(wrong.value), repr(sink), repr(caught.value)))
    shown += "".join(record.getMessage() for record in caplog.records if not record.name.startswith("asyncio"))
    assert "STABILITY_APPRISE_URLS: address 2 of 2 is none that apprise knows" in str(wrong.value)
    assert "s3cret" not in shown
    assert "t0ken" not in shown


async def test_named_receivers_read_addresses_from_a_file_one_in_each_line(tmp_path: Path, receiver: Any) -> None:
    file = tmp_path / "mail.txt"
    file.write_text(f"# the team\n\n{address(receiver, 'one')}?:a=b,c\n{address(receiver, 'two')}\n")

    [sink] = sinks_from_env(
        {"STABILITY_RECEIVERS": "mail=apprise", "STABILITY_APPRISE_URLS_MAIL": str(file)}, [AppriseSink]
    )
    await sink.send(notice(), mark)
    await sink.aclose()

    assert (sink.name, sink.channel) == ("mail", "apprise")
    assert sorted(request.path for request in receiver.received) == ["/one", "/two"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("/nowhere/s3cret", "STABILITY_APPRISE_URLS is no address and no file that can be read .FileNotFoundError."),
        ("nosuch://s3cret", "STABILITY_APPRISE_URLS: address 1 of 1 is none that apprise knows"),
    ],
)
def test_a_wrong_value_stops_the_start(value: str, message: str) -> None:
    with pytest.raises(AlertingSettingsError, match=message) as caught:
        sinks_from_env({"STABILITY_APPRISE_URLS": value}, [AppriseSink])
    assert "s3cret" not in str(caught.value)


def test_where_apprise_is_missing_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    with pytest.raises(AlertingSettingsError, match=r"pip install 'stabilityboard\[apprise\]'"):
        sinks_from_env({"STABILITY_APPRISE_URLS": "json://host"}, [AppriseSink])


async def test_a_mail_goes_out_by_smtp() -> None:
    said: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail ESMTP\r\n")
        while line := await reader.readline():
            word = line[:4].upper()
            if word == b"DATA":
                writer.write(b"354 go on\r\n")
                said.append(await reader.readuntil(b"\r\n.\r\n"))
            writer.write(b"221 bye\r\n" if word == b"QUIT" else b"250 ok\r\n")
            if word == b"QUIT":
                break
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with (
        server,
        made(f"mailto://127.0.0.1:{port}?from=board@example.org&to=ada@example.org&mode=insecure") as sink,
    ):
        await sink.send(notice(), mark)

    assert b"Subject: =?utf-8?" in said[0] or b"Subject: [warning] Loss spike" in said[0]
    assert b"ada@example.org" in said[0]
