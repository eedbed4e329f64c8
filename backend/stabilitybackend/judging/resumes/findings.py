"""A resume as a finding, and its measures as the API has them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from stabilitybackend.judging.detectors.engine.base import Finding
from stabilitybackend.judging.resumes.orders import reported
from stabilitybackend.judging.resumes.overlap import Overlap
from stabilitybackend.judging.resumes.verdict import RATE_IS, clause_of
from stabilitybackend.schema.resumes import BY_RESUMES, ORDERS, Resume, Shift

__all__ = ["finding_of", "numbers_of", "order_finding"]

#: Metrics of a resume that are kept, those that differ first.
MAX_COMPARED = 24


def finding_of(resume: Resume, wrongs: Sequence[str], newest: int, *, over: bool) -> Finding:
    """Return what is wrong with a resume.

    Args:
        newest: the newest step that was compared. over: nothing more is expected of it.
    """
    kind, what = "resume_artifact", "Wrong resume"
    if resume.verdict == "repeated":
        kind, what = "repeat_data", "Repeated data"
    elif all(wrong.startswith(RATE_IS) for wrong in wrongs):
        kind, what = "learning_rate", "Learning rate far off"
    words = "; ".join(wrongs)
    return Finding(
        detector=BY_RESUMES,
        key=f"{BY_RESUMES}:{resume.segment}:{resume.fork_step}",
        kind=kind,
        state="recovered" if over else "open",
        severity="warning",
        title=f"{what} after step {resume.fork_step}",
        text=f"{words[:1].upper()}{words[1:]}. {resume.text.partition(' Wrong: ')[0]}",
        onset_step=resume.fork_step + 1,
        step=newest,
        now_step=newest,
        recovered_step=newest if over else None,
        metric=resume.loss,
        score=0.0,
        evidence={
            "fork_step": resume.fork_step,
            "verdict": resume.verdict,
            "causes": wrongs,
            "points": resume.points,
            "r": resume.r,
            "shift_steps": None if resume.shift is None else resume.shift.steps,
            "ids": resume.ids,
            "same_ids": resume.same_ids,
            "parts": {part.part: part.known for part in resume.parts},
        },
    )


def order_finding(resume: Resume, applied: Mapping[str, Any] | None, newest: int, *, over: bool) -> Finding:
    """Return what was ordered, or declared by the job itself, and did not happen.

    Args:
        applied: what the job reports that it changed.
        newest: the newest step that was compared. over: the run went back, or on, once more.
    """
    clauses = "; ".join(map(clause_of, resume.not_followed)) or "what came since shows that it was followed"
    what = "Order" if resume.cause == "command" else "Declared change"
    return Finding(
        detector=BY_RESUMES,
        key=f"{ORDERS}:{resume.segment}:{resume.fork_step}",
        kind=ORDERS,
        state="resolved" if over else "open",
        severity="warning",
        title=f"{what} not followed after step {resume.fork_step}",
        text=f"{clauses[:1].upper()}{clauses[1:]}.",
        onset_step=resume.fork_step + 1,
        step=newest,
        now_step=newest,
        recovered_step=newest if over else None,
        metric=resume.loss,
        score=0.0,
        evidence={
            "fork_step": resume.fork_step,
            "not_followed": msgspec.to_builtins(resume.not_followed),
            "applied": reported(applied),
            "points": resume.points,
            "ids": resume.ids,
        },
    )


def numbers_of(seen: Overlap) -> Mapping[str, Any]:
    """Return the fields of a resume that are measures."""
    gaps = sorted(abs(gap) for gap in seen.gap.tolist() if math.isfinite(gap))
    shift = None
    if seen.ids is not None and seen.ids.shift is not None:
        shift = Shift(seen.ids.shift[0], None, None, seen.ids.shift[1])
    elif seen.elsewhere is not None:
        found = seen.elsewhere
        shift = Shift(found.steps, round(found.r, 4), round(found.sigmas, 2), found.points)
    return {
        "loss": seen.loss,
        "points": len(seen.common),
        "first_step": int(seen.common[0]) if len(seen.common) else None,
        "last_step": int(seen.common[-1]) if len(seen.common) else None,
        "equal_points": seen.equal,
        "r": None if seen.same is None else round(seen.same.r, 4),
        "r_sigmas": None if seen.same is None else round(seen.same.sigmas, 2),
        "difference": gaps[len(gaps) // 2] if gaps else None,
        "noise": seen.noise or None,
        "shift": shift,
        "ids": 0 if seen.ids is None else seen.ids.points,
        "same_ids": 0 if seen.ids is None else seen.ids.same,
        "metrics": sorted(seen.compared, key=lambda one: one.equal == one.points)[:MAX_COMPARED],
    }
