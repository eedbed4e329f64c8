"""Turns what Polars, the disk and the object store complain about into one error that says what to do."""

from __future__ import annotations

import errno
import re

import polars as pl

from stabilitybackend.errors import ArchiveError

__all__ = ["READ_TROUBLE", "damaged", "trouble"]

#: What a read or write through Polars may raise. Its decoder panics on some damaged files, which is no Exception.
READ_TROUBLE: tuple[type[BaseException], ...] = (Exception, pl.exceptions.PanicException)

_OS_ERROR = re.compile(r"\(os error (\d+)\)")
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
_MISSING = {errno.ENOENT, errno.ENOTDIR}
#: Longest text of a library that is passed on, characters: object stores answer with whole pages.
_MAX_REASON = 300

_HINT_FULL = (
    "Make room there or choose another place for the archive. Nothing is lost: frames leave Redis only when "
    "their part is written."
)
_HINT_FORBIDDEN = "Let the user the server runs as read and write there, or choose another place for the archive."
_HINT_MISSING = (
    "Put the file back from a backup. Its rows are missing from charts until then; everything else is served."
)
_HINT_DAMAGED = (
    "Put the file back from a backup, or delete the run's part if there is none. Its rows are missing from charts "
    "until then; everything else is served."
)
_HINT_AWAY = (
    "Check that the place is reachable from the server and that its credentials are set (for S3: AWS_REGION, "
    "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL). It is tried again."
)


def trouble(error: BaseException, doing: str, path: str) -> ArchiveError:
    """Return the ArchiveError for what went wrong while ``doing`` (read, write, delete, list) ``path``.

    Its code tells programs the kind: ``archive_full``, ``archive_forbidden``, ``archive_missing``,
    ``archive_damaged`` or ``archive_unreachable``. The file is ``facts["file"]``.
    """
    if isinstance(error, ArchiveError):
        return error
    reason = " ".join(str(error).split())[:_MAX_REASON] or type(error).__name__
    number = _errno(error, reason)
    if number in _FULL:
        return _error(f"can't {doing} {path}: no room left ({reason})", _HINT_FULL, "archive_full", path)
    if number in _FORBIDDEN:
        return _error(f"can't {doing} {path}: not allowed ({reason})", _HINT_FORBIDDEN, "archive_forbidden", path)
    if (number in _MISSING or _says_missing(error, reason)) and doing == "read":
        return _error(
            f"{path} is missing: expected a file of the archive ({reason})", _HINT_MISSING, "archive_missing", path
        )
    if "://" in path and not _is_parquet_trouble(reason):
        return _error(f"can't {doing} {path}: {reason}", _HINT_AWAY, "archive_unreachable", path)
    if doing == "read" and not isinstance(error, OSError):
        return damaged(path, f"expected a whole Parquet file ({reason})")
    return _error(f"can't {doing} {path}: {reason}", _HINT_AWAY, "archive_unreachable", path)


def damaged(path: str, what: str) -> ArchiveError:
    """Return the ArchiveError for a file whose content is not what was written."""
    return _error(f"{path} is damaged: {what}", _HINT_DAMAGED, "archive_damaged", path)


def _error(message: str, hint: str, code: str, path: str) -> ArchiveError:
    return ArchiveError(message, hint=hint, code=code, file=path)


def _errno(error: BaseException, reason: str) -> int | None:
    """Return the system's number; Polars hands it on only in the text."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    found = _OS_ERROR.search(reason)
    return int(found.group(1)) if found else None


def _says_missing(error: BaseException, reason: str) -> bool:
    return isinstance(error, FileNotFoundError) or "NoSuchKey" in reason or "404 Not Found" in reason


def _is_parquet_trouble(reason: str) -> bool:
    return any(word in reason.lower() for word in ("parquet", "thrift", "zstd", "out of specification", "decompress"))
