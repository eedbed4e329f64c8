"""Two installations on one archive, a lost Redis, a disk that is away: said at the start, nothing is overwritten."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from redis import Redis as SyncRedis
from redis.asyncio import Redis

from stabilitybackend.base.errors import StartError
from stabilitybackend.base.keys import INSTALLATION
from stabilitybackend.base.settings import Settings
from stabilitybackend.cli.checkup import examine
from stabilitybackend.plugins import Plugins
from stabilitybackend.runs.archiving import installation as module
from stabilitybackend.runs.archiving.installation import Installation
from stabilitybackend.storage.archive.location import INSTALLATION_FILE, LocalFolder, Location
from support.cli_program import Program
from support.job_frames import Job
from support.manager_stack import Stage, rows
from support.waiting import until


def of(place: Path | Location, new_id: str = "ours") -> Installation:
    location = LocalFolder(place) if isinstance(place, Path) else place
    return Installation(location, "Redis at redis://here", new_id=lambda: new_id, clock=lambda: 5.0)


def marker(folder: Path) -> str | None:
    path = folder / INSTALLATION_FILE
    return json.loads(path.read_text())["installation"] if path.exists() else None


def mark(folder: Path, installation: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / INSTALLATION_FILE).write_text(json.dumps({"installation": installation, "created": 1.0}))


async def kept(redis: Redis) -> str | None:
    found = await redis.get(INSTALLATION)
    return None if found is None else found.decode()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "archive"


async def test_a_new_installation_is_known_to_redis_and_to_its_archive_and_starts_again(
    redis: Redis, folder: Path
) -> None:
    await of(folder).begin(redis)
    again = of(folder, "another")
    await again.begin(redis)
    assert (await kept(redis), marker(folder), again.id) == ("ours", "ours", "ours")


async def test_an_archive_of_another_installation_is_refused_with_both_names_and_what_to_do(
    redis: Redis, folder: Path
) -> None:
    mark(folder, "theirs")
    await redis.set(INSTALLATION, "ours")
    with pytest.raises(StartError) as refused:
        await of(folder).begin(redis)
    assert refused.value.message == (
        f"Redis at redis://here belongs to installation ours, the archive {folder} to installation theirs: "
        "two installations would write into one archive"
    )
    assert "--archive-url" in refused.value.hint
    assert (await kept(redis), marker(folder)) == ("ours", "theirs")


async def test_an_empty_redis_on_the_archive_of_an_installation_is_refused_until_somebody_adopts_it(
    redis: Redis, folder: Path
) -> None:
    mark(folder, "theirs")
    with pytest.raises(StartError, match="belongs to installation theirs, and Redis at redis://here holds no run"):
        await of(folder).begin(redis)
    assert await kept(redis) is None
    assert await of(folder).adopt(redis) == "theirs"
    adopted = of(folder)
    await adopted.begin(redis)
    assert (adopted.id, await kept(redis), marker(folder)) == ("theirs", "theirs", "theirs")


async def test_nobody_adopts_the_archive_of_another_installation(redis: Redis, folder: Path) -> None:
    mark(folder, "theirs")
    await redis.set(INSTALLATION, "ours")
    with pytest.raises(StartError, match="two installations"):
        await of(folder).adopt(redis)
    assert await kept(redis) == "ours"


async def test_runs_that_an_older_version_archived_are_taken_up_and_marked(stage: Stage) -> None:
    worker = await stage.send(*rows(Job(), 1, 400))
    await stage.archived(worker, 1)
    before = stage.files()
    await of(stage.folder).begin(stage.redis)
    assert (await kept(stage.redis), marker(stage.folder)) == ("ours", "ours")
    assert stage.files() == sorted([*before, INSTALLATION_FILE])


async def test_a_redis_without_an_id_that_lists_the_files_of_the_archive_is_its_own(stage: Stage) -> None:
    worker = await stage.send(*rows(Job(), 1, 400))
    await stage.archived(worker, 1)
    mark(stage.folder, "theirs")
    await of(stage.folder).begin(stage.redis)
    assert await kept(stage.redis) == "theirs"


async def test_runs_of_a_redis_without_an_id_that_are_not_in_the_archive_make_it_no_owner(stage: Stage) -> None:
    await stage.send(*rows(Job(), 1, 20))
    mark(stage.folder, "theirs")
    with pytest.raises(StartError, match="knows none of the runs in it"):
        await of(stage.folder).begin(stage.redis)


async def test_nothing_is_written_under_the_mount_point_of_an_archive_that_is_not_mounted(stage: Stage) -> None:
    worker = await stage.send(*rows(Job(), 1, 400))
    await stage.archived(worker, 1)
    stage.folder.rename(stage.folder.with_name("aside"))
    stage.folder.mkdir()
    started = of(stage.folder)
    await started.begin(stage.redis)
    assert (started.id, stage.files()) == (None, [])


async def test_of_processes_that_start_at_once_all_are_of_one_installation(redis: Redis, folder: Path) -> None:
    ids = count()
    all_of_them = [of(folder, f"id-{next(ids)}") for _ in range(8)]
    await asyncio.gather(*(each.begin(redis) for each in all_of_them))
    assert {each.id for each in all_of_them} == {await kept(redis)} == {marker(folder)}


class _Slow(LocalFolder):
    """A folder whose disk answers after ``answers`` is set."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.answers = threading.Event()

    def read_bytes(self, name: str) -> bytes:
        self.answers.wait(30)
        return super().read_bytes(name)


@pytest.fixture
def slow(folder: Path) -> Iterator[_Slow]:
    place = _Slow(folder)
    yield place
    place.answers.set()


async def test_an_archive_that_does_not_answer_keeps_no_server_from_its_start_and_ends_it_when_it_is_anothers(
    redis: Redis, folder: Path, slow: _Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AGAIN_S", 0.01)
    ended: list[int] = []
    monkeypatch.setattr(signal, "raise_signal", ended.append)
    await redis.set(INSTALLATION, "ours")
    mark(folder, "theirs")
    started = of(slow)
    await started.begin(redis, wait_s=0.05)
    assert (started.id, started.refused) == (None, "")
    slow.answers.set()
    await asyncio.wait_for(started.follow(redis), 30)
    assert ended == [signal.SIGTERM]
    assert "installation theirs: two installations" in started.refused


@pytest.fixture
def file_in_its_place(folder: Path) -> Path:
    folder.write_text("a file where a folder is needed")
    return folder


async def test_an_archive_that_cannot_be_written_is_marked_when_it_can(
    redis: Redis, folder: Path, monkeypatch: pytest.MonkeyPatch, file_in_its_place: Path
) -> None:
    monkeypatch.setattr(module, "AGAIN_S", 0.01)
    started = of(folder)
    await started.begin(redis)
    following = asyncio.create_task(started.follow(redis))
    await asyncio.to_thread(file_in_its_place.unlink)
    await until(lambda: marker(folder) == "ours", 30, "the archive is marked")
    following.cancel()


async def test_a_redis_that_comes_back_empty_under_a_running_server_gets_its_id_again(
    redis: Redis, redis_url: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AGAIN_S", 0.01)
    started = of(folder)
    await started.begin(redis)
    await redis.delete(INSTALLATION)
    following = asyncio.create_task(started.follow(redis))
    with SyncRedis.from_url(redis_url) as client:
        await until(lambda: client.get(INSTALLATION) == b"ours", 30, "Redis has the id again")
    following.cancel()


def test_the_doctor_says_whose_archive_it_is(tmp_path: Path, redis_url: str, free_port: int) -> None:
    settings = Settings(data_dir=tmp_path, port=free_port, redis_url=redis_url)

    def said() -> tuple[str, str]:
        (found,) = [one for one in examine(settings, Plugins()) if one.name == "installation"]
        return found.state, found.text

    assert said() == ("ok", f"{settings.archive} is marked as this installation's when a server starts")
    mark(Path(settings.archive), "theirs")
    state, text = said()
    assert (state, "belongs to installation theirs" in text) == ("fail", True)


def test_a_lost_redis_is_named_by_up_and_adopted_by_the_command(program: Program, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    mark(tmp_path / "data" / "archive", "theirs")
    code, _, err = program("up", "--port", "0")
    assert code == 1
    assert "belongs to installation theirs" in err
    assert "stabilityboard archive adopt" in err
    code, out, _ = program("archive", "adopt", "--yes", "--json")
    assert (code, json.loads(out)["installation"]) == (0, "theirs")
