"""Lock and Hello of a process that serves a run folder."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from stabilityclient import __version__
from stabilityclient.agent.sources import Sources
from stabilityclient.sidecar import read_json
from stabilityclient.wire import Hello

__all__ = ["lock_folder", "make_hello", "written"]


def lock_folder(folder: Path, wait_s: float) -> int | None:
    """Return the held lock of a run folder (a file descriptor), None when another agent has it."""
    (folder / "agent").mkdir(0o700, parents=True, exist_ok=True)
    path = folder / "agent" / "lock"
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # a disk that is read-only by now: its records are delivered
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(fd)
                return None
            time.sleep(0.05)
        else:
            return fd


def make_hello(folder: Path, agent: str, node: str, sources: Sources) -> Hello:
    """Return the first message of a connection, from ``run.json`` and the sources on disk."""
    facts = read_json(str(folder / "run.json"))
    config, tags = facts.get("config"), facts.get("tags")
    return Hello(
        run_id=str(facts.get("run_id") or ""),
        agent=agent,
        node=node,
        client_version=__version__,
        project=str(facts.get("project") or ""),
        name=str(facts.get("name") or ""),
        config=config if isinstance(config, dict) else {},
        sources=[source.info for source in sources],
        tags=[str(tag) for tag in tags] if isinstance(tags, list) else [],
        notes=str(facts.get("notes") or ""),
    )


def written(folder: Path) -> tuple[int, int] | None:
    """Return the mark of a version of ``run.json``, None without the file."""
    try:
        facts = (folder / "run.json").stat()
    except OSError:
        return None
    return facts.st_ino, facts.st_mtime_ns
