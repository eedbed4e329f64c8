"""Three small models of one point, in NumPy: logistic regression, one hidden layer, boosted trees. All are seeded.

Each is a function ``fit(inputs, targets, weights) -> Model``; a model gives a figure that is larger the likelier an
alarm is right there, and knows of how many numbers it consists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

__all__ = ["MODELS", "Model"]

#: One hidden layer: units, passes over the data, rows a step, rate of Adam.
UNITS, PASSES, ROWS, RATE = 16, 12, 512, 0.01
#: Boosted trees: how many, splits from root to leaf, bins of an input, rate, weight that a leaf is shrunk by; of points
#: without an event they are fitted to each so many.
TREES, DEPTH, BINS, SHRINK, RIDGE, EVERY = 60, 3, 32, 0.2, 20.0, 5


@dataclass(frozen=True)
class Model:
    """A fitted model.

    Args:
        score: (points, inputs) -> (points,) log odds. numbers: how many it consists of.
    """

    score: Callable[[np.ndarray], np.ndarray]
    numbers: int


def logistic(inputs: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> Model:
    """Fit by iterated least squares (Newton), with a ridge of 1."""
    mean, scale = inputs.mean(0), inputs.std(0) + 1e-9
    design = np.concatenate([(inputs - mean) / scale, np.ones((len(inputs), 1))], axis=1)
    beta = np.zeros(design.shape[1])
    for _ in range(12):
        odds = _sigmoid(design @ beta)
        curve = weights * odds * (1 - odds)
        gradient = design.T @ (weights * (targets - odds)) - beta
        beta += np.linalg.solve((design * curve[:, None]).T @ design + np.eye(len(beta)), gradient)
    return Model(lambda rows: (rows - mean) / scale @ beta[:-1] + beta[-1], beta.size)


def hidden_layer(inputs: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> Model:
    """Fit one hidden layer of tanh by Adam."""
    dice = np.random.default_rng(0)
    mean, scale = inputs.mean(0), inputs.std(0) + 1e-9
    scaled = ((inputs - mean) / scale).astype(np.float32)
    shapes = [(inputs.shape[1], UNITS), (UNITS,), (UNITS,), (1,)]
    parts = [dice.normal(0, 0.3, shape) for shape in shapes]
    first, second = [np.zeros_like(p) for p in parts], [np.zeros_like(p) for p in parts]
    time = 0
    for _ in range(PASSES):
        order = dice.permutation(len(scaled))
        for start in range(0, len(order), ROWS):
            rows = order[start : start + ROWS]
            x, time = scaled[rows], time + 1
            hidden = np.tanh(x @ parts[0] + parts[1])
            error = weights[rows] * (_sigmoid(hidden @ parts[2] + parts[3]) - targets[rows]) / len(rows)
            back = error[:, None] * parts[2] * (1 - hidden**2)
            slopes = [x.T @ back, back.sum(0), hidden.T @ error, error.sum(keepdims=True)]
            for part, slope, m, v in zip(parts, slopes, first, second, strict=True):
                m += 0.1 * (slope - m)
                v += 0.001 * (slope**2 - v)
                part -= RATE * (m / (1 - 0.9**time)) / (np.sqrt(v / (1 - 0.999**time)) + 1e-8)
    return Model(
        lambda rows: np.tanh((rows - mean) / scale @ parts[0] + parts[1]) @ parts[2] + parts[3],
        sum(part.size for part in parts),
    )


def boosted_trees(inputs: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> Model:
    """Fit trees to the slopes of the log loss, one after the other, by histograms (Friedman 2001, Chen 2016)."""
    kept = np.flatnonzero((targets == 1) | (np.arange(len(targets)) % EVERY == 0))
    weights = np.where(targets == 1, weights, weights * EVERY)
    inputs, targets, weights = inputs[kept], targets[kept], weights[kept]
    edges = [np.unique(np.quantile(column, np.linspace(0, 1, BINS + 1)[1:-1])) for column in inputs.T]
    binned = np.stack([np.searchsorted(e, c, side="right") for e, c in zip(edges, inputs.T, strict=True)], axis=1)
    odds, trees = np.zeros(len(inputs)), []
    for _ in range(TREES):
        chance = _sigmoid(odds)
        slope, curve = weights * (targets - chance), weights * chance * (1 - chance)
        leaf, splits = np.zeros(len(inputs), dtype=int), []
        for depth in range(DEPTH):
            level = [_split(binned, slope, curve, leaf, node, 2**depth) for node in range(2**depth)]
            column, place = np.array([c for c, _ in level]), np.array([p for _, p in level])
            leaf = 2 * leaf + (binned[np.arange(len(leaf)), column[leaf]] > place[leaf])
            splits.append((column, np.array([edges[c][p] if p < len(edges[c]) else np.inf for c, p in level])))
        values = np.bincount(leaf, slope, 2**DEPTH) / (np.bincount(leaf, curve, 2**DEPTH) + RIDGE)
        odds += SHRINK * values[leaf]
        trees.append((splits, SHRINK * values))

    def score(rows: np.ndarray) -> np.ndarray:
        total = np.zeros(len(rows))
        for splits, values in trees:
            leaf = np.zeros(len(rows), dtype=int)
            for column, edge in splits:
                leaf = 2 * leaf + (rows[np.arange(len(rows)), column[leaf]] >= edge[leaf])
            total += values[leaf]
        return total

    return Model(score, TREES * (2 * (2**DEPTH - 1) + 2**DEPTH))


def _split(
    binned: np.ndarray, slope: np.ndarray, curve: np.ndarray, leaf: np.ndarray, node: int, nodes: int
) -> tuple[int, int]:
    """Return (input, bin) of the best split of a node; rows up to this bin go left."""
    inside = np.ones(len(leaf), dtype=bool) if nodes == 1 else leaf == node
    best, found = 0.0, (0, BINS)
    s, c = slope[inside], curve[inside]
    for column in range(binned.shape[1]):
        bins = binned[inside, column]
        left_s, left_c = np.cumsum(np.bincount(bins, s, BINS)), np.cumsum(np.bincount(bins, c, BINS))
        right_s, right_c = left_s[-1] - left_s, left_c[-1] - left_c
        gain = left_s**2 / (left_c + RIDGE) + right_s**2 / (right_c + RIDGE) - left_s[-1] ** 2 / (left_c[-1] + RIDGE)
        place = int(np.argmax(gain[:-1]))
        if gain[place] > best:
            best, found = float(gain[place]), (column, place)
    return found


def _sigmoid(odds: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip(odds, -30, 30)))


#: Name -> how it is fitted.
MODELS: Mapping[str, Callable[[np.ndarray, np.ndarray, np.ndarray], Model]] = {
    "logistic regression": logistic,
    "one hidden layer": hidden_layer,
    "boosted trees": boosted_trees,
}
