"""Uploads a spool folder that no agent serves: of an offline job, or the rest when the server stayed away.

The same reader, framing and connection as in the agent; so delivered records are not stored again.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from stabilityclient.agent.folder import lock_folder, make_hello
from stabilityclient.agent.sources import Sources
from stabilityclient.agent.upload.uplink import Callbacks, Uplink
from stabilityclient.errors import StabilityError
from stabilityclient.wire import Hello

__all__ = ["ImportFailed", "UploadReport", "upload"]

#: Seconds without any progress after which an upload gives up.
STALLED_S = 60.0


class ImportFailed(StabilityError):
    """The folder is no run, another agent serves it, or the server does not take it."""


class UploadReport(NamedTuple):
    """Result of an upload.

    Args:
        run_id: of the run. sources: streams in the folder. records: numbers that the server holds now.
        sent: records that it did not have before. damaged: records that could not be read.
    """

    run_id: str
    sources: int
    records: int
    sent: int
    damaged: int


async def upload(
    run_folder: str | os.PathLike[str],
    url: str,
    api_key: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> UploadReport:
    """Deliver everything in a folder and return when the server confirmed it.

    Args:
        run_folder: ``<dir>/<run_id>``. url, api_key: of the server.
        progress: called with (numbers confirmed, numbers read so far), about five times a second.

    Raises:
        ImportFailed: the folder is not that of a run, an agent is at work on it, the server refuses it, or nothing
            moved for a minute. Confirmed records stay confirmed; try again.
    """
    folder = Path(run_folder)
    if not (folder / "run.json").is_file() or not (folder / "sources").is_dir():
        raise ImportFailed(f"{folder} is not the spool of a run: expected a folder with run.json and sources/ in it")
    lock = lock_folder(folder, 0.0)
    if lock is None:
        raise ImportFailed(
            f"{folder} is served by a running agent, which delivers it by itself; wait until the job is over"
        )
    try:
        return await _upload(folder, url, api_key, progress or (lambda done, seen: None))
    finally:
        os.close(lock)


async def _upload(folder: Path, url: str, api_key: str | None, progress: Callable[[int, int], None]) -> UploadReport:
    sources = Sources(folder)
    sources.discover()
    for source in sources:
        source.final = True
    troubles: list[str] = []
    callbacks = Callbacks(state=lambda _, text: troubles.append(text))
    uplink = Uplink(url, api_key, sources, lambda: _hello(folder, sources), callbacks)
    task = asyncio.create_task(uplink.run())
    moved, moved_at = -1, time.monotonic()
    try:
        while not all(source.delivered for source in sources) or not uplink.connected:
            await asyncio.sleep(0.2 if moved > 0 else 0.02)
            if task.done():
                task.result()
            done = sum(source.acked for source in sources)
            progress(done, sum(source.reader.next_seq - 1 for source in sources))
            if uplink.refused:
                raise ImportFailed(f"the server at {url} refuses {folder}: {uplink.refused}")
            held = next((f"{source.info.source}: {source.held}" for source in sources if source.held), "")
            if held:
                raise ImportFailed(f"the server at {url} can't take all of {folder}: {held}")
            if done != moved:
                moved, moved_at = done, time.monotonic()
            elif time.monotonic() - moved_at > STALLED_S:
                why = next((text for text in reversed(troubles) if text), "no answer")
                raise ImportFailed(f"nothing moved for {STALLED_S:.0f} s on the way to {url}: {why}")
            del troubles[:-10]
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return UploadReport(
        run_id=_hello(folder, sources).run_id,
        sources=len(list(sources)),
        records=sum(source.acked for source in sources),
        sent=uplink.records_sent,
        damaged=sum(source.reader.bad_records for source in sources),
    )


def _hello(folder: Path, sources: Sources) -> Hello:
    ranks = sources.ranks()
    node = ranks[0].info.node if ranks else os.uname().nodename
    return make_hello(folder, f"a{time.time_ns():x}-{os.getpid()}", node, sources)
