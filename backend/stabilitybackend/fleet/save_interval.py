"""What saving checkpoints costs a job, and how often it would best save, from the times between interruptions. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise
from statistics import median

from stabilitybackend.schema.fleet import InterruptionNumbers
from stabilitybackend.schema.rollback_cost import SaveInterval

__all__ = ["OWN_INTERRUPTIONS", "best_interval_s", "save_interval"]

#: A run with fewer interruptions is judged by those of all runs: of three, the interval is still off by a third.
OWN_INTERRUPTIONS = 3
#: Newest saves that count.
NEWEST = 64


def best_interval_s(save_s: float, mtbi_s: float) -> float:
    """Return the seconds between two saves at which saving and training again what was lost cost least together.

    The first-order optimum, sqrt(2 x save time x mean time between interruptions): J. W. Young, "A first order
    approximation to the optimum checkpoint interval", CACM 17(9), 1974; where a save takes half of that mean time or
    more, the mean time itself (J. T. Daly, Future Generation Computer Systems 22(3), 2006).

    Example:
        >>> round(best_interval_s(12, 6 * 3600))
        720
    """
    return math.sqrt(2 * save_s * mtbi_s) if save_s < mtbi_s / 2 else mtbi_s


def save_interval(
    saves: Iterable[tuple[int, int, float, float | None]],
    own: InterruptionNumbers,
    everybodys: InterruptionNumbers,
    ranks: int,
) -> SaveInterval | None:
    """Return what the saves of a run cost, None before the second one of a segment.

    Args:
        saves: (segment, step, unix seconds, seconds that it took or None) of each announced checkpoint, oldest first.
        own, everybodys: interruptions of this run, and of all that the reader may see.
        ranks: of the job; of a job with twice as many, others' interruptions come twice as often.
    """
    steps: dict[tuple[int, int], tuple[float, float | None]] = {}
    for segment, step, time, took_s in saves:
        first, known = steps.get((segment, step), (time, None))
        together = None if known is None and took_s is None else (known or 0.0) + (took_s or 0.0)
        steps[segment, step] = (first, together)  # one step may be saved twice, as ``last`` too
    newest = list(steps.items())[-NEWEST - 1 :]
    gaps = [
        after[1][0] - before[1][0]
        for before, after in pairwise(newest)
        if before[0][0] == after[0][0] and after[1][0] > before[1][0]
    ]
    if not gaps:
        return None
    interval_s = median(gaps)
    taken = [took_s for _, (_, took_s) in newest if took_s is not None]
    save_s = median(taken) if taken else None
    if own.count >= OWN_INTERRUPTIONS:
        of, count, mtbi_s = "run", own.count, own.mtbi_s
    else:
        of, count = "all", everybodys.count
        mtbi_s = everybodys.rank_s / count / max(1, ranks) if count else None
    best_s = best_interval_s(save_s, mtbi_s) if save_s and mtbi_s else None

    def cost(every_s: float | None) -> float | None:
        if every_s is None or save_s is None or not mtbi_s:
            return None
        return save_s / every_s + every_s / (2 * mtbi_s)

    return SaveInterval(
        saves=len(taken),
        interval_s=interval_s,
        save_s=save_s,
        share=None if save_s is None else save_s / interval_s,
        mtbi_s=mtbi_s,
        interruptions=count,
        interruptions_of="run" if of == "run" else "all",
        best_s=best_s,
        cost=cost(interval_s),
        best_cost=cost(best_s),
    )
