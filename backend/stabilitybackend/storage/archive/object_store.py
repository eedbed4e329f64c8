"""The archive in an object store: Parquet through Polars, everything else through obstore.

obstore binds the Rust crate ``object_store`` that Polars itself uses, so both read the same environment and agree on
what a URL means. For S3: ``AWS_REGION``, ``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``, and for other makers' stores
``AWS_ENDPOINT_URL``; on a cloud machine its own role serves without any of them.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from stabilitybackend.base.errors import ArchiveError, SettingsError
from stabilitybackend.storage.archive.location import LocalFolder, Location, checked_name, sink
from stabilitybackend.storage.archive.trouble import READ_TROUBLE, trouble

__all__ = ["ObjectStore"]

#: Times that a request is tried again before it counts as failed. With the crate's 10 a chart would wait for minutes.
RETRIES = 2
#: A request without an answer is given up after this, seconds.
TIMEOUT_S = 10
#: The same for Polars, whose requests carry up to 64 MiB, seconds. It has no limit of its own: a store that takes a
#: request and falls silent would keep every run from being archived until the server ends. It asks twice.
POLARS_TIMEOUT_S = 30
#: After a store did not answer nobody asks it again for so long, seconds: each chart reads many files, and each would
#: wait for its own time-out.
AWAY_S = 5.0

#: A copy is fetched in pieces of so many bytes, each within the time-out.
COPY_BYTES = 8 * 2**20

T = TypeVar("T")


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
                # As Polars does: an endpoint of http:// is one that somebody named on purpose.
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
    """Return what Polars needs beside the URL.

    Without the credential provider it reads the environment itself, as obstore does; with it the answer would depend on
    whether boto3 happens to be installed.
    """
    limits = {"max_retries": RETRIES, "timeout": f"{1000 * POLARS_TIMEOUT_S:.0f}ms"}
    return {"credential_provider": None, "storage_options": limits}
