"""Verdict for an outside watchdog before it ends a job that makes no step: does it hang, or pause on order?

The node's agent writes the file that ``STABILITY_PROGRESS_FILE`` names (docs/restart.md). Here is how it is read, for a
watchdog in Python, and as a command for all others::

    python -m stabilityclient.progress FILE --stuck-after 900

Exit codes: 0 it makes progress, pauses on command, or has ended; 1 it is stuck; 2 unknown. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

__all__ = ["PROGRESS_VERSION", "STALE_S", "main", "verdict_of"]

PROGRESS_VERSION = 1
#: An agent writes each second. An older file, seconds, is void: the agent was killed, or its disk
#: is full, and the job may be well.
STALE_S = 60.0
#: Longest file that is read, bytes.
MAX_BYTES = 64 * 1024
#: Exit code of each verdict.
CODES = {"progress": 0, "pause": 0, "over": 0, "stuck": 1, "unknown": 2}


def verdict_of(progress: Mapping[str, Any] | None, now: float, stuck_after_s: float) -> tuple[str, str]:
    """Return the verdict on a job, and its reason in words. Pure.

    Args:
        progress: content of the file; None: there is no readable one.
        now: unix seconds, of the node that wrote it.
        stuck_after_s: so long may a job make no step, where nothing was announced.

    Returns:
        ``progress``; ``pause``: it makes none, on order; ``over``: it has ended; ``stuck``; or ``unknown``: that
        is no reason to end a job.
    """
    if progress is None:
        return "unknown", "there is no progress file that can be read"
    if progress.get("version") != PROGRESS_VERSION:
        return "unknown", f"the file is of version {progress.get('version')!r}, expected {PROGRESS_VERSION}"
    written, advanced, until = (_seconds(progress.get(name)) for name in ("written", "advanced", "until"))
    state, step = str(progress.get("state")), progress.get("step")
    if until is not None and now < until and state != "ended":
        return "pause", f"{state}: it may make no step for {until - now:.0f} s more"
    if written is None or now - written > STALE_S:
        age = "at no time" if written is None else f"{now - written:.0f} s ago"
        return "unknown", f"the file was written {age}: the agent is gone, the job may be well"
    if state == "ended":
        return "over", "its processes have ended"
    if advanced is None:
        return "unknown", "no process of it has made a step yet"
    if now - advanced <= stuck_after_s:
        return "progress", f"step {step}, {now - advanced:.0f} s ago"
    return "stuck", f"nothing has moved for {now - advanced:.0f} s, at step {step} ({state})"


def read(path: str) -> dict[str, Any] | None:
    """Return the content of a progress file, None without a readable one."""
    try:
        # Not blocking: a pipe in place of the file must not be waited for.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            found = json.loads(file.read(MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _seconds(value: object) -> float | None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if good else None  # type: ignore[arg-type]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the verdict on a job and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m stabilityclient.progress",
        description="Exit code 0: progress, a pause that was announced, or the job is over; 1: stuck; 2: not known.",
    )
    parser.add_argument("file", help="what STABILITY_PROGRESS_FILE names in the job")
    parser.add_argument("--stuck-after", type=float, default=900.0, metavar="SECONDS", help="default 900")
    options = parser.parse_args(argv)
    if not options.stuck_after > 0:
        parser.error(f"--stuck-after is {options.stuck_after:g}, expected seconds > 0")
    verdict, why = verdict_of(read(options.file), time.time(), options.stuck_after)
    print(f"{verdict}: {why}")
    return CODES[verdict]


if __name__ == "__main__":
    sys.exit(main())
