"""Which batches the resumed leg was fed: the right ones, those of other steps, or none that the straight leg had.

Batches are compared as sets of samples over all ranks, so another number of ranks or another order within a batch is
no difference.
"""

from __future__ import annotations

from collections import Counter

from stabilityplugins.drill.comparisons import Check, Legs
from stabilityplugins.drill.trace import LegTrace

__all__ = ["batches", "check_data"]

#: Share of the samples of the resumed leg that are in the right stretch: then it is the same data in another order.
_SAME_STRETCH = 0.9


def batches(trace: LegTrace) -> list[tuple[int, ...]]:
    """Return the samples of each round over all ranks, as sorted checksums; empty where the probe saw none."""
    ranks = list(trace.ranks.values())
    rounds = min((len(one.rounds) for one in ranks), default=0)
    return [tuple(sorted(row for one in ranks for row in one.rounds[at].rows)) for at in range(rounds)]


def check_data(legs: Legs) -> Check:
    """Return whether the loader resumed in place; batch by batch, and sample by sample without reported batches."""
    straight, resumed = batches(legs.straight), batches(legs.resumed)
    if not any(straight) or not any(resumed):
        return _reported(legs)
    if any(one != other for one, other in zip(straight, batches(legs.again), strict=False)):
        return Check("data", None, "two straight starts are fed other batches: not seeded")
    begin = legs.at.resumed
    right = straight[begin : begin + len(resumed)]
    wrong = next((at for at, (one, other) in enumerate(zip(resumed, right, strict=False)) if one != other), None)
    if wrong is None:
        return Check("data", True if right else None, "" if right else "not seen")
    step = legs.step(wrong)
    if len(resumed[wrong]) != len(right[wrong]):
        return Check(
            "data", False, f"the batch of step {step} has {len(resumed[wrong])} samples in place of {len(right[wrong])}"
        )
    again = Counter(row for batch in resumed for row in batch) & Counter(row for one in straight[:begin] for row in one)
    seen, total = sum(again.values()), sum(len(batch) for batch in resumed)
    cost = f"; {seen} of {total} samples were seen before the stop" if seen else ""
    if resumed[wrong] in straight:
        found = straight.index(resumed[wrong])
        moved = found - begin - wrong
        first = legs.step(found - begin)
        follows = "step counter" if moved == legs.at.step_error else ""
        what = "the loader begins again: " if found == 0 and wrong == 0 else ""
        return Check("data", False, f"{what}step {step} is fed the batch of step {first}{cost}", follows)
    both = Counter(row for batch in resumed for row in batch) & Counter(row for batch in right for row in batch)
    if sum(both.values()) >= _SAME_STRETCH * total:
        return Check("data", False, f"the right samples in another order from step {step} on")
    return Check("data", False, f"other samples from step {step} on{cost}")


def _reported(legs: Legs) -> Check:
    """The same by the job's own reports of its batches (``run.batch``)."""
    straight, resumed = legs.straight.batches, legs.resumed.batches
    error = legs.at.step_error or 0
    both = [(rank, step) for rank, step in sorted(resumed, key=lambda key: key[1]) if (rank, step - error) in straight]
    if not both:
        return Check("data", None, "not seen: no module was called with the batch, and the job reports none")
    wrong = [(rank, step) for rank, step in both if resumed[rank, step] != straight[rank, step - error]]
    if not wrong:
        return Check("data", True)
    rank, step = wrong[0]
    fed = sorted(other for (who, other), text in straight.items() if who == rank and text == resumed[rank, step])
    instead = f"that of step {fed[0]}" if fed else "one that the straight run never had"
    return Check("data", False, f"step {step - error} is fed another batch: {instead}")
