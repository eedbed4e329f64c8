"""The curve around an onset: its characteristic points as text, as Slack's own chart, and as a picture. Pure."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stabilityalerting.actions import Branch, Curve
from stabilityplugins.slack.blocks import cut, isolated, number

if TYPE_CHECKING:
    from PIL import ImageDraw

#: Slack's limits: characters of the title and of a label of an axis, of a category and of a series.
MAX_TITLE = 50
MAX_LABEL = 20
#: Points of a chart: the labels of more overlap on a phone.
POINTS = 14
#: Curves of fewer points have no chart.
_FEWEST_POINTS = 4
#: Size in pixels: twice that in a thread, for fine screens.
WIDTH = 1_200
HEIGHT = 560
#: Margins for labels, pixels: left, top, right, bottom.
_LEFT = 120
_TOP = 84
_RIGHT = 36
_BOTTOM = 92
#: Sizes of letters, pixels.
_TITLE = 26
_LABEL = 21
#: Dark on white.
_INK = "#1a1a1a"
_GREY = "#5f6368"
_GRID = "#e3e5e8"
_LINE = "#1f5fbf"
_DEAD = "#a9adb3"
_BAD = "#c5221f"
#: Labels of forks in a picture.
_MAX_FORKS = 6

__all__ = [
    "HEIGHT", "MAX_LABEL", "MAX_TITLE", "POINTS", "WIDTH", "Picture", "Values", "chart_of",
    "picture_of", "ticks", "values_of",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Values:
    """Points of a curve as (step, value), None for none.

    Args:
        good: newest finite one before the onset.
        peak: finite one since the onset, furthest from ``good``.
        now: newest one on the effective path.
        broken: number of NaN and infinite ones since the onset. first_broken: the first of them.
    """

    good: tuple[int, float] | None = None
    peak: tuple[int, float] | None = None
    now: tuple[int, float] | None = None
    broken: int = 0
    first_broken: tuple[int, float] | None = None

    def text(self) -> str:
        """Return them as one line, "" for none."""
        parts = []
        if self.good is not None:
            parts.append(f"last good {number(self.good[1])} (step {self.good[0]:,})")
        if self.peak is not None:
            parts.append(f"peak {number(self.peak[1])} (step {self.peak[0]:,})")
        if self.first_broken is not None:
            steps = "1 value" if self.broken == 1 else f"{self.broken:,} values"
            parts.append(f"{number(self.first_broken[1])} from step {self.first_broken[0]:,} on ({steps})")
        if self.now is not None:
            parts.append(f"now {number(self.now[1])} (step {self.now[0]:,})")
        return ", ".join(parts)


def values_of(curve: Curve) -> Values:
    """Return the characteristic points of a curve."""
    good: tuple[int, float] | None = None
    for step, value in _points(curve.branches):
        if step < curve.onset_step and math.isfinite(value):
            good = (step, value) if good is None or step >= good[0] else good
    # Of an incident before a rollback, the discarded branch alone.
    left = [
        branch for branch in curve.branches if branch.dead and branch.steps and branch.steps[-1] >= curve.onset_step
    ]
    since = [(step, value) for step, value in _points(left or curve.branches) if step >= curve.onset_step]
    broken = [point for point in since if not math.isfinite(point[1])]
    finite = [point for point in since if math.isfinite(point[1])]
    level = good[1] if good is not None else 0.0
    peak = max(finite, key=lambda point: abs(point[1] - level), default=None)
    return Values(good, peak, curve.now, len(broken), broken[0] if broken else None)


def _points(branches: Sequence[Branch]) -> Iterator[tuple[int, float]]:
    for branch in branches:
        yield from zip(branch.steps, branch.values, strict=True)


def chart_of(curve: Curve) -> dict[str, Any] | None:
    """Return a curve as Slack's data visualization block, None for one with NaN or a discarded branch.

    A line there has at most 20 named points with finite values. Each is the value of its steps that is furthest from
    the first one, so that a spike of one step is visible.

    Source: https://docs.slack.dev/reference/block-kit/blocks/data-visualization-block (since June 2026)
    """
    living = [branch for branch in curve.branches if not branch.dead]
    if len(living) != len(curve.branches):
        return None
    points = [(step, value) for branch in living for step, value in zip(branch.steps, branch.values, strict=True)]
    if len(points) < _FEWEST_POINTS or not all(math.isfinite(value) for _, value in points):
        return None
    size = math.ceil(len(points) / POINTS)
    level = points[0][1]
    chosen = [
        max(points[at : at + size], key=lambda point: abs(point[1] - level)) for at in range(0, len(points), size)
    ]
    # Short: they are side by side.
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


@dataclass(frozen=True, slots=True)
class Picture:
    """A PNG and its alternative text."""

    png: bytes
    text: str


@dataclass(frozen=True, slots=True)
class _Scale:
    """Coordinates of steps and values."""

    steps: tuple[int, int]
    values: tuple[float, float]

    def x(self, step: float) -> float:
        first, last = self.steps
        return _LEFT + (step - first) / (last - first) * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        low, high = self.values
        return HEIGHT - _BOTTOM - (value - low) / (high - low) * (HEIGHT - _TOP - _BOTTOM)


def picture_of(curve: Curve) -> Picture:
    """Return the picture of a curve; one without a finite value has its marks alone. It takes some 30 ms."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (WIDTH, HEIGHT), "white")
    draw = ImageDraw.Draw(image)
    title = ImageFont.load_default(_TITLE)
    label = ImageFont.load_default(_LABEL)
    scale = _scale(curve)
    _axes(draw, scale, label)
    _onset(draw, scale, curve.onset_step, label)
    for branch in sorted(curve.branches, key=lambda one: not one.dead):
        _branch(draw, scale, branch)
    forks = [one for one in curve.branches[1:] if one.label and len(one.steps)]
    for branch in forks[:_MAX_FORKS]:
        draw.text((scale.x(branch.steps[0]) + 6, _TOP + 6), branch.label[:6], fill=_GREY, font=label)
    _marks(draw, scale, curve.branches, label)
    draw.text((_LEFT, 18), _fitting(draw, curve.metric, title, WIDTH - _LEFT - _RIGHT), fill=_INK, font=title)
    written = io.BytesIO()
    image.save(written, "PNG", optimize=True)
    text = values_of(curve).text() or "no values"
    return Picture(written.getvalue(), f"{curve.metric[:200]} around step {curve.onset_step}: {text}"[:900])


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return round numbers within a range, at most ``most`` + 1 of them.

    >>> ticks(0.0, 10.0)
    [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    """
    span = high - low
    size = 10.0 ** math.floor(math.log10(span / most))
    step = next(size * times for times in (1, 2, 5, 10) if span / (size * times) <= most)
    first = math.ceil(low / step - 1e-9)
    return [(first + i) * step for i in range(int((high - first * step) / step + 1e-9) + 1)]


def _scale(curve: Curve) -> _Scale:
    steps = [step for branch in curve.branches for step in branch.steps] or [curve.onset_step]
    finite = [value for branch in curve.branches for value in branch.values if math.isfinite(value)] or [0.0]
    first = min(*steps, curve.onset_step)
    last = max(*steps, curve.onset_step)
    # Values of 1e308 would leave the range of a float when their span is taken.
    low = max(min(finite), -1e300)
    high = min(max(finite), 1e300)
    room = (high - low) * 0.06 or abs(high) * 0.06 or 1.0
    return _Scale((first, max(last, first + 1)), (low - room, high + room))


def _axes(draw: ImageDraw.ImageDraw, scale: _Scale, font: Any) -> None:
    bottom = HEIGHT - _BOTTOM
    right = WIDTH - _RIGHT
    for value in ticks(*scale.values):
        y = scale.y(value)
        draw.line([(_LEFT, y), (right, y)], fill=_GRID, width=2)
        text = number(value if abs(value) > 1e-12 * max(map(abs, scale.values)) else 0.0)
        draw.text((_LEFT - 14, y), text, fill=_INK, font=font, anchor="rm")
    for step in ticks(float(scale.steps[0]), float(scale.steps[1])):
        if step == int(step):
            draw.line([(scale.x(step), bottom), (scale.x(step), bottom + 8)], fill=_INK, width=2)
            draw.text((scale.x(step), bottom + 14), f"{int(step):,}", fill=_INK, font=font, anchor="mt")
    draw.line([(_LEFT, _TOP), (_LEFT, bottom), (right, bottom)], fill=_INK, width=2)
    draw.text(((_LEFT + right) / 2, HEIGHT - 14), "step", fill=_GREY, font=font, anchor="mb")


def _onset(draw: ImageDraw.ImageDraw, scale: _Scale, step: int, font: Any) -> None:
    x = scale.x(step)
    for y in range(_TOP, HEIGHT - _BOTTOM, 16):
        draw.line([(x, y), (x, min(y + 9, HEIGHT - _BOTTOM))], fill=_BAD, width=2)
    left = x > (WIDTH - _RIGHT + _LEFT) / 2
    draw.text((x - 8 if left else x + 8, _TOP - 4), "onset", fill=_BAD, font=font, anchor="rb" if left else "lb")


def _branch(draw: ImageDraw.ImageDraw, scale: _Scale, branch: Branch) -> None:
    """Draw a branch as a line, interrupted by values that are not finite."""
    colour = _DEAD if branch.dead else _LINE
    for run in _finite_runs(branch):
        points = [(scale.x(step), scale.y(max(-1e300, min(1e300, value)))) for step, value in run]
        if len(points) > 1:
            draw.line(points, fill=colour, width=4, joint="curve")
        if len(points) == 1 or len(run) <= 40:
            for x, y in points:
                draw.ellipse([x - 4, y - 4, x + 4, y + 4], fill=colour)


def _marks(draw: ImageDraw.ImageDraw, scale: _Scale, branches: Sequence[Branch], font: Any) -> None:
    """Mark NaN and infinite values at the lower edge."""
    bad = [(s, v) for one in branches for s, v in zip(one.steps, one.values, strict=True) if not math.isfinite(v)]
    y = HEIGHT - _BOTTOM - 14
    for x in sorted({round(scale.x(step)) for step, _ in bad}):
        draw.line([(x - 6, y - 6), (x + 6, y + 6)], fill=_BAD, width=3)
        draw.line([(x - 6, y + 6), (x + 6, y - 6)], fill=_BAD, width=3)
    if bad:
        names = " / ".join(dict.fromkeys(number(value) for _, value in bad))
        right = WIDTH - _RIGHT
        draw.text((right, 24), f"x  {names}: {len(bad):,} values", fill=_BAD, font=font, anchor="rt")


def _finite_runs(branch: Branch) -> Iterator[list[tuple[int, float]]]:
    run: list[tuple[int, float]] = []
    for step, value in zip(branch.steps, branch.values, strict=True):
        if math.isfinite(value):
            run.append((step, value))
        elif run:
            yield run
            run = []
    if run:
        yield run


def _fitting(draw: ImageDraw.ImageDraw, text: str, font: Any, width: float) -> str:
    """Return a name cut to a width; letters missing in the font are shown as boxes."""
    text = "".join(char for char in text[:200] if char.isprintable())
    while len(text) > 1 and draw.textlength(text, font=font) > width * 0.6:
        text = text[: max(1, int(len(text) * 0.9))].rstrip("…") + "…"
        if len(text) <= 4:
            break
    return text
