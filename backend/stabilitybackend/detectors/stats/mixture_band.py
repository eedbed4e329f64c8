"""How far realised shares may lie from the declared ones by chance: binomial bands with the run's own sample size.

Data come in documents, packed rows and shards: the share of a data set in a row varies more (or, drawn in strata, less)
than if each token were drawn by itself. The effective sample size is that of independent draws which would vary as the
run's own blocks do (design effect, Kish 1965). A share x of n draws at p lies outside the band where n KL(x || p) is
above a limit (Chernoff's bound on the binomial's tail, which also holds for rare sets).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

__all__ = ["band", "excess", "limit", "sample_size"]

#: Blocks that are joined to see how much longer stretches vary: where documents or shards span blocks it is more.
JOINED = (1, 2, 4, 8, 16)
#: Differences of neighbouring blocks from which a spread is measured at all.
MIN_DIFFERENCES = 8
#: Most independent draws that a block counts as: a strict sampler's rounding alone varies by this little.
MOST_DRAWS = 1e9
#: Steps by which the edges of a band are found: halves an interval of 1 to 1e-12.
HALVINGS = 40


def sample_size(shares: Sequence[float], declared: float) -> tuple[float, int]:
    """Return the effective sample size of one block, and how many differences it rests on (0: unknown).

    Args:
        shares: of a data set in the newest blocks of equal length, oldest first.
        declared: its declared share, 0 to 1.
    """
    shares, spread, known = list(shares), 0.0, 0
    for joined in JOINED:
        means = [sum(shares[i : i + joined]) / joined for i in range(0, len(shares) - joined + 1, joined)]
        steps = [after - before for before, after in pairwise(means)]
        if len(steps) < MIN_DIFFERENCES:
            break
        # Differences of neighbours: a level that moved long ago, or is not the declared one, is no noise.
        varies = joined * sum(step * step for step in steps) / (2 * len(steps))
        if varies >= spread:
            spread, known = varies, len(steps)
    if not known:
        return 0.0, 0
    level = min(max(declared, 1e-6), 1 - 1e-6)
    return min(MOST_DRAWS, level * (1 - level) / max(spread, 1e-18)), known


def excess(draws: float, share: float, declared: float) -> float:
    """Return n KL(x || p): how far a share of so many draws is from the declared one, in nats."""
    if share == declared:
        return 0.0
    found = 0.0
    for x, p in ((share, declared), (1 - share, 1 - declared)):
        if x > 0:
            found += x * math.log(x / p) if p > 0 else math.inf
    return draws * max(0.0, found)


def limit(nats: float, differences: int) -> float:
    """Return the excess that chance goes beyond as rarely as ``exp(-nats)``, with a spread of so many differences.

    Student's t in place of the normal: neighbouring differences hold two thirds of their number (von Neumann 1941).
    """
    freedom = max(1.0, 2 * differences / 3)
    return 0.5 * freedom * math.expm1(min(2 * nats / (freedom + 1), 50.0))


def band(draws: float, declared: float, most: float) -> tuple[float, float]:
    """Return the lowest and the highest share whose excess is at most ``most``."""
    if draws <= 0:
        return 0.0, 1.0
    edges = []
    for end in (0.0, 1.0):
        inside, outside = declared, end
        if excess(draws, end, declared) <= most:
            edges.append(end)
            continue
        for _ in range(HALVINGS):
            middle = 0.5 * (inside + outside)
            if excess(draws, middle, declared) <= most:
                inside = middle
            else:
                outside = middle
        edges.append(inside)
    return edges[0], edges[1]
