"""Opens files of other programs: inside the folder that was named, without ever waiting, as UTF-8 with plain line ends.

The folder may be a stranger's: a link in it must not bring a private file onto a board, a FIFO would block its reader,
and a seemingly small file may be a hole of 40 GiB or a packed bomb. So files are read in pieces of bounded size.
"""

from __future__ import annotations

import codecs
import gzip
import io
import os
import stat
import zlib
from pathlib import Path
from typing import BinaryIO

from stabilitybackend.base.errors import BadRequest

__all__ = [
    "HEAD_BYTES",
    "MAX_LINE_BYTES",
    "count_lines",
    "head_of",
    "is_inside",
    "most_rows",
    "open_bytes",
    "open_text",
    "read_piece",
    "unreadable",
]

#: Longest line, bytes: more is no row of metrics, and must not fill the memory.
MAX_LINE_BYTES = 16 * 1024 * 1024
#: Size of the head that reveals a file's format.
HEAD_BYTES = 64 * 1024
#: Bytes per read: some thousand rows, enough that a call costs nothing by comparison, and small in memory.
PIECE_BYTES = 2 * 1024 * 1024
_GZIP = b"\x1f\x8b"
_UTF16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}


def is_inside(path: Path, folder: Path) -> bool:
    """Say whether a path lies in a folder once all links are followed."""
    return path.resolve().is_relative_to(folder.resolve())


def open_bytes(path: Path, folder: Path | None = None) -> BinaryIO:
    """Open a regular file for reading bytes.

    Args:
        folder: that it must not lead out of; None: the file itself was named on the command line.

    Raises:
        OSError: it can't be read, is no regular file, or is a link out of the folder.
    """
    if folder is not None:
        if not is_inside(path, folder):
            raise OSError(f"{path} is a link out of {folder}")
        path = path.resolve()
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (os.O_NOFOLLOW if folder is not None else 0)
    file = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(f"{path} is no regular file")
    return os.fdopen(file, "rb")


def open_text(path: Path) -> BinaryIO:
    """Open a file unpacked and as UTF-8 without a byte order mark; lines that end in ``\\r`` alone end in ``\\n``.

    Raises:
        OSError: as of ``open_bytes``.
    """
    file = _unpacked(path)
    head = read_piece(file, HEAD_BYTES)[0]
    coding, begin = _UTF16.get(head[:2]), 0
    if coding is not None or head.startswith(codecs.BOM_UTF8):
        begin = 2 if coding is not None else 3
    file.seek(begin)
    if coding is not None:
        head = head[2:].decode(coding, "replace").encode()
        file = io.BufferedReader(_Recoded(file, coding))  # type: ignore[type-var]
    if b"\r" in head and b"\n" not in head:
        file = io.BufferedReader(_PlainEnds(file))  # type: ignore[type-var]
    return file


def head_of(path: Path) -> bytes:
    """Return the beginning of a file as ``open_text`` reads it; of one that is no text, its first bytes.

    Raises:
        OSError: it can't be read.
    """
    with open_text(path) as file:
        return read_piece(file, HEAD_BYTES)[0]


def read_piece(file: BinaryIO, size: int = PIECE_BYTES) -> tuple[bytes, Exception | None]:
    """Return about ``size`` bytes, and why there is no more: a cut ``.gz`` still gives the part before the cut."""
    parts: list[bytes] = []
    done = 0
    try:
        while done < size and (part := file.read1(size - done)):  # type: ignore[attr-defined]
            parts.append(part)
            done += len(part)
    except (OSError, EOFError, zlib.error) as error:
        return b"".join(parts), error
    return b"".join(parts), None


def count_lines(path: Path) -> int:
    """Return how many lines a file has; an end that is no whole line does not count."""
    return _count(path, b"\n")


def most_rows(path: Path) -> int:
    """Return the number of rows that a text file has at most."""
    return max(_count(path, b"\n"), _count(path, b"}"))


def _count(path: Path, sign: bytes) -> int:
    total = 0
    with open_text(path) as file:
        while piece := read_piece(file)[0]:
            total += piece.count(sign)
    return total


def unreadable(path: Path, error: Exception) -> BadRequest:
    """Return the error of a file that can't be read."""
    if not isinstance(error, OSError | EOFError | zlib.error):
        what = f"{type(error).__name__}: {str(error)[:200]}"
        return BadRequest(f"{path} can't be read: its reader failed ({what})", hint="please report this file")
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
    return BadRequest(f"{path} can't be read: {reason.removeprefix(f'{path} ')}")


def _unpacked(path: Path) -> BinaryIO:
    plain = open_bytes(path)
    packed = plain.read(2) == _GZIP
    plain.seek(0)
    if not packed:
        return plain
    plain.close()
    return gzip.open(path, "rb")  # type: ignore[return-value]


class _Recoded(io.RawIOBase):
    """A file in another encoding as UTF-8."""

    def __init__(self, file: BinaryIO, coding: str) -> None:
        self._file = file
        self._decode = codecs.getincrementaldecoder(coding)("replace").decode
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        while not self._rest:
            data = self._file.read(HEAD_BYTES)
            self._rest = self._converted(data)
            if not data:
                break
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def _converted(self, data: bytes) -> bytes:
        return self._decode(data, not data).encode()

    def close(self) -> None:
        self._file.close()
        super().close()


class _PlainEnds(_Recoded):
    """A file whose lines end in ``\\r`` alone: old Macs, and captured progress bars."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file, "utf-8")

    def _converted(self, data: bytes) -> bytes:
        return data.replace(b"\r", b"\n")
