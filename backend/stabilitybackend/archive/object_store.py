"""The archive in an object store: Parquet through Polars, everything else through obstore.

obstore binds the Rust crate ``object_store`` that Polars itself uses, so both read the same environment (for S3
``AWS_REGION``, ``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``, ``AWS_ENDPOINT_URL``, ``AWS_ALLOW_HTTP``) and agree
on what a URL means.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import polars as pl

from stabilitybackend.archive.location import Location, checked_name, sink
from stabilitybackend.archive.trouble import READ_TROUBLE, trouble
from stabilitybackend.errors import SettingsError

__all__ = ["ObjectStore"]


class ObjectStore(Location):
    """A bucket, or a prefix in it. An object appears when its upload is complete, so nothing needs a second name.

    Args:
        url: for example ``s3://bucket/prefix``.
    """

    def __init__(self, url: str) -> None:
        self.base = url.rstrip("/")
        try:
            import obstore.store
        except ImportError as error:
            raise SettingsError(
                f"the archive's place is {url!r}, and the library for object stores is not installed",
                hint="pip install 'stabilityboard[objectstore]'",
            ) from error
        try:
            self._store: Any = obstore.store.from_url(self.base)
        except READ_TROUBLE as error:
            raise SettingsError(f"the archive's place is {url!r}: {error}") from error

    def path(self, name: str) -> str:
        return f"{self.base}/{checked_name(name)}"

    def write(self, name: str, frame: pl.LazyFrame, *, row_group_rows: int) -> int:
        try:
            sink(frame, self.path(name), row_group_rows)
        except READ_TROUBLE as error:
            raise trouble(error, "write", self.path(name)) from error
        return self.size(name)

    def write_bytes(self, name: str, data: bytes) -> int:
        try:
            self._store.put(checked_name(name), data)
        except READ_TROUBLE as error:
            raise trouble(error, "write", self.path(name)) from error
        return len(data)

    def read_bytes(self, name: str) -> bytes:
        try:
            return bytes(self._store.get(checked_name(name)).bytes())
        except READ_TROUBLE as error:
            raise trouble(error, "read", self.path(name)) from error

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            try:
                self._store.delete(checked_name(name))
            except FileNotFoundError:
                pass
            except READ_TROUBLE as error:
                raise trouble(error, "delete", self.path(name)) from error

    def names(self, run_id: str) -> list[str]:
        checked_name(f"{run_id}/any")
        try:
            return sorted(item["path"] for page in self._store.list(f"{run_id}/") for item in page)
        except READ_TROUBLE as error:
            raise trouble(error, "list", f"{self.base}/{run_id}/") from error

    def size(self, name: str) -> int:
        try:
            return int(self._store.head(checked_name(name))["size"])
        except READ_TROUBLE as error:
            raise trouble(error, "read", self.path(name)) from error
