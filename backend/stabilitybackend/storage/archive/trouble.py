"""Turns errors of Polars, the disk and the object store into one error with advice."""

from __future__ import annotations

import errno
import os
import re

import polars as pl

from stabilitybackend.base.errors import ArchiveError

__all__ = ["READ_TROUBLE", "damaged", "trouble"]

#: Exceptions of a read or write through Polars. Its decoder panics on some damaged files, which is no Exception.
READ_TROUBLE: tuple[type[BaseException], ...] = (Exception, pl.exceptions.PanicException)

#: Longest text of a library that is passed on, characters: object stores answer with whole pages.
_MAX_REASON = 300
_OS_ERROR = re.compile(r"\(os error (\d+)\)")
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
_MISSING = {errno.ENOENT, errno.ENOTDIR}

_PUT_BACK = "Put the file back from a backup. Its rows are missing from charts until then; everything else is served."
_CREDENTIALS = "AWS_REGION, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_ENDPOINT_URL in the server's environment"
_HINTS = {
    "archive_full": "Make room there or choose another place for the archive. Nothing is lost: frames leave Redis only "
    "when their part is written.",
    "archive_forbidden": "Let the user the server runs as read and write there (a folder: chown, chmod; S3: the keys' "
    "policy), or choose another place for the archive.",
    "archive_missing": _PUT_BACK,
    "archive_damaged": _PUT_BACK,
    "archive_unreachable": f"Check that the store can be reached from the server, and its credentials (S3: "
    f"{_CREDENTIALS}). It is tried again.",
    "archive_failed": "Check the disk, or choose another place for the archive. It is tried again.",
}


def trouble(error: BaseException, doing: str, path: str) -> ArchiveError:
    """Return the ArchiveError for an error while ``doing`` (read, write, delete, list) ``path``.

    Its code names the kind: ``archive_full``, ``archive_forbidden``, ``archive_missing``,
    ``archive_damaged``, ``archive_unreachable`` (an object store) or ``archive_failed`` (anything else). The file is
    ``facts["file"]``.
    """
    if isinstance(error, ArchiveError):
        return error
    text = " ".join(str(error).split())[:_MAX_REASON] or type(error).__name__
    number = _errno(error, text)
    reason = os.strerror(number) if number is not None else text
    remote = "://" in path
    if number in _FULL:
        return _error("archive_full", f"can't {doing} {path}: no room left ({reason})", path)
    if number in _FORBIDDEN or (remote and "403 Forbidden" in text):
        return _error("archive_forbidden", f"can't {doing} {path}: not allowed ({reason})", path)
    if doing == "read" and (number in _MISSING or isinstance(error, FileNotFoundError) or "404 Not Found" in text):
        return _error("archive_missing", f"{path} is missing: expected a file of the archive ({reason})", path)
    if remote and (isinstance(error, OSError) or "performing" in text):
        return _error("archive_unreachable", f"can't {doing} {path}: {reason}", path)
    if doing == "read" and not isinstance(error, OSError):
        return damaged(path, f"expected a whole Parquet file ({reason})")
    return _error("archive_unreachable" if remote else "archive_failed", f"can't {doing} {path}: {reason}", path)


def damaged(path: str, what: str) -> ArchiveError:
    """Return the ArchiveError for a file whose content differs from the written one."""
    return _error("archive_damaged", f"{path} is damaged: {what}", path)


def _error(code: str, message: str, path: str) -> ArchiveError:
    return ArchiveError(message, hint=_HINTS[code], code=code, file=path)


def _errno(error: BaseException, text: str) -> int | None:
    """Return the system's number; Polars hands it on only in the text."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    found = _OS_ERROR.search(text)
    return int(found.group(1)) if found else None
