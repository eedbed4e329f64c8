"""An offline run is delivered later through the same code, and never twice."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

import stabilityclient
from stabilityclient.agent.folder import lock_folder
from stabilityclient.agent.upload.importer import ImportFailed, UploadReport, upload
from stabilityclient.wire import FRAME_TARGET_BYTES, encode_message
from support.agent.gateway import Gateway, Store
from support.agent.spooled import frames, stored

Start = Callable[..., stabilityclient.Run]


def _offline_run(start: Start, rows: int = 5000) -> Path:
    run = start(project="p", name="n", config={"lr": 1})
    for step in range(rows):
        run.log(step, {"loss": 1.0})
    assert run.finish() == "spooled"
    return Path(str(run.folder))


def test_an_offline_run_starts_no_agent_and_keeps_everything(start: Start) -> None:
    folder = _offline_run(start, 10)
    assert not (folder / "agent" / "lock").exists()
    assert stored(folder).steps() == list(range(10))


def test_frames_are_consecutive_and_well_below_the_limit(start: Start) -> None:
    folder = _offline_run(start, 20_000)
    found = list(frames(folder))
    assert found[0].first_seq == 1
    assert all(one.last_seq + 1 == other.first_seq for one, other in pairwise(found))
    assert all(len(encode_message(frame)) <= FRAME_TARGET_BYTES + 4096 for frame in found)
    assert len(found) < 60


def test_wide_rows_make_frames_below_the_limit_too(start: Start) -> None:
    run = start()
    for step in range(200):
        run.log(step, {f"layer/{index}": 1.0 for index in range(500)})
    run.finish()
    sizes = [len(encode_message(frame)) for frame in frames(run.folder or "")]
    assert len(sizes) > 2
    assert max(sizes) <= FRAME_TARGET_BYTES + 32_768


async def test_an_upload_says_whose_spool_it_is(start: Start) -> None:
    folder = _offline_run(start, 1)
    with Gateway() as server:
        await upload(folder, server.url)
        (said,) = server.hellos
    assert (said.run_id, said.project, said.name, said.config) == ("r1", "p", "n", {"lr": 1})
    assert [source.rank for source in said.sources] == [0]


async def test_an_upload_delivers_everything_and_reports_it(start: Start) -> None:
    folder = _offline_run(start)
    seen: list[tuple[int, int]] = []
    with Gateway(key="k") as server:
        report = await upload(folder, server.url, "k", lambda done, total: seen.append((done, total)))
        assert server.store.steps() == list(range(5000))
    assert report == UploadReport("r1", 1, 5003, 5003, 0)
    assert seen[-1] == (5003, 5003)


async def test_a_second_upload_sends_nothing_and_one_after_a_break_only_the_rest(start: Start) -> None:
    folder = _offline_run(start)
    store = Store()
    for frame in list(frames(folder))[:4]:
        store.add(frame)
    held = sum(store.last_seq.values())
    with Gateway(store) as server:
        first = await upload(folder, server.url)
        second = await upload(folder, server.url)
    assert (first.sent, second.sent) == (5003 - held, 0)
    assert store.steps() == list(range(5000))


async def test_an_upload_of_what_is_no_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(ImportFailed, match=r"run\.json and sources"):
        await upload(tmp_path, "http://127.0.0.1:1")


async def test_an_upload_with_a_wrong_key_says_so(start: Start) -> None:
    folder = _offline_run(start, 1)
    with Gateway(key="right") as server, pytest.raises(ImportFailed, match="401"):
        await upload(folder, server.url, "wrong")


async def test_an_upload_beside_a_running_agent_is_refused(start: Start) -> None:
    import os

    folder = _offline_run(start, 1)
    lock = lock_folder(folder, 0.0)
    assert lock is not None
    try:
        with pytest.raises(ImportFailed, match="running agent"):
            await upload(folder, "http://127.0.0.1:1")
    finally:
        os.close(lock)


async def test_an_upload_to_a_server_that_is_away_gives_up_and_says_why(
    start: Start, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stabilityclient.agent.upload.importer.STALLED_S", 0.5)
    folder = _offline_run(start, 1)
    with pytest.raises(ImportFailed, match="nothing moved"):
        await upload(folder, f"http://127.0.0.1:{free_port}")


async def test_damaged_records_are_counted_and_the_rest_is_delivered(start: Start) -> None:
    folder = _offline_run(start, 100)
    (chunk,) = folder.glob("sources/*/00000001.spool")
    data = bytearray(chunk.read_bytes())
    data[data.index((50).to_bytes(8, "little")) + 10] ^= 4
    chunk.write_bytes(data)
    with Gateway() as server:
        report = await upload(folder, server.url)
        assert len(server.store.steps()) == 99
        assert [event.data["records"] for event in server.store.events("lost")] == [1]
    assert (report.records, report.damaged) == (103, 1)
