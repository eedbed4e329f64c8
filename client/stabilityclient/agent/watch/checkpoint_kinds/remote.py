"""Checkpoints in object stores: s3://, gs://, az:// and others that obstore opens, examined without a download.

Only here is obstore imported, and only when a checkpoint has a URL. It is optional: without it, or without the right
to read there, a checkpoint is *not checked*, with the reason; that never means that it is missing.
"""

from __future__ import annotations

import io
import os
import re
import zlib
from collections.abc import Callable
from datetime import timedelta
from functools import lru_cache
from typing import Any, BinaryIO, TypeVar
from urllib.parse import unquote, urlsplit

from stabilityclient.agent.watch.checkpoint_kinds.found import MAX_FILES, Folder, Inspection
from stabilityclient.agent.watch.checkpoint_kinds.inspection import inspect_listed

__all__ = ["Mark", "NotChecked", "in_store", "inspect_objects", "list_objects", "local"]

#: Mark of a change: of a file or folder on disk its time and size; of objects a checksum of their
#: names, sizes and tags, and their total size.
Mark = tuple[int, int]
T = TypeVar("T")

#: Times that a request is tried again, and how long one may take, seconds: a store that is away costs one look so much.
RETRIES, TIMEOUT_S = 2, 10.0
#: Read of an object immediately, bytes: the directory of a zip archive of some thousand tensors, or a header.
BLOCK_BYTES = 256 * 1024
#: Longest reported reason of the library, characters: some answer with whole pages.
MAX_REASON_CHARS = 160
#: Schemes of object stores in a URL. A web server can't be listed, and memory:// is that of another process.
SCHEMES = ("s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss")
#: Where keys of a cloud machine's role come from: no service answers there on any other machine.
_ROLE_PLACES = ("169.254.", "metadata.google.internal", "oauth2", "identity")
_SECRETS = re.compile(r"\?[^\s,)\]]+|(?<=//)[^/@\s]+@")


class NotChecked(Exception):
    """The objects at a URL are unknown; the text is the reason. No OSError: it is no torn file.

    Args:
        away: the store can't be asked at all, so that others in it need not be tried immediately.
    """

    def __init__(self, reason: str, *, away: bool = False) -> None:
        super().__init__(reason)
        self.away = away


def in_store(path: str) -> bool:
    """Whether a checkpoint's path is a URL of anything but this node's file systems."""
    return "://" in path and not path.startswith("file://")


def local(path: str) -> str:
    """Return the path of a ``file://`` URL, and any other path unchanged."""
    return unquote(urlsplit(path).path) if path.startswith("file://") else path


class Objects:
    """The objects of one checkpoint: those below ``url``, or the one at it.

    Attributes:
        folder: names -> sizes. name: of the one object that it is, None for those below.
        mark: changes when any of them does.
    """

    def __init__(self, folder: Folder, name: str | None, mark: Mark) -> None:
        self.folder, self.name, self.mark = folder, name, mark


def list_objects(url: str) -> Objects | None:
    """Return the objects at a URL, None where there are none.

    Raises:
        NotChecked: no store answered.
    """
    scheme, (parent, _, name) = url.partition("://")[0], url.rstrip("/").rpartition("/")
    if scheme not in SCHEMES:
        raise NotChecked(f"the node's agent can't open {scheme}://")
    if parent.endswith(("/", ":")):
        raise NotChecked("a whole bucket is no checkpoint")
    store = _asked(url, lambda: _store(parent))
    pages = _asked(url, lambda: [item for page in store.list(prefix=name) for item in page][: MAX_FILES + 1])
    start, single = f"{name}/", None
    found = [item for item in pages if item["path"].startswith(start) and item["path"] != start][:MAX_FILES]
    if not found:
        found = _asked(url, lambda: _one(store, name))
        start, single = "", name
    if not found:
        return None
    sizes = {item["path"].removeprefix(start): int(item["size"]) for item in found}
    parts = sorted((item["path"], item["size"], item["e_tag"], str(item["last_modified"])) for item in found)
    mark = (zlib.crc32(repr(parts).encode()), sum(sizes.values()))
    top = parent if single else f"{parent}/{name}"

    def opener(path: str) -> BinaryIO:
        inside = path.removeprefix(f"{top}/")
        raw = _Object(url, store, f"{start}{inside}", sizes[inside])
        return io.BufferedReader(raw, BLOCK_BYTES)

    return Objects(Folder(top, sizes, opener), single, mark)


def inspect_objects(objects: Objects, world_size: int | None = None) -> Inspection:
    """Return their kind and condition.

    Raises:
        NotChecked: no store answered.
    """
    try:
        return inspect_listed(objects.folder, objects.name, world_size)
    except OSError as error:  # none of this package: it is read through _Object only
        raise NotChecked(f"it can't be read: {error}") from error


class _Object(io.RawIOBase):
    """An object as a file that is read where it is asked for."""

    def __init__(self, url: str, store: Any, path: str, size: int) -> None:
        super().__init__()
        self._url, self._store, self._path, self._size = url, store, path, size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if at < 0:
            raise OSError(f"seek to {at} of {self._path}")  # as a file on disk answers: zipfile asks for it
        self._at = at
        return at

    def readinto(self, buffer: Any) -> int:
        start, end = self._at, min(self._size, self._at + len(buffer))
        if start >= end:
            return 0
        data = _asked(self._url, lambda: bytes(self._store.get_range(self._path, start=start, end=end)))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def _one(store: Any, name: str) -> list[Any]:
    """Return the object of a name, in a list that is empty where there is none."""
    from obstore.exceptions import NotFoundError

    try:
        return [store.head(name)]
    except (FileNotFoundError, NotFoundError):
        return []


@lru_cache(maxsize=16)
def _store(url: str) -> Any:
    """Return the store of a URL, which keeps its connections."""
    import obstore.store

    return obstore.store.from_url(
        url,
        retry_config={"max_retries": RETRIES, "retry_timeout": timedelta(seconds=TIMEOUT_S)},
        # As the server's archive does: an endpoint of http:// was named on purpose.
        client_options={"timeout": timedelta(seconds=TIMEOUT_S), "allow_http": True},
        **_more_credentials(url),
    )


def _more_credentials(url: str) -> dict[str, Any]:
    """Return credentials of boto3 (``~/.aws``, SSO), where installed: obstore itself asks environment and role."""
    if not url.startswith("s3") or "AWS_ACCESS_KEY_ID" in os.environ:
        return {}
    try:
        from obstore.auth.boto3 import Boto3CredentialProvider

        return {"credential_provider": Boto3CredentialProvider()}
    except (ImportError, ValueError):  # it is not there, or finds none either
        return {}


def _asked(url: str, action: Callable[[], T]) -> T:
    """Return the result of an action; errors of any library become a reason with a remedy."""
    try:
        return action()
    except ImportError as error:
        raise NotChecked("the node's agent can't read URLs: pip install 'stabilityclient[cloud]'") from error
    except Exception as error:
        raise _trouble(url, error) from error


def _trouble(url: str, error: Exception) -> NotChecked:
    scheme, text = url.partition("://")[0], _SECRETS.sub("", " ".join(str(error).partition("Debug source")[0].split()))
    kind = type(error).__name__
    if any(place in text for place in _ROLE_PLACES):
        return NotChecked(f"the node's agent has no credentials for {scheme}://", away=True)
    if kind in ("PermissionDeniedError", "UnauthenticatedError", "PermissionError") or "403 Forbidden" in text:
        return NotChecked("the store refuses the credentials of the node's agent")
    if kind in ("NotFoundError", "FileNotFoundError"):
        return NotChecked("it changed meanwhile, or its bucket is not there")
    return NotChecked(f"the store can't be asked: {text[:MAX_REASON_CHARS]}", away=True)
