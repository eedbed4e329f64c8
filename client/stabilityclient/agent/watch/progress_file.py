"""Writes for watchdogs outside whether the job of this node makes progress, or pauses because it was ordered to.

A watchdog that ends a job without steps would end one that loads a checkpoint on command, or starts again. The agent
knows of both and writes it to a file; the training process does nothing for it. A pause has an end, so that a rollback
that hangs is no excuse for ever. Reader: ``stabilityclient/progress.py``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from stabilityclient.agent.sources import Source, Sources
from stabilityclient.agent.statefile import StateFile
from stabilityclient.progress import PROGRESS_VERSION
from stabilityclient.sidecar import read_json

__all__ = ["PAUSE_S", "ProgressFile"]

#: An ordered rollback or restart may take so long, seconds, unless STABILITY_PAUSE_S is set: a checkpoint of
#: some TB from a busy store, or new pods with their images.
PAUSE_S = 1_800.0
#: A declared phase may take so many times the declared time, as for the server (docs/liveness.md).
DECLARED_TIMES = 1.5
#: Seconds between two writes.
EVERY_S = 1.0

_FILE, _PAUSE = "STABILITY_PROGRESS_FILE", "STABILITY_PAUSE_S"


class ProgressFile:
    """The progress file of one run on one node; none where the environment names none.

    Args:
        folder: run folder of this node. environ: the agent's. node: its name. sources: its ranks.
        log: of the agent. clock: unix seconds now.
    """

    def __init__(
        self,
        folder: Path,
        environ: Mapping[str, str],
        node: str,
        sources: Sources,
        log: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        path = environ.get(_FILE, "").strip()
        self._file = StateFile(Path(path), mode=0o644) if path else None
        self._folder, self._node, self._sources = folder, node, sources
        self._log, self._clock = log, clock
        self._run_id = str(read_json(str(folder / "run.json")).get("run_id") or "")
        self._at = float("-inf")
        self._trouble = ""
        self._pause_s = _positive(environ.get(_PAUSE, "")) or PAUSE_S
        if environ.get(_PAUSE) and _positive(environ[_PAUSE]) is None:
            log(f"{_PAUSE} is {environ[_PAUSE]!r}, expected seconds > 0: {PAUSE_S:.0f} is used")

    def write(self, *, at_once: bool = False) -> None:
        """Write the facts now, once a second at most unless ``at_once``. A disk that takes nothing is logged."""
        now = self._clock()
        if self._file is None or (0 <= now - self._at < EVERY_S and not at_once):
            return
        self._at = now
        self._file.write(self._now(now))
        if self._file.error != self._trouble:
            self._trouble = self._file.error
            if self._trouble:
                self._log(f"{_FILE}: {self._trouble}")

    def _now(self, now: float) -> dict[str, Any]:
        ranks = [source for source in self._sources.living_ranks() if source.slot is not None]
        slots = [source.slot for source in ranks if source.slot is not None and source.slot.step >= 0]
        moved = [max(slot.step_start, slot.phase_start) for slot in slots]
        state, since, until = self._state(ranks, now)
        return {
            "version": PROGRESS_VERSION, "run_id": self._run_id, "node": self._node, "written": now, "state": state,
            "step": self._sources.newest_step(), "advanced": max(moved, default=None), "since": since, "until": until,
        }  # fmt: skip

    def _state(self, ranks: list[Source], now: float) -> tuple[str, float | None, float | None]:
        """Return the state of the job, since when, and until when it need not make a step; None: no announcement."""
        back = self._restart(ranks)
        if back is not None and now < back + self._pause_s:
            return "restart", back, back + self._pause_s
        slots = [source.slot for source in ranks if source.slot is not None]
        ordered = max((slot.paused for slot in slots), default=0.0)
        if ordered > 0:
            return "rollback", ordered, ordered + self._pause_s
        declared = [
            (slot.phase_start + DECLARED_TIMES * slot.expect_s, slot.phase_start, slot.phase)
            for slot in slots
            if slot.expect_s > 0
        ]
        if declared:
            until, since, phase = max(declared)
            return phase, since, until
        return ("training" if self._sources.living_ranks() else "ended"), None, None

    def _restart(self, ranks: list[Source]) -> float | None:
        """Return when a restart was ordered after which no step has come yet, unix seconds; None without one."""
        plan = read_json(str(self._folder / "plan.json"))
        received = plan.get("received")
        if not plan.get("command_id") or not isinstance(received, int | float):
            return None
        steps = [source for source in ranks if source.slot is not None and source.slot.step >= 0]
        trains_again = any(source.info.started > received for source in steps)
        return None if trains_again else float(received)


def _positive(text: str) -> float | None:
    try:
        found = float(text)
    except ValueError:
        return None
    return found if math.isfinite(found) and found > 0 else None
