"""Runs a Redis or Valkey server of our own: one per data folder, on a unix socket, with its data kept.

Promises: the server ends with its parent, also when the parent is killed with -9; no lock goes stale; a server that
dies is started again with its data; only this user can connect (no TCP port, socket and folder are private).
At most the last second of writes is lost when the machine itself goes down (``appendfsync everysec``).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import IO
from urllib.parse import quote, unquote

from stabilitybackend.base.errors import RedisStartError
from stabilitybackend.storage.redis_server import guard as embedded_guard
from stabilitybackend.storage.redis_server.binary import RedisBinary, choose_binary, record_writer
from stabilitybackend.storage.redis_server.folder_lock import FolderLock, read_holder

__all__ = ["BoundedLog", "EmbeddedRedis", "running_url"]

#: Lines of the end that ``tail`` gives: enough to see why a server ended.
_TAIL_LINES = 6
_TAIL_BYTES = 4096


class BoundedLog(RotatingFileHandler):
    """Appends to ``path`` and moves it to ``<path>.1`` when it is full, so at most twice ``max_bytes`` are kept.

    A write that fails (full disk) is dropped: a log must never stop its process.

    Args:
        path: the file; made on the first write.
        max_bytes: size at which the file is moved away.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        super().__init__(path, maxBytes=max_bytes, backupCount=1, encoding="utf-8", delay=True)
        self.path = path

    def handleError(self, record: logging.LogRecord) -> None:
        """Drop the line."""

    def write(self, line: str) -> None:
        """Append a line."""
        self.handle(logging.makeLogRecord({"msg": line}))

    def pump(self, source: IO[bytes]) -> None:
        """Append all that comes out of ``source`` until it ends, and close it."""
        with source:
            for line in source:
                self.write(line.decode(errors="replace").rstrip("\n"))

    def tail(self) -> str:
        """Return the last lines, or an empty string."""
        try:
            with self.path.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
                lines = file.read().decode(errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(lines[-_TAIL_LINES:])


#: Longest unix socket path, bytes: 107 on Linux, 103 on macOS (sun_path less its final zero).
MAX_SOCKET_PATH_BYTES = 107 if sys.platform == "linux" else 103
#: A server that loads much data takes about 3.6 s per GB; longer than this many seconds is a failed start.
START_TIMEOUT_S = 300.0
#: A stop takes 0.1 s; after this many seconds the server is killed (safe: its file is append-only).
STOP_TIMEOUT_S = 4.0
#: Pause before a restart, seconds: doubles up to the maximum, starts over after a minute of life.
RESTART_FIRST_S = 0.1
RESTART_MAX_S = 5.0
_LIVED_WELL_S = 60.0
_PING_TIMEOUT_S = 1.0
_PING_PAUSE_S = 0.01
#: Bytes of the server's log kept on disk, twice (current and previous file).
_LOG_BYTES = 1024 * 1024

# save "": the append-only file alone keeps the data, a snapshot would only cost disk.
# aof-load-truncated: a tail that was cut by a crash is dropped, everything before it is kept.
_CONFIG = """\
port 0
unixsocket {socket}
unixsocketperm 700
protected-mode yes
dir {folder}
daemonize no
logfile ""
save ""
appendonly yes
appendfsync everysec
aof-load-truncated yes
auto-aof-rewrite-percentage 100
auto-aof-rewrite-min-size 64mb
maxmemory-policy noeviction
"""


class EmbeddedRedis:
    """The server of one data folder, from ``start`` to ``stop``; a context manager as well.

    Args:
        data_dir: the folder; must exist. Data goes to ``redis/``, the server's output to ``redis.log``.
        server: path of the binary to run; None chooses (see ``redis_binary``).
        way: ``kernel`` or ``pipe``: how the server is tied to our life (see ``embedded_guard``). None takes the best.

    Attributes:
        restarts: how often the server died and was started again.
    """

    def __init__(self, data_dir: Path, *, server: str | None = None, way: str | None = None) -> None:
        self.data_dir = data_dir
        self.restarts = 0
        self.binary: RedisBinary | None = None
        self._wanted = server
        self._way = way or ("kernel" if sys.platform == "linux" else "pipe")
        self._redis_dir = data_dir / "redis"
        self._lock = FolderLock(data_dir / "redis.lock")
        self._log = BoundedLog(data_dir / "redis.log", _LOG_BYTES)
        self._socket = data_dir / "redis.sock"
        self._process: subprocess.Popen[bytes] | None = None
        self._process_lock = threading.Lock()
        self._stopping = threading.Event()
        self._started = threading.Event()
        self._failure = ""
        self._supervisor: threading.Thread | None = None

    @property
    def url(self) -> str:
        """The address for clients, ``unix:///...``."""
        return f"unix://{quote(str(self._socket))}"

    @property
    def pid(self) -> int | None:
        """Process id of the server, or None while there is none."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def start(self) -> str:
        """Start the server, wait until it has loaded its data, and return its URL.

        Raises:
            FolderInUse: another Stabilityboard works in the folder.
            RedisStartError: no usable binary, the disk is full, or the server ended early; the message has the end
                of its log.
        """
        try:
            return self._start()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            self._lock.release()
            raise RedisStartError(
                f"there is no room on the disk of {self.data_dir} ({error.strerror}), and a server that can store "
                "nothing does not start",
                hint="make room there, or name another folder with --data-dir",
            ) from error

    def _start(self) -> str:
        self._lock.acquire()
        try:
            self._redis_dir.mkdir(mode=0o700, exist_ok=True)
            self._socket = _socket_path(self.data_dir)
            self.binary = choose_binary(self._redis_dir, self._wanted)
            self._stopping.clear()
            self._started.clear()
            self._failure = ""
            # The kernel ties the server to the thread that starts it, so this thread lives as long as the server may.
            self._supervisor = threading.Thread(target=self._supervise, name="embedded-redis", daemon=True)
            self._supervisor.start()
            self._started.wait()
            if self._failure:
                raise RedisStartError(
                    f"{self.binary} did not start: {self._failure}",
                    hint=f"read {self._log.path}; the data is in {self._redis_dir}",
                )
            record_writer(self._redis_dir, self.binary)
            self._lock.note(self.url)
        except BaseException:
            self.stop()
            raise
        return self.url

    def stop(self) -> None:
        """Stop the server and let the folder go. Does nothing when it is not running."""
        self._stopping.set()
        with self._process_lock:
            process = self._process
        if process is not None and process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
        if self._supervisor is not None:
            self._supervisor.join()
            self._supervisor = None
        if self._lock.fd >= 0:
            with contextlib.suppress(FileNotFoundError):
                self._socket.unlink()
            if self._socket.parent != self.data_dir:
                with contextlib.suppress(OSError):
                    self._socket.parent.rmdir()
            self._lock.release()
        self._log.close()

    def __enter__(self) -> EmbeddedRedis:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _supervise(self) -> None:
        pause_s = RESTART_FIRST_S
        while not self._stopping.is_set():
            born = time.monotonic()
            try:
                self._live_once()
            except OSError as error:
                self._log.write(f"stabilityboard: the server could not be started: {error}")
            if self._stopping.is_set():
                break
            if not self._started.is_set():
                self._failure = self._log.tail() or "it ended without a log line"
                break
            self.restarts += 1
            if time.monotonic() - born > _LIVED_WELL_S:
                pause_s = RESTART_FIRST_S
            self._log.write(f"stabilityboard: the server ended, restart {self.restarts} in {pause_s} s")
            self._stopping.wait(pause_s)
            pause_s = min(2 * pause_s, RESTART_MAX_S)
        if not self._started.is_set() and not self._failure:
            self._failure = "it was stopped while it started"
        self._started.set()

    def _live_once(self) -> None:
        """Start one server process and return when it has ended."""
        read_end, write_end = os.pipe()
        try:
            with self._process_lock:
                if self._stopping.is_set():
                    return
                process = self._process = self._spawn(read_end)
            os.close(read_end)
            read_end = -1
            assert process.stdin is not None
            assert process.stdout is not None
            with contextlib.suppress(BrokenPipeError), process.stdin as stdin:
                stdin.write(self._config())
            pump = threading.Thread(
                target=self._log.pump, args=(process.stdout,), name="embedded-redis-log", daemon=True
            )
            pump.start()
            if self._wait_ready(process):
                self._started.set()
            process.wait()
            pump.join(_PING_TIMEOUT_S)  # a rewrite child of a killed server may hold the pipe open a little longer
        finally:
            os.close(write_end)
            if read_end >= 0:
                os.close(read_end)

    def _spawn(self, pipe_fd: int) -> subprocess.Popen[bytes]:
        assert self.binary is not None
        guard = [sys.executable, "-I", "-S", str(embedded_guard.__file__), self._way]
        return subprocess.Popen(
            [*guard, str(os.getpid()), str(pipe_fd), str(self._lock.fd), str(self.binary.path), "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(pipe_fd, self._lock.fd),
            start_new_session=True,  # Ctrl-C in the terminal is for us; we stop the server when we no longer need it
        )

    def _config(self) -> bytes:
        return _CONFIG.format(socket=_quoted(self._socket), folder=_quoted(self._redis_dir)).encode()

    def _wait_ready(self, process: subprocess.Popen[bytes]) -> bool:
        deadline = time.monotonic() + START_TIMEOUT_S
        while process.poll() is None and time.monotonic() < deadline:
            if _answers_ping(self._socket):
                return True
            time.sleep(_PING_PAUSE_S)
        if process.poll() is None and not self._started.is_set():
            self._log.write(f"stabilityboard: no answer within {START_TIMEOUT_S:.0f} s")
            process.kill()
        return False


def running_url(data_dir: Path) -> str | None:
    """Return the URL of the embedded server that runs on ``data_dir`` now, or None."""
    url = read_holder(data_dir / "redis.lock").url
    return url if url and _answers_ping(Path(unquote(url.removeprefix("unix://")))) else None


def _answers_ping(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(_PING_TIMEOUT_S)
        try:
            client.connect(str(path))
            client.sendall(b"PING\r\n")
            return client.recv(64).startswith(b"+PONG")  # -LOADING while it reads its data
        except OSError:
            return False


def _socket_path(data_dir: Path) -> Path:
    """Return where the socket goes: in the data folder, or in a short private folder where that can't hold one."""
    inside = data_dir / "redis.sock"
    with contextlib.suppress(FileNotFoundError):
        inside.unlink()  # we hold the folder's lock, so this is a dead server's
    if len(os.fsencode(inside)) <= MAX_SOCKET_PATH_BYTES and _can_bind(inside):
        return inside
    # The name follows from the data folder, so that a start after a kill -9 finds and cleans the same place.
    digest = hashlib.sha256(os.fsencode(data_dir.absolute())).hexdigest()[:16]
    short = Path(tempfile.gettempdir()) / f"stabilityboard-{os.getuid()}-{digest}"
    short.mkdir(mode=0o700, exist_ok=True)
    facts = short.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid() or facts.st_mode & 0o077:
        raise RedisStartError(
            f"{short} belongs to somebody else or is open to others, expected a private folder for the Redis socket",
            hint="remove it, or give a shorter --data-dir",
        )
    with contextlib.suppress(FileNotFoundError):
        (short / "redis.sock").unlink()
    return short / "redis.sock"


def _can_bind(path: Path) -> bool:
    """Return whether the file system at ``path`` can hold a socket (some network and shared folders can't)."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.bind(str(path))
        path.unlink()
    except OSError:
        return False
    return True


def _quoted(path: Path) -> str:
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
