"""Where the files of the archive lie: a local folder or an object store, behind the same few verbs."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import polars as pl

from stabilitybackend.base.errors import SettingsError
from stabilitybackend.storage.archive.trouble import READ_TROUBLE, trouble

__all__ = ["INSTALLATION_FILE", "LocalFolder", "Location", "open_location", "sink"]

#: The one file that belongs to no run: whose archive this is.
INSTALLATION_FILE = "installation.json"

#: Schemes of object stores that both Polars and obstore open.
SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss")
#: zstd level. Higher ones buy under 1 % on noisy floats and cost a half more time.
COMPRESSION_LEVEL = 1

T = TypeVar("T")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")


class Location(ABC):
    """A place for files. A name is ``<run_id>/<file>``, or INSTALLATION_FILE. All methods block: call them in a thread.

    A file appears whole under its name or not at all. Everything raises ArchiveError, naming the file.

    Attributes:
        base: the folder or URL, as people know it.
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
        """Write a file where there is none of that name; leave one that is there as it is."""

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
        # A folder's name may hold what looks like a pattern or a partition; ours mean themselves.
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
        """Return what ``action`` returns; all its trouble becomes an ArchiveError."""
        try:
            return action()
        except READ_TROUBLE as error:
            raise trouble(error, doing, path) from error


class LocalFolder(Location):
    """A folder of this machine. A file is written beside its name, made durable, then renamed."""

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
    from stabilitybackend.storage.archive.object_store import ObjectStore

    return ObjectStore(text)


def checked_name(name: str) -> str:
    """Return ``name`` if it is one of ours: a path must never lead out of the archive."""
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
    """Make what was written to a file or a folder durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
