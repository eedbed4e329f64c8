"""The archive in an object store: the same answers over the real S3 protocol, and a store that is away is named."""

from __future__ import annotations

import socket
import sys
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import polars as pl
import pytest

from stabilitybackend.base.errors import ArchiveError, SettingsError
from stabilitybackend.runs.archiving.archiver import compact
from stabilitybackend.storage.archive import location
from stabilitybackend.storage.archive.aggregates import aggregate
from stabilitybackend.storage.archive.cache import ByteCache
from stabilitybackend.storage.archive.layout import Files
from stabilitybackend.storage.archive.location import AWAY_S, INSTALLATION_FILE, Location, ObjectStore, open_location
from stabilitybackend.storage.archive.part import Part, PartReader
from stabilitybackend.storage.archive.series import Rows, SeriesKey
from support.agent.s3_server import KEYS, needs, s3_server
from support.agent.store_proxy import store_proxy
from support.points.archive_model import make_part, same_rows

LOSS = SeriesKey("loss", 0, 0, "")


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """URL of an S3 server (moto) that lives for the tests of this file."""
    with s3_server() as url:
        yield url


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The environment as a user sets it for a store that is not Amazon's; the endpoint is still to be set."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


@pytest.fixture
def place(s3: str, settings: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Location:
    """A prefix of its own in the bucket."""
    settings.setenv("AWS_ENDPOINT_URL", s3)
    return open_location(f"s3://bucket/some/{request.node.name}")


def noise(count: int, start: int = 0) -> Rows:
    random = np.random.default_rng(start)
    return Rows(np.arange(start, start + count), random.standard_normal(count), random.random(count))


def test_a_part_in_a_bucket_answers_as_its_rows_and_is_merged_and_deleted(place: Location) -> None:
    frames = [(f"{i}-0", b"frame" * i) for i in range(5)]
    found = noise(40_000)
    part, reader = make_part(place, [(LOSS, found)], "a", to_id="5-0", frames=frames, state=b"old")
    _, second = make_part(place, [(LOSS, noise(9, 39_995))], "b", from_id="5-0", to_id="6-0", frames=[], state=b"new")

    assert part.bytes == sum(place.size(name) for name in Files.of("run", "a"))
    assert same_rows(reader.rows(LOSS, 20_000, 20_100), found.between(20_000, 20_100))
    aggs = aggregate(found.between(7, 30_000), 12)
    assert reader.aggregates(LOSS, 7, 30_000, 12)["max_step"].tolist() == aggs["max_step"].tolist()
    assert (list(reader.frames()), reader.state()) == (frames, b"old")

    merged = PartReader(place, "run", compact(place, "run", [reader, second], "c", 2.0), ByteCache(2**20))
    assert merged.rows(LOSS).steps.tolist() == sorted([*range(40_000), *range(39_995, 40_004)])
    assert (list(merged.frames()), merged.state()) == (frames, b"new")

    assert place.names("run") == sorted(name for stem in "abc" for name in Files.of("run", stem))
    for stem in "ab":
        Part.delete_files(place, "run", stem)
    assert place.names("run") == sorted(Files.of("run", "c"))
    Part.delete_files(place, "run", "a")  # gone already
    place.check()


def test_a_merge_asks_for_each_file_once_and_names_a_damaged_one_where_it_lies(
    s3: str, settings: pytest.MonkeyPatch
) -> None:
    with store_proxy(s3) as proxy:
        settings.setenv("AWS_ENDPOINT_URL", proxy.url)
        # A bucket that Polars has not spoken to: it remembers the endpoint of the first time.
        urllib.request.urlopen(urllib.request.Request(f"{s3}/merges", method="PUT"), timeout=5)
        place = open_location("s3://merges")
        _, a = make_part(place, [(LOSS, noise(100_000))], "a", to_id="1-0", frames=[("1-0", b"x")])
        _, b = make_part(
            place, [(LOSS, noise(100_000, 100_000))], "b", from_id="1-0", to_id="2-0", frames=[("2-0", b"y")]
        )
        proxy.take()
        compact(place, "run", [a, b], "merged", 2.0)
        assert proxy.take().requests == {"GET": 7, "HEAD": 7 + 3, "PUT": 5}
        name = Files.of("run", "a").points
        place.write_bytes(name, place.read_bytes(name)[:-100])

        with pytest.raises(ArchiveError) as damaged:
            compact(place, "run", [a, b], "again", 2.0)

        assert (damaged.value.code, damaged.value.facts["file"]) == ("archive_damaged", place.path(name))
        assert place.path(name) in damaged.value.message


def test_a_store_that_takes_a_file_and_falls_silent_is_given_up(
    s3: str, settings: pytest.MonkeyPatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(location, "POLARS_TIMEOUT_S", 0.3)
    with store_proxy(s3) as proxy, ThreadPoolExecutor() as threads:
        settings.setenv("AWS_ENDPOINT_URL", proxy.url)
        place = open_location("s3://silent")
        proxy.mood = "silent"
        written = threads.submit(place.write, "run/a.parquet", pl.LazyFrame({"a": [1]}), row_group_rows=1)
        try:
            given_up = written.exception(timeout=30)
        finally:
            proxy.mood = "away"  # one that would wait without end goes now, and does not come again
            proxy.release()

    assert isinstance(given_up, ArchiveError)
    assert (given_up.code, given_up.facts["file"]) == ("archive_unreachable", "s3://silent/run/a.parquet")


def test_names_of_another_run_that_begins_alike_are_not_listed(place: Location) -> None:
    place.write_bytes("run/a.state", b"")
    place.write_bytes("run-2/a.state", b"")

    assert (place.names("run"), place.names("ru")) == (["run/a.state"], [])


def test_an_object_that_is_there_is_not_created_again(place: Location) -> None:
    place.create_bytes(INSTALLATION_FILE, b"first")
    place.create_bytes(INSTALLATION_FILE, b"second")

    assert place.read_bytes(INSTALLATION_FILE) == b"first"


@pytest.mark.parametrize("name", Files.of("run", "part"))
def test_an_object_that_is_missing_is_named(place: Location, name: str) -> None:
    _, reader = make_part(place, [(LOSS, noise(100))])
    place.delete([name])

    with pytest.raises(ArchiveError) as missing:
        (reader.rows(LOSS), reader.aggregates(LOSS, 0, 99, 9), list(reader.frames()), reader.state())

    assert (missing.value.code, missing.value.facts["file"]) == ("archive_missing", place.path(name))


def test_a_store_that_is_away_is_named_and_left_alone_for_a_while(settings: pytest.MonkeyPatch, free_port: int) -> None:
    needs("obstore")
    settings.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port}")
    now = [1_000.0]
    place = ObjectStore("s3://elsewhere", clock=lambda: now[0])

    with pytest.raises(ArchiveError) as away:
        place.read("run/a.points.parquet", ["step"], 0, 1)
    with closing(socket.create_server(("127.0.0.1", free_port))) as server:
        server.settimeout(0)
        with pytest.raises(ArchiveError, match="no answer a moment ago"):
            place.read_bytes("run/a.state")
        with pytest.raises(BlockingIOError):  # nobody knocked
            server.accept()
        now[0] += AWAY_S
        closer = threading.Thread(target=_hang_up, args=(server,))
        closer.start()
        with pytest.raises(ArchiveError) as again:
            place.read_bytes("run/a.state")
        closer.join()

    assert (away.value.code, again.value.code) == ("archive_unreachable", "archive_unreachable")
    assert "s3://elsewhere/run/a.points.parquet" in away.value.message
    assert "AWS_ENDPOINT_URL" in away.value.hint


def _hang_up(server: socket.socket) -> None:
    """Accept one connection after the other and close it at once, until nobody comes any more."""
    server.settimeout(0.5)
    try:
        while True:
            server.accept()[0].close()
    except TimeoutError:
        pass


def test_without_its_library_an_object_store_stops_the_start_and_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setitem(sys.modules, "obstore.store", None)

    with pytest.raises(SettingsError) as refused:
        open_location("s3://bucket/prefix")

    assert "stabilityboard[objectstore]" in refused.value.hint
