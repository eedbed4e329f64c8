"""Where the files of the archive lie: a local folder or an object store, behind the same few verbs.

In an object store Parquet goes through Polars, everything else through obstore, which binds the Rust crate
``object_store`` that Polars itself uses: both read the same environment and agree on the meaning of a URL. For S3:
``AWS_REGION``, ``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``, and for other makers' stores ``AWS_ENDPOINT_URL``; on
a cloud machine its own role serves without any of them.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import re
import secrets
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import polars as pl

from stabilitybackend.base.errors import ArchiveError, SettingsError
from stabilitybackend.storage.archive.trouble import READ_TROUBLE, trouble

__all__ = ["AWAY_S", "INSTALLATION_FILE", "LocalFolder", "Location", "ObjectStore", "open_location", "sink"]

#: Times that a request is tried again before it counts as failed. With the crate's 10 a chart would wait for minutes.
RETRIES = 2
#: A request without an answer is given up after this, seconds.
TIMEOUT_S = 10
#: The same for Polars, whose requests carry up to 64 MiB, seconds. It has no limit of its own: a store that takes a
#: request and falls silent would keep every run from being archived until the server ends. It asks twice.
POLARS_TIMEOUT_S = 30
#: Pause after a store that did not answer, seconds: each chart reads many files, and each would
#: wait for its own time-out.
AWAY_S = 5.0

#: A copy is fetched in pieces of so many bytes, each within the time-out.
COPY_BYTES = 8 * 2**20

T = TypeVar("T")


#: Schemes of object stores that both Polars and obstore open.
SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss")
#: zstd level. Higher ones buy under 1 % on noisy floats and cost a half more time.
COMPRESSION_LEVEL = 1

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")


class Location(ABC):
    """A place for files. A name is ``<run_id>/<file>``, or INSTALLATION_FILE. All methods block: call them in a thread.

    A file appears whole under its name or not at all. Everything raises ArchiveError, naming the file.

    Attributes:
        base: the folder or URL, as in messages and settings.
    """

    base: str

    def __str__(self) -> str:
        return self.base

    @abstractmethod
    def path(self, name: str) -> str:
        """Return the full path or URL of a file."""

    @abstractmethod
    def write(self, name: str, frame: pl.LazyFrame, *, row_group_rows: int, statistics: bool = True) -> int:
        """Write Parquet (zstd) as the frame streams in and return its bytes.

        Args:
            statistics: note the least and greatest value of each row group, so that a reader can pass over it.
        """

    @abstractmethod
    def write_bytes(self, name: str, data: bytes) -> int:
        """Write a file and return its bytes."""

    @abstractmethod
    def create_bytes(self, name: str, data: bytes) -> None:
        """Write a file under a name that is free; leave an existing one unchanged."""

    @abstractmethod
    def read_bytes(self, name: str) -> bytes:
        """Return a whole file."""

    @abstractmethod
    def delete(self, names: Iterable[str]) -> None:
        """Delete files. One that is not there is gone already, which is well."""

    @abstractmethod
    def names(self, run_id: str) -> list[str]:
        """Return the names of all files of a run, those of half-done writes included; none where there is no run."""

    @abstractmethod
    def size(self, name: str) -> int:
        """Return the bytes of a file."""

    def scan(self, name: str) -> pl.LazyFrame:
        """Return a Parquet file as a lazy frame. It is read, and may fail, when it is collected."""
        # A folder's name may look like a pattern or a partition; these names are literal.
        return pl.scan_parquet(self.path(name), glob=False, hive_partitioning=False, cache=False)

    def read(self, name: str, columns: Sequence[str], offset: int, count: int) -> pl.DataFrame:
        """Return at most ``count`` rows of a Parquet file, from the ``offset``-th on; other row groups stay unread."""

        def collect() -> pl.DataFrame:
            return self.scan(name).select(columns).slice(offset, count).collect()

        return self._guarded("read", self.path(name), collect)

    @contextlib.contextmanager
    def nearby(self, names: Iterable[str]) -> Iterator[Location]:
        """Give a location that has these files on this machine while the context lasts, for who reads all of them."""
        yield self

    def check(self) -> None:
        """Write, read and delete a small file: raises ArchiveError where the place is of no use."""
        name = f"check/{os.getpid()}.tmp"
        self.write_bytes(name, b"ok")
        self.read_bytes(name)
        self.delete([name])

    def _guarded(self, doing: str, path: str, action: Callable[[], T]) -> T:
        """Return the result of ``action``; any of its errors becomes an ArchiveError."""
        try:
            return action()
        except READ_TROUBLE as error:
            raise trouble(error, doing, path) from error


class LocalFolder(Location):
    """A folder of this machine. A file is written under a temporary name, made durable, then renamed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self.base = str(self._folder)
        #: Of names that last for a moment. Processes of two containers that share a folder may have the same pid.
        self._own = secrets.token_hex(4)
        self._counter = itertools.count()

    def path(self, name: str) -> str:
        return str(self._folder / checked_name(name))

    def write(self, name: str, frame: pl.LazyFrame, *, row_group_rows: int, statistics: bool = True) -> int:
        return self._write(name, lambda temporary: sink(frame, str(temporary), row_group_rows, statistics))

    def write_bytes(self, name: str, data: bytes) -> int:
        return self._write(name, lambda temporary: _fill(temporary, data))

    def create_bytes(self, name: str, data: bytes) -> None:
        def place(temporary: Path, path: Path) -> None:
            with contextlib.suppress(FileExistsError):
                os.link(temporary, path)
            temporary.unlink()

        self._write(name, lambda temporary: _fill(temporary, data), place)

    def read_bytes(self, name: str) -> bytes:
        path = Path(self.path(name))
        return self._guarded("read", str(path), path.read_bytes)

    def delete(self, names: Iterable[str]) -> None:
        paths = [Path(self.path(name)) for name in names]
        for path in paths:
            self._guarded("delete", str(path), functools.partial(path.unlink, missing_ok=True))
        for folder in {path.parent for path in paths}:
            with contextlib.suppress(OSError):  # other files are in it, or it never was there
                folder.rmdir()

    def names(self, run_id: str) -> list[str]:
        folder = Path(self.path(f"{run_id}/any")).parent

        def found() -> list[str]:
            try:
                return sorted(f"{run_id}/{entry.name}" for entry in os.scandir(folder) if entry.is_file())
            except FileNotFoundError:
                return []

        return self._guarded("list", str(folder), found)

    def size(self, name: str) -> int:
        path = Path(self.path(name))
        return self._guarded("read", str(path), path.stat).st_size

    def _write(self, name: str, fill: Callable[[Path], None], place: Callable[[Path, Path], None] = os.replace) -> int:
        path = Path(self.path(name))
        temporary = path.with_name(f"{path.name}.{self._own}-{next(self._counter)}.tmp")

        def write() -> int:
            try:
                fresh = not path.parent.exists()
                path.parent.mkdir(parents=True, exist_ok=True)
                fill(temporary)
                # In this order a power cut leaves the old state or the new one, never half a file under its name.
                _sync(temporary)
                size = temporary.stat().st_size
                place(temporary, path)
                _sync(path.parent)
                if fresh:
                    _sync(path.parent.parent)
                return size
            except READ_TROUBLE:
                with contextlib.suppress(OSError):
                    temporary.unlink()
                raise

        return self._guarded("write", str(path), write)


def open_location(place: str | Path) -> Location:
    """Return the location that a setting names; nothing is touched yet (``check`` does that).

    Args:
        place: a folder (``/data/archive``, ``file:///data/archive``) or a URL that Polars opens: ``s3://bucket/prefix``,
            ``gs://...``, ``az://...``.

    Raises:
        SettingsError: the scheme is unknown, or the library for object stores is not installed.
    """
    text = str(place)
    if "://" not in text:
        return LocalFolder(Path(text))
    parts = urlsplit(text)
    if parts.scheme == "file":
        return LocalFolder(Path(unquote(parts.path)))
    if parts.scheme not in SCHEMES or not parts.netloc:
        raise SettingsError(
            f"the archive's place is {text!r}: expected a folder or a URL of {', '.join(SCHEMES)} with a bucket",
            hint="For example /data/archive or s3://bucket/prefix.",
        )

    return ObjectStore(text)


def checked_name(name: str) -> str:
    """Return a valid ``name`` of the archive: a path must never lead out."""
    if name != INSTALLATION_FILE and not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of an archived file: expected <run_id>/<file>")
    return name


def sink(frame: pl.LazyFrame, target: str, row_group_rows: int, statistics: bool, **options: Any) -> None:
    """Write ``frame`` to a path or URL as the archive writes Parquet."""
    frame.sink_parquet(
        target,
        compression="zstd",
        compression_level=COMPRESSION_LEVEL,
        statistics=statistics,
        row_group_size=row_group_rows,
        maintain_order=True,
        mkdir=False,
        **options,
    )


def _fill(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def _sync(path: Path) -> None:
    """Make the writes to a file or a folder durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class ObjectStore(Location):
    """A bucket, or a prefix in it. An object appears when its upload is complete, so nothing needs a second name.

    Args:
        url: for example ``s3://bucket/prefix``.
        clock: monotonic seconds.

    Raises:
        SettingsError: obstore is not installed, or can't make sense of the URL or the environment.
    """

    def __init__(self, url: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.base = url.rstrip("/")
        self._clock = clock
        self._away_until = float("-inf")
        self._away = ""
        try:
            import obstore.store
        except ImportError as error:
            raise SettingsError(
                f"the archive's place is {url!r}, and the library for object stores is not installed",
                hint="pip install 'stabilityboard[objectstore]'",
            ) from error
        try:
            self._store: Any = obstore.store.from_url(
                self.base,
                retry_config={"max_retries": RETRIES, "retry_timeout": timedelta(seconds=TIMEOUT_S)},
                # As Polars does: an endpoint of http:// was set on purpose.
                client_options={"timeout": timedelta(seconds=TIMEOUT_S), "allow_http": True},
            )
        except READ_TROUBLE as error:
            raise SettingsError(
                f"the archive's place is {url!r}: {error}", hint="For example s3://bucket/prefix."
            ) from error

    def path(self, name: str) -> str:
        return f"{self.base}/{checked_name(name)}"

    def scan(self, name: str) -> pl.LazyFrame:
        return pl.scan_parquet(self.path(name), glob=False, hive_partitioning=False, cache=False, **_polars_options())

    def write(self, name: str, frame: pl.LazyFrame, *, row_group_rows: int, statistics: bool = True) -> int:
        path = self.path(name)
        self._guarded("write", path, lambda: sink(frame, path, row_group_rows, statistics, **_polars_options()))
        return self.size(name)

    def write_bytes(self, name: str, data: bytes) -> int:
        self._guarded("write", self.path(name), lambda: self._store.put(name, data))
        return len(data)

    def create_bytes(self, name: str, data: bytes) -> None:
        from obstore.exceptions import AlreadyExistsError

        def create() -> None:
            with contextlib.suppress(AlreadyExistsError):
                self._store.put(name, data, mode="create")

        self._guarded("write", self.path(name), create)

    def read_bytes(self, name: str) -> bytes:
        return self._guarded("read", self.path(name), lambda: bytes(self._store.get(name).bytes()))

    @contextlib.contextmanager
    def nearby(self, names: Iterable[str]) -> Iterator[Location]:
        """Give copies in a temporary folder: a merge of eight parts that reads them piece by piece asks 233 times."""
        with tempfile.TemporaryDirectory(prefix="stability-merge-") as folder:
            near = LocalFolder(Path(folder))
            for name in names:
                self._copy(name, Path(near.path(name)))
            try:
                yield near
            except ArchiveError as error:
                message, file = (
                    text.replace(near.base, self.base) for text in (error.message, str(error.facts.get("file", "")))
                )
                raise ArchiveError(message, hint=error.hint, code=error.code, file=file) from error

    def _copy(self, name: str, to: Path) -> None:
        size, path = self.size(name), self.path(name)
        to.parent.mkdir(exist_ok=True)
        with to.open("wb") as file:
            for at in range(0, size, COPY_BYTES):
                length = min(COPY_BYTES, size - at)
                piece = self._guarded("read", path, partial(self._store.get_range, name, start=at, length=length))
                try:
                    file.write(piece)
                except OSError as error:
                    raise trouble(error, "write", str(to)) from error

    def delete(self, names: Iterable[str]) -> None:
        wanted = [checked_name(name) for name in names]

        def delete() -> None:
            with contextlib.suppress(FileNotFoundError):
                self._store.delete(wanted)

        if wanted:
            self._guarded("delete", self.path(wanted[0]), delete)

    def names(self, run_id: str) -> list[str]:
        checked_name(f"{run_id}/any")

        def found() -> list[str]:
            return sorted(item["path"] for page in self._store.list(f"{run_id}/") for item in page)

        return self._guarded("list", f"{self.base}/{run_id}/", found)

    def size(self, name: str) -> int:
        return self._guarded("read", self.path(name), lambda: int(self._store.head(name)["size"]))

    def _guarded(self, doing: str, path: str, action: Callable[[], T]) -> T:
        if self._clock() < self._away_until:
            raise trouble(ConnectionError(f"no answer a moment ago: {self._away}"), doing, path)
        try:
            return action()
        except READ_TROUBLE as error:
            found: ArchiveError = trouble(error, doing, path)
            if found.code == "archive_unreachable":
                self._away, self._away_until = found.message, self._clock() + AWAY_S
            raise found from error


def _polars_options() -> dict[str, Any]:
    """Return the options of Polars for the URL.

    Without the credential provider it reads the environment itself, as obstore does; with it the answer would depend on
    whether boto3 happens to be installed.
    """
    limits = {"max_retries": RETRIES, "timeout": f"{1000 * POLARS_TIMEOUT_S:.0f}ms"}
    return {"credential_provider": None, "storage_options": limits}


#: The one file that belongs to no run: whose archive this is.
INSTALLATION_FILE = "installation.json"
