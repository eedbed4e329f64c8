"""Verdict of a resume: class, a sentence with numbers, grade, and certain faults."""

from __future__ import annotations

import math
from collections.abc import Sequence

from stabilitybackend.judging.resumes.branches import changes_rate, lr_scale
from stabilitybackend.judging.resumes.overlap import ForkMeasures
from stabilitybackend.judging.resumes.parts import RATE_POINTS, mixture_of, off_of, rate_ratios
from stabilitybackend.judging.resumes.reported_parts import Reports, changes_text
from stabilitybackend.judging.resumes.residuals import LEAST_POINTS, SAME_R, Agreement, median_of
from stabilitybackend.schema.resumes import Grade, NotFollowed, PartSeen, ResumeVerdict, SkipCheck

__all__ = ["RATE_IS", "check_skip", "clause_of", "grade_of", "sentence_of", "verdict_of", "wrongs_of"]

#: Correlation at a place named beforehand: by chance one in 30,000.
SAME_SIGMAS = 4.0
#: The best one of some thousand places: noise with the tails of real losses stays below 5 there.
FOUND_SIGMAS = 6.0
#: Losses, and batch ids, before repeated data is reported here: detectors of every step come first, and have reported
#: within so many.
FOUND_POINTS, FOUND_IDS = 96, 8
#: A factor of the rate beyond rounding and warm-up.
RATE_OFF = 10.0
#: Prefix of that clause, a class of its own.
RATE_IS = "the learning rate is"
#: Share of the placed batch ids that has to agree.
MOST = 0.5
#: Ids needed for certainty; one could be an empty batch.
LEAST_IDS = 3


def verdict_of(seen: ForkMeasures | None) -> ResumeVerdict:
    """Return the verdict: by batch ids where reported, else by the loss alone."""
    if seen is None:
        return "not_comparable"
    by_ids = _by_ids(seen)
    if by_ids is not None:
        return "identical" if by_ids == "same_data" and _identical(seen) else by_ids
    if _identical(seen):
        return "identical"
    if seen.inputs and mixture_of(seen).known == "different":
        return "other_data"
    if _same(seen.same, SAME_SIGMAS) or (seen.surely_equal and seen.equal >= 2):
        return "same_data"
    if _same(seen.ordered, SAME_SIGMAS):
        return "skipped"
    found = seen.elsewhere
    if found is not None and found.sigmas >= FOUND_SIGMAS and not seen.plain_epochs:
        return "repeated" if found.steps < 0 else "skipped"
    if seen.same is not None and seen.same.below:
        return "other_data" if mixture_of(seen).known == "different" else "other_order"
    return "same_data" if seen.surely_equal else "not_comparable"


def _identical(seen: ForkMeasures) -> bool:
    return seen.surely_equal and seen.equal == len(seen.common)


def _same(agreed: Agreement | None, sigmas: float) -> bool:
    return agreed is not None and agreed.r >= SAME_R and agreed.sigmas >= sigmas


def _by_ids(seen: ForkMeasures) -> ResumeVerdict | None:
    ids = seen.ids
    if ids is not None and seen.skip is not None:
        first, last = seen.skip
        behind = [was - step for step, was in ids.met.items() if step >= first]
        if len(behind) >= LEAST_IDS and behind.count(last - first + 1) >= MOST * len(behind):
            return "skipped"
    placed = 0 if ids is None else ids.same + ids.elsewhere + ids.missing
    if ids is None or not placed:
        return None
    if ids.same >= MOST * placed:
        return "same_data"
    if ids.shift is not None and ids.shift[1] >= MOST * placed:
        return "repeated" if ids.shift[0] < 0 else "skipped"
    if ids.elsewhere >= MOST * placed:
        return "other_order"
    return "other_data" if ids.missing > LEAST_IDS else None  # a rank may not have reported its part yet


def check_skip(seen: ForkMeasures | None, verdict: ResumeVerdict) -> SkipCheck | None:
    """Return whether the batches to skip were skipped; None for none."""
    if seen is None or seen.skip is None:
        return None
    first, last = seen.skip
    skip = last - first + 1
    if seen.ids is not None:
        fed = {step: was for step, was in seen.ids.met.items() if first <= was <= last}
        if len(fed) >= min(LEAST_IDS, skip):
            step = min(fed)
            why = f"{len(fed)} of them were fed all the same, at step {step} the batch of step {fed[step]}"
            return SkipCheck(skip, "different", why)
        if not fed and seen.ids.missing + seen.ids.elsewhere >= LEAST_IDS:
            return SkipCheck(skip, "equal", f"none of their ids came in {seen.ids.points} steps")
    if _same(seen.ordered, SAME_SIGMAS):
        assert seen.ordered is not None
        why = f"the loss goes with that of the batches after them, r {seen.ordered.r:.2f} over {seen.ordered.points}"
        return SkipCheck(skip, "equal", why)
    if seen.ids is None and verdict in ("identical", "same_data"):
        equal = int((seen.common[: seen.equal] >= first).sum())
        if seen.surely_equal and equal >= LEAST_IDS:
            return SkipCheck(
                skip, "different", f"the losses of {equal} steps from {first} on are bit-equal to the old ones"
            )
        if _same(seen.kept, FOUND_SIGMAS):
            assert seen.kept is not None
            why = f"the loss goes with that of the old branch at the same steps, r {seen.kept.r:.2f}"
            return SkipCheck(skip, "different", f"{why} over {seen.kept.points}")
    found = seen.elsewhere
    if seen.ids is None and verdict == "skipped" and found is not None and found.steps != skip:
        return SkipCheck(skip, "different", f"the batches of {found.steps} steps later came, r {found.r:.2f}")
    return SkipCheck(skip, "not_seen", "the branch that was left holds too little of what came after them, and no ids")


def _count(seen: ForkMeasures) -> int:
    return 0 if seen.skip is None else seen.skip[1] - seen.skip[0] + 1


def wrongs_of(seen: ForkMeasures | None, verdict: ResumeVerdict, denied: Sequence[NotFollowed]) -> list[str]:
    """Return the certain faults besides ``denied`` changes, each as one clause; empty for none."""
    if seen is None:
        return []
    found, wrong = seen.elsewhere, []
    if verdict == "repeated":
        if seen.ids is not None and seen.ids.shift is not None and seen.ids.shift[1] >= FOUND_IDS:
            step, was = seen.ids.first_elsewhere or (0, 0)
            wrong.append(f"step {step} got the batch of step {was} again, and {seen.ids.shift[1]} went the same way")
        elif seen.ids is None and found is not None and found.points >= FOUND_POINTS:
            wrong.append(
                f"the batches of {-found.steps} steps earlier come again (r {found.r:.2f} over {found.points})"
            )
    ratios, scale = rate_ratios(seen), lr_scale(seen.declared)
    excused = changes_rate(seen.declared) or any(one.change == "lr_scale" for one in denied)
    if ratios is not None and len(ratios) >= RATE_POINTS and not excused:
        # Right at first and wrong later means a moved branch, often the discarded one.
        ratio, came = median_of(ratios), median_of(ratios[:RATE_POINTS])
        if _is_off(ratio, seen.rates) and _is_off(came, seen.rates):
            wrong.append(f"{RATE_IS} {ratio / scale:.3g} times what it was to be at {len(ratios)} common steps")
    return wrong


def _is_off(ratio: float, expected: Sequence[float]) -> bool:
    return not any(1 / RATE_OFF < ratio / one < RATE_OFF for one in expected)


def clause_of(one: NotFollowed) -> str:
    """Return the requested and actual change, as a clause."""
    what = {"lr_scale": "the learning rate was to be ", "seed": ""}.get(one.change, "training was to go on ")
    return f"{what}{one.ordered}, and {_came(one)}"


def _came(one: NotFollowed) -> str:
    return f"is {one.observed}" if one.change == "lr_scale" and one.observed[0] == "×" else one.observed


def grade_of(
    seen: ForkMeasures | None, verdict: ResumeVerdict, parts: Sequence[PartSeen], wrongs: Sequence[str]
) -> Grade:
    """Return the grade of a resume."""
    if wrongs:
        return "wrong"
    if seen is not None and verdict == "same_data" and off_of(seen) is not None:
        return "differs"
    # Environment and undrawn random numbers are no state of a checkpoint.
    free = ("environment", "rng") if verdict == "identical" else ("environment",)
    if any(part.known == "different" and not part.ordered and part.part not in free for part in parts):
        return "differs"
    return "unknown" if verdict == "not_comparable" else "good"


def sentence_of(
    seen: ForkMeasures | None,
    verdict: ResumeVerdict,
    skip: SkipCheck | None,
    wrongs: Sequence[str],
    reports: Reports,
) -> str:
    """Return the verdict as text, with its numbers, checked declarations and reports."""
    text, position = _verdict_text(seen, verdict), reports.position
    if reports.changes:
        text += f" The environment is another: {changes_text(reports.changes)}."
    if position is not None and position.went not in ("goes_on", "not_seen"):
        text += f" The loader says: {position.why}."
    if skip is not None and skip.known == "equal":
        text += f" The {skip.batches} batches were skipped: {skip.why}."
    elif skip is not None and skip.known == "not_seen":
        text += f" Whether {skip.batches} batches were skipped is not known: {skip.why}."
    if seen is not None and seen.ids_note:
        text += f" {seen.ids_note}"
    shown = wrongs[1:] if verdict == "repeated" and wrongs else wrongs  # the first one is the verdict
    return text + "".join(f" Wrong: {wrong}." for wrong in shown)


def _verdict_text(seen: ForkMeasures | None, verdict: ResumeVerdict) -> str:
    if seen is None:
        return "Nothing was logged since."
    points, steps = len(seen.common), f"{len(seen.common)} common {'step' if len(seen.common) == 1 else 'steps'}"
    if verdict == "identical":
        return (
            f"The loss is bit-equal at all {steps}: the replay is exact."
            if points > 1
            else (f"The loss at step {int(seen.common[0])} is bit-equal.")
        )
    if verdict == "same_data":
        how = (
            f"{seen.ids.same} of {seen.ids.points} batch ids"
            if seen.ids is not None and seen.ids.same
            else _r(seen.same)
        )
        if points and seen.equal == points:
            return f"The same batches at {steps} ({how}), and the same losses as finely as they are written."
        first = "step" if seen.equal == 1 else f"{seen.equal} steps"
        since = f"bit-equal for the first {first}, then " if seen.surely_equal else ""
        gap = f" They differ by {_typical(seen):.3g}, {_share(seen)} of the batch noise." if points else ""
        why = "by other numerics" if off_of(seen) is None else "others"
        return f"The same batches at {steps} ({how}), the losses {since}{why}.{gap}"
    if verdict in ("repeated", "skipped"):
        ids = seen.ids.shift if seen.ids is not None else None
        found = seen.elsewhere
        far = ids[0] if ids is not None else found.steps if found is not None else _count(seen)
        how = (
            f"{ids[1]} batch ids"
            if ids is not None
            else _r(seen.ordered)
            if found is None
            else (f"r {found.r:.2f}, {found.sigmas:.1f} sigmas, {found.points} points")
        )
        if verdict == "repeated":
            return f"Batches come again: each step gets that of {-far} steps earlier ({how})."
        return f"The batches of {far} steps later came ({how})."
    if verdict == "other_order":
        if seen.ids is not None and seen.ids.elsewhere:
            return f"Known batches in another order: {seen.ids.elsewhere} of {seen.ids.points} ids came at other steps."
        what = "another order, or other data; batch ids would tell which"
        return f"Other batches than before at {steps} ({_r(seen.same)}): {what}."
    if verdict == "other_data":
        if seen.ids is not None and seen.ids.missing:
            return f"Other data: {seen.ids.missing} of {seen.ids.points} batch ids had not come before."
        if seen.inputs:
            return f"Other data at {steps}: {mixture_of(seen).why}."
        return f"Other data at {steps} ({_r(seen.same)}): the mixture is another as well."
    if not points:
        return "Nothing was trained twice, so nothing can be compared."
    if points < LEAST_POINTS:
        return f"Only {steps}, not bit-equal: too few to compare."
    return f"{steps[0].upper()}{steps[1:]}: the noise of the loss is too small or too regular to tell batches by it."


def _r(agreed: Agreement | None) -> str:
    return "too few for a correlation" if agreed is None else f"r {agreed.r:.2f}, {agreed.sigmas:.1f} sigmas"


def _typical(seen: ForkMeasures) -> float:
    gaps = sorted(abs(gap) for gap in seen.gap.tolist() if math.isfinite(gap))
    return gaps[len(gaps) // 2] if gaps else 0.0


def _share(seen: ForkMeasures) -> str:
    return f"{100 * _typical(seen) / seen.noise:.3g} %" if seen.noise > 0 else "an unknown part"
