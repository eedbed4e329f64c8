"""A curve around an onset as a PNG: dark on white, readable on a phone. Takes some 30 ms: call it in a thread."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stabilityalerting.actions import Branch, Curve

from .texts import number
from .values import values_of

if TYPE_CHECKING:
    from PIL import ImageDraw

#: Size in pixels: twice what Slack shows in a thread, for fine screens.
WIDTH, HEIGHT = 1_200, 560
#: Room for labels, pixels: left, top, right, bottom.
_LEFT, _TOP, _RIGHT, _BOTTOM = 120, 84, 36, 92
#: Sizes of letters, pixels.
_TITLE, _LABEL = 26, 21
_INK, _GREY, _GRID, _LINE, _DEAD, _BAD = "#1a1a1a", "#5f6368", "#e3e5e8", "#1f5fbf", "#a9adb3", "#c5221f"
#: Most names of forks that are written.
_MAX_FORKS = 6

__all__ = ["HEIGHT", "WIDTH", "Picture", "picture_of", "ticks"]


@dataclass(frozen=True, slots=True)
class Picture:
    """A PNG, and the same in words for those who can't see it."""

    png: bytes
    words: str


@dataclass(frozen=True, slots=True)
class _Scale:
    """Where a step and a value lie."""

    steps: tuple[int, int]
    values: tuple[float, float]

    def x(self, step: float) -> float:
        first, last = self.steps
        return _LEFT + (step - first) / (last - first) * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        low, high = self.values
        return HEIGHT - _BOTTOM - (value - low) / (high - low) * (HEIGHT - _TOP - _BOTTOM)


def picture_of(curve: Curve) -> Picture:
    """Return the picture of a curve; one without a finite value has its marks and says so."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (WIDTH, HEIGHT), "white")
    draw = ImageDraw.Draw(image)
    title, label = ImageFont.load_default(_TITLE), ImageFont.load_default(_LABEL)
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
    words = values_of(curve).words() or "no values"
    return Picture(written.getvalue(), f"{curve.metric[:200]} around step {curve.onset_step}: {words}"[:900])


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
    first, last = min(*steps, curve.onset_step), max(*steps, curve.onset_step)
    # Values of 1e308 would leave the range of a float when their span is taken.
    low, high = max(min(finite), -1e300), min(max(finite), 1e300)
    room = (high - low) * 0.06 or abs(high) * 0.06 or 1.0
    return _Scale((first, max(last, first + 1)), (low - room, high + room))


def _axes(draw: ImageDraw.ImageDraw, scale: _Scale, font: Any) -> None:
    bottom, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT
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
    """Draw one line; it is cut where a value is missing. Another branch is another line."""
    colour = _DEAD if branch.dead else _LINE
    for run in _finite_runs(branch):
        points = [(scale.x(step), scale.y(max(-1e300, min(1e300, value)))) for step, value in run]
        if len(points) > 1:
            draw.line(points, fill=colour, width=4, joint="curve")
        if len(points) == 1 or len(run) <= 40:
            for x, y in points:
                draw.ellipse([x - 4, y - 4, x + 4, y + 4], fill=colour)


def _marks(draw: ImageDraw.ImageDraw, scale: _Scale, branches: Sequence[Branch], font: Any) -> None:
    """Mark what is NaN or infinite at the lower edge, where its step is."""
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
    """Return a name as far as it has room; letters that the font lacks are shown as boxes."""
    text = "".join(char for char in text[:200] if char.isprintable())
    while len(text) > 1 and draw.textlength(text, font=font) > width * 0.6:
        text = text[: max(1, int(len(text) * 0.9))].rstrip("…") + "…"
        if len(text) <= 4:
            break
    return text
