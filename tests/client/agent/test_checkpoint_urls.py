"""Checkpoints in an object store, over the real S3 protocol: known as those on disk are, or said not to be."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stabilityclient.agent.upload.records import SpooledEvent
from stabilityclient.agent.watch.checkpoint_kinds.inspection import inspect
from stabilityclient.agent.watch.checkpoint_kinds.remote import inspect_objects, list_objects
from stabilityclient.agent.watch.checkpoint_survey import Survey, survey
from stabilityclient.agent.watch.checkpoints import STILL_S, CheckpointWatch
from stabilityclient.arguments import without_secrets
from support.agent.s3_server import KEYS, put, s3_server
from support.agent.written_checkpoints import WRITERS, write_safetensors


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """URL of an S3 server that lives for the tests of this file."""
    with s3_server() as url:
        yield url


class Bucket:
    """A folder of a bucket, which a watch looks into under a clock that the test moves."""

    def __init__(self, endpoint: str, name: str) -> None:
        self.endpoint, self.name, self.url = endpoint, name, f"s3://bucket/{name}"
        self.now = 0.0
        self.watch = CheckpointWatch(None, now=lambda: self.now)

    def put(self, path: Path) -> str:
        """Copy a file or folder there; return its URL."""
        for file in [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]:
            put(self.endpoint, f"{self.name}/{file.relative_to(path.parent)}", file.read_bytes())
        return f"{self.url}/{path.name}"

    def announce(self, step: int, url: str) -> None:
        self.watch.take(SpooledEvent(1, "checkpoint", 0.0, step, {"path": url}), 2)

    def words(self, after_s: float = 10.0) -> list[tuple[Any, ...]]:
        self.now += after_s
        told = self.watch.settle(survey(self.watch.due(urls=True)))
        return [(each.type, each.step, each.data.get("complete"), each.data.get("problem")) for each in told]


@pytest.fixture
def bucket(s3: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bucket:
    for name, value in (KEYS | {"AWS_ENDPOINT_URL": s3}).items():
        monkeypatch.setenv(name, value)
    return Bucket(s3, tmp_path.name)


@pytest.mark.parametrize("kind", ["torch", "safetensors", "dcp", "zero", "hugging_face"])
def test_what_is_found_at_a_url_is_what_is_found_on_disk_whole_and_cut_off(
    bucket: Bucket, tmp_path: Path, kind: str
) -> None:
    path = WRITERS[kind](tmp_path)
    largest = path if path.is_file() else max((each for each in path.rglob("*")), key=lambda each: each.stat().st_size)
    for size in (largest.stat().st_size, largest.stat().st_size // 2):
        os.truncate(largest, size)
        objects = list_objects(bucket.put(path))
        assert objects is not None
        assert inspect_objects(objects, 2) == inspect(str(path), 2)


def test_one_that_is_torn_mended_written_over_and_deleted_is_told_each_time(bucket: Bucket, tmp_path: Path) -> None:
    file = write_safetensors(tmp_path / "step-7.safetensors")
    whole, url = file.read_bytes(), f"{bucket.url}/{file.name}"
    bucket.announce(7, url)
    assert bucket.words() == [("checkpoint_seen", 7, False, "step-7.safetensors is missing")]
    file.write_bytes(whole[:-8])
    bucket.put(file)
    torn = ("checkpoint_seen", 7, False, "step-7.safetensors is truncated (16,486 of 16,494 bytes)")
    assert bucket.words() == [torn]  # it may be still written
    assert bucket.words(STILL_S) == [torn]  # and now it is not
    file.write_bytes(whole)
    bucket.put(file)
    assert bucket.words() == [("checkpoint_seen", 7, True, "")]
    bucket.words()
    file.write_bytes(whole[:-8])
    bucket.put(file)
    assert bucket.words() == [torn]
    put(bucket.endpoint, f"{bucket.name}/{file.name}", None)
    assert bucket.words() == [("checkpoint_gone", 7, None, None)]


def test_without_its_library_or_the_right_to_read_one_is_not_checked_which_is_not_missing(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = bucket.put(write_safetensors(tmp_path / "step-7.safetensors"))
    bucket.announce(7, url)
    bucket.announce(8, "memory:///step-8")
    with monkeypatch.context() as without:
        for module in ("obstore", "obstore.store", "obstore.exceptions"):
            without.setitem(sys.modules, module, None)
        checkpoints_told = bucket.words()
    install = "not checked: the node's agent can't read URLs: pip install 'stabilityclient[cloud]'"
    assert checkpoints_told == [
        ("checkpoint_seen", 7, None, install),
        ("checkpoint_seen", 8, None, "not checked: the node's agent can't open memory://"),
    ]
    assert not bucket.watch.waits
    assert bucket.words() == [("checkpoint_seen", 7, True, "")]


def test_a_store_that_is_away_is_named_without_secrets_and_asked_once_a_round(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, free_port: int
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port}")
    for step in range(3):
        bucket.announce(step, f"s3://away-{free_port}/step-{step}/model")
    told = bucket.words()
    assert [each[:3] for each in told] == [("checkpoint_seen", step, None) for step in range(3)]
    assert len({each[3] for each in told}) == 1
    assert told[0][3].startswith("not checked: the store can't be asked: ")
    assert "?" not in told[0][3]


async def test_a_disk_that_hangs_holds_up_neither_the_agent_nor_its_looks_at_urls(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, stat = threading.Event(), os.stat

    def hanging(path: Any, **how: Any) -> Any:
        if str(path).startswith("/nfs"):
            hangs.wait(30)
        return stat(path, **how)

    monkeypatch.setattr(os, "stat", hanging)
    bucket.announce(1, "/nfs/step-1")
    bucket.announce(2, "file:///nfs/step-2")
    bucket.announce(7, bucket.put(write_safetensors(tmp_path / "step-7.safetensors")))
    disk = asyncio.create_task(Survey().of(bucket.watch.due()))
    told = bucket.watch.settle(await Survey().of(bucket.watch.due(urls=True)))
    assert [(each.step, each.data["complete"]) for each in told] == [(7, True)]
    assert not disk.done()
    hangs.set()
    await disk
    shutil.rmtree(tmp_path)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("s3://key:secret@bucket/run/step-1?X-Amz-Signature=1f", "s3://bucket/run/step-1"),
        ("https://a.blob.core.windows.net/c/step-1?sig=1f", "https://a.blob.core.windows.net/c/step-1"),
        ("abfss://c:pw@a.dfs.core.windows.net/step-1", "abfss://c@a.dfs.core.windows.net/step-1"),
        ("gs://bucket/a@b/step=1", "gs://bucket/a@b/step=1"),
    ],
)
def test_no_secret_of_a_url_is_sent(given: str, kept: str) -> None:
    assert without_secrets(given) == kept
