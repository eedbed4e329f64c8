"""A curve as Slack's own chart: the data visualization block. Pure.

It takes a line of at most 20 named places, and a finite value at each: a curve with NaN, or one that was left by a
rollback, can't be drawn so, and gets a picture.

Source: https://docs.slack.dev/reference/block-kit/blocks/data-visualization-block (since June 2026)
"""

from __future__ import annotations

import math
from typing import Any

from stabilityalerting.actions import Curve

from .texts import cut, isolated

#: Slack's limits: characters of the title and of a label of an axis, of a category and of a series; categories.
MAX_TITLE = 50
MAX_LABEL = 20
MAX_CATEGORIES = 20
#: Places that we use of them: the labels of more run into each other on a phone.
PLACES = 14
#: Fewer places than this show nothing.
_FEWEST = 4

__all__ = ["MAX_CATEGORIES", "MAX_LABEL", "MAX_TITLE", "PLACES", "chart_of"]


def chart_of(curve: Curve) -> dict[str, Any] | None:
    """Return the block, None for a curve that it can't show truly.

    Each place is the value of its steps that is furthest from the first one: a spike of one step is seen.
    """
    living = [branch for branch in curve.branches if not branch.dead]
    if len(living) != len(curve.branches):
        return None
    points = [(step, value) for branch in living for step, value in zip(branch.steps, branch.values, strict=True)]
    if len(points) < _FEWEST or not all(math.isfinite(value) for _, value in points):
        return None
    size = math.ceil(len(points) / PLACES)
    level = points[0][1]
    chosen = [
        max(points[at : at + size], key=lambda point: abs(point[1] - level)) for at in range(0, len(points), size)
    ]
    # Short: they stand side by side.
    labels = [f"{step - curve.onset_step:+d}" for step, _ in chosen]
    name = isolated(cut(curve.metric, MAX_LABEL - 2)) or "value"
    return {
        "type": "data_visualization",
        "title": isolated(cut(f"{curve.metric}, onset at step {curve.onset_step}", MAX_TITLE - 2)),
        "chart": {
            "type": "line",
            "series": [
                {
                    "name": name,
                    "data": [
                        {"label": label, "value": float(f"{value:.6g}")}
                        for label, (_, value) in zip(labels, chosen, strict=True)
                    ],
                }
            ],
            "axis_config": {
                "categories": labels,
                "x_label": f"steps from the onset at step {curve.onset_step:,}"[:MAX_TITLE],
                "y_label": isolated(cut(curve.metric, 48)),
            },
        },
    }
