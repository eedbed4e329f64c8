"""What a job at work does now: it starts, restores, trains, saves or evaluates. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from stabilitybackend.judging.liveness.rank_watch import RankWatch
from stabilitybackend.schema.states.severity import RunPhase

__all__ = ["job_phase"]

#: A phase is a job's when a rank has been in it so long, seconds: a save of a moment in each step is part of training.
SHOWN_AFTER_S = 2.0
#: What ranks call their phases -> what the job does; the first that some rank is in counts.
_WORDS: Sequence[tuple[RunPhase, frozenset[str]]] = (
    ("restoring", frozenset({"load", "restore", "rollback"})),
    ("checkpointing", frozenset({"checkpoint", "checkpointing", "ckpt", "save"})),
    (
        "evaluating",
        frozenset({"eval", "evaluate", "evaluation", "test", "val", "valid", "validate", "validation"}),
    ),
    ("starting", frozenset({"init", "setup", "compile", "warmup"})),
)
_NAME = re.compile(r"[a-z]+")


def job_phase(visible: Sequence[RankWatch]) -> tuple[RunPhase, float | None]:
    """Return what the job does, and since when, unix seconds of the server; None for training, which has no beginning.

    Args:
        visible: the ranks that run and are seen. One that saves or evaluates speaks for all: the others wait for it.
    """
    found: dict[RunPhase, float] = {}
    for watch in visible:
        if not watch.in_long_phase or watch.stalled_s < SHOWN_AFTER_S:
            continue
        words = set(_NAME.findall(watch.phase.lower()))
        for phase, names in _WORDS:
            if not names.isdisjoint(words):
                found[phase] = min(found.get(phase, watch.since), watch.since)
                break
    if visible and all(watch.newest_step < 0 for watch in visible):
        return "starting", found.get("starting")
    for phase, _ in _WORDS:
        if phase in found:
            return phase, found[phase]
    return "training", None
