"""A disk that is full, a file that is damaged, a writer that is killed: named, and everything else is served."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stabilitybackend.base.errors import ArchiveError, SettingsError
from stabilitybackend.runs.archiving.archiver import compact
from stabilitybackend.storage.archive.cache import ByteCache
from stabilitybackend.storage.archive.layout import Files
from stabilitybackend.storage.archive.location import LocalFolder, open_location
from stabilitybackend.storage.archive.part import Part, PartReader
from stabilitybackend.storage.archive.series import Rows, SeriesKey
from support.points.archive_model import make_part, same_rows
from support.waiting import wait_until

_JOB = str(Path(__file__).parents[2] / "support" / "points" / "part_writer.py")
_TIMEOUT_S = 30
LOSS, GRAD = SeriesKey("loss", 0, 0, ""), SeriesKey("grad_norm", 0, 0, "")
FILES = Files.of("run", "part")


@pytest.fixture
def place(tmp_path: Path) -> LocalFolder:
    return LocalFolder(tmp_path / "archive")


def noise(count: int, seed: int = 1) -> Rows:
    random = np.random.default_rng(seed)
    return Rows(np.arange(count), random.standard_normal(count), random.random(count))


def written(place: LocalFolder) -> tuple[Part, dict[SeriesKey, Rows]]:
    found = {LOSS: noise(40_000), GRAD: noise(300, 2)}
    part, _ = make_part(place, list(found.items()), frames=frames_of(9), state=b"x" * 99)
    return part, found


def reader_of(place: LocalFolder, part: Part) -> PartReader:
    return PartReader(place, "run", part, ByteCache(2**24))


def frames_of(count: int) -> list[tuple[str, bytes]]:
    random = np.random.default_rng(9)
    return [(f"{i}-0", random.bytes(200)) for i in range(count)]


def read_all(reader: PartReader) -> list[Any]:
    """Return everything that a reader can say."""
    said: list[Any] = [list(reader.keys()), list(reader.frames()), reader.state()]
    for key in (LOSS, GRAD):
        rows = reader.rows(key)
        said += [column.tobytes() for column in (rows.steps, rows.values, rows.times)]
        said += [reader.aggregates(key, 3, 10**9, level).tobytes() for level in (4, 9, 14)]
    return said


def job(*arguments: str, mount: str = "") -> dict[str, Any]:
    """Run the writer, on a file system of its own where ``mount`` says so, and return what it said."""
    command = [sys.executable, _JOB, *arguments]
    if mount:
        script = f'mount -t tmpfs -o {mount} none "$0" && exec "$@"'
        command = ["unshare", "-Urm", "sh", "-c", script, arguments[0], *command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said


@pytest.fixture
def mounts(tmp_path: Path) -> str:
    """A folder over which a process may mount a small file system of its own."""
    folder = tmp_path / "mounted"
    folder.mkdir()
    probe = ["unshare", "-Urm", "mount", "-t", "tmpfs", "none", str(folder)]
    if shutil.which("unshare") is None or subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("no unprivileged mounts here; the test with a limit on file sizes stands in")
    return str(folder)


def test_a_full_disk_is_named_and_leaves_nothing_half_written(mounts: str) -> None:
    said = job(mounts, "200000", mount="size=1m")

    assert said["code"] == "archive_full"
    assert said["file"] == f"{mounts}/run/part.points.parquet"
    assert said["message"] == f"can't write {said['file']}: no room left (No space left on device)"
    assert "Nothing is lost" in said["hint"]
    assert said["names"] == []


def test_a_folder_that_may_only_be_read_is_named(mounts: str) -> None:
    said = job(mounts, "10", mount="ro")

    assert (said["code"], said["names"]) == ("archive_forbidden", [])
    assert said["message"].startswith(f"can't write {mounts}/run/part.points.parquet: not allowed")


def test_a_file_that_may_grow_no_further_is_named_and_removed(tmp_path: Path) -> None:
    said = job(str(tmp_path), "200000", "500000")

    assert (said["code"], said["names"]) == ("archive_full", [])
    assert said["file"] == f"{tmp_path}/run/part.points.parquet"


def test_a_killed_writer_leaves_orphans_that_are_swept_by_its_stem(tmp_path: Path) -> None:
    place = LocalFolder(tmp_path)
    kept, found = written(place)
    process = subprocess.Popen([sys.executable, _JOB, str(tmp_path / "new"), "3000000"], stdout=subprocess.PIPE)
    new = LocalFolder(tmp_path / "new")
    try:
        wait_until(lambda: _half_written(new), _TIMEOUT_S, "a file is being written")
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()

    # What is whole has its name, what is not has another: nothing that is half done can be taken for a part.
    assert FILES.series not in new.names("run")
    assert _half_written(new) != []
    Part.delete_files(new, "run", "part")
    assert new.names("run") == []
    assert same_rows(reader_of(place, kept).rows(LOSS), found[LOSS])


def _half_written(place: LocalFolder) -> list[str]:
    return [name for name in place.names("run") if name.endswith(".tmp")]


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(place: LocalFolder, name: str) -> None:
    part, _ = written(place)
    Path(place.path(name)).unlink()

    with pytest.raises(ArchiveError) as missing:
        read_all(reader_of(place, part))

    assert missing.value.code == "archive_missing"
    assert missing.value.facts["file"] == place.path(name)
    assert place.path(name) in missing.value.message
    assert "backup" in missing.value.hint


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("share", [0.0, 0.5, 0.999])
def test_a_truncated_file_is_named(place: LocalFolder, name: str, share: float) -> None:
    part, _ = written(place)
    path = Path(place.path(name))
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])

    with pytest.raises(ArchiveError) as broken:
        read_all(reader_of(place, part))

    assert (broken.value.code, broken.value.facts["file"]) == ("archive_damaged", str(path))


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_is_named_or_changes_nothing(place: LocalFolder, name: str) -> None:
    part, _ = written(place)
    right = read_all(reader_of(place, part))
    path = Path(place.path(name))
    whole = path.read_bytes()
    random = np.random.default_rng(11)
    found: list[str] = []

    for at in random.integers(0, len(whole), 12).tolist():
        flipped = bytearray(whole)
        flipped[at] ^= 1 << int(random.integers(0, 8))
        path.write_bytes(flipped)
        try:
            same = read_all(reader_of(place, part)) == right
        except ArchiveError as error:
            same = error.facts["file"] == str(path)
            found.append(error.code)
        assert same

    assert set(found) == {"archive_damaged"}


def test_what_does_not_need_the_damaged_file_is_served(place: LocalFolder) -> None:
    part, found = written(place)
    Path(place.path(FILES.points)).write_bytes(b"PAR1")
    reader = reader_of(place, part)

    assert reader.aggregates(LOSS, 0, 10**9, 10)["count"].sum() == 40_000
    assert list(reader.frames()) == frames_of(9)
    with pytest.raises(ArchiveError):
        reader.rows(LOSS)
    make_part(place, list(found.items()))  # the file put back: the same reader goes on
    assert same_rows(reader.rows(LOSS), found[LOSS])


def test_a_merge_of_a_damaged_part_names_its_file_and_writes_none_of_its_own(place: LocalFolder) -> None:
    a, _ = make_part(place, [(LOSS, noise(40_000))], "a", to_id="1-0")
    b, _ = make_part(place, [(LOSS, noise(40_000))], "b", from_id="1-0", to_id="2-0")
    path = Path(place.path("run/b.points.parquet"))
    path.write_bytes(path.read_bytes()[:-100])

    with pytest.raises(ArchiveError) as broken:
        compact(place, "run", [reader_of(place, a), reader_of(place, b)], "merged", 2.0)

    assert (broken.value.code, broken.value.facts["file"]) == ("archive_damaged", str(path))
    assert [name for name in place.names("run") if "merged" in name] == []


def test_a_place_under_a_file_is_refused_when_it_is_checked(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(ArchiveError, match=r"can't write .*file/check"):
        open_location(tmp_path / "file").check()
    open_location(tmp_path / "folder").check()
    assert list((tmp_path / "folder").iterdir()) == []


def test_a_folder_whose_name_looks_like_a_pattern_or_a_partition_means_itself(tmp_path: Path) -> None:
    place = open_location(tmp_path / "a[b]*" / "day=1")
    _, reader = make_part(place, [(LOSS, noise(10))])

    assert same_rows(reader.rows(LOSS), noise(10))
    assert open_location(f"file://{tmp_path}/x%20y").base == f"{tmp_path}/x y"


@pytest.mark.parametrize("name", ["../x", "run/../x", "/etc/passwd", "run", "run/a/b", ".hidden/x", "run/"])
def test_no_name_leads_out_of_the_archive(place: LocalFolder, name: str) -> None:
    with pytest.raises(ValueError, match="expected <run_id>/<file>"):
        place.read_bytes(name)


@pytest.mark.parametrize("url", ["ftp://host/x", "s3://", "redis://localhost"])
def test_a_place_that_nobody_can_open_stops_the_start(url: str) -> None:
    with pytest.raises(SettingsError, match="expected a folder or a URL"):
        open_location(url)
