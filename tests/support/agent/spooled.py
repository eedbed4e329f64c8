"""Reads back what a run left in its spool, through the reader and the framing that the agent uses."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from stabilityclient.agent.sources import Sources
from stabilityclient.agent.upload.framing import MAX_FRAME_RECORDS, READ_BYTES, frame_of
from stabilityclient.agent.upload.reader import SpoolReader
from stabilityclient.wire import Frame
from support.agent.gateway import Store

__all__ = ["child", "frames", "spools", "stored"]


def frames(folder: str | Path | None) -> Iterator[Frame]:
    """Yield all frames of a run folder, source after source in the order in which their processes started."""
    for source in Sources(Path(str(folder))).discover():
        reader = SpoolReader(str(source.folder), gap_wait_s=0.0)
        while records := reader.read(MAX_FRAME_RECORDS, READ_BYTES):
            yield frame_of(source.info, records)
        reader.close()


def stored(folder: str | Path | None) -> Store:
    """Return what a server would hold after the upload of a run folder."""
    assert folder is not None
    store = Store()
    for frame in frames(folder):
        store.add(frame)
    return store


def spools(folder: str | Path | None) -> list[Path]:
    """Return the files of a run folder that a server has not confirmed."""
    return list(Path(str(folder)).glob("sources/*/*.spool"))


def child(code: str, *arguments: str, **environ: str) -> subprocess.Popen[str]:
    """Start a Python process that does not know that it is under pytest."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], env=env | environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
