"""Who sees no green (one man in twenty has trouble with it) tells the tones apart, and the lines from their ground.

Simulated with the matrix of Viénot, Brettel and Mollon 1999 ("Digital video colourmaps for checking the legibility of
displays by dichromats", deuteranopia), in linear RGB: red and green become one channel, blue stays nearly as it is.
Colour alone never carries a meaning all the same: each tone has its shape.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

import stabilityfrontend
from stabilityfrontend.theme import THEMES

#: Rows of the matrix, linear RGB to linear RGB.
_MATRIX = ((0.29275, 0.70725, 0.0), (0.29275, 0.70725, 0.0), (-0.02234, 0.02234, 1.0))
#: Distance in CIE L*a*b* (1976) that is seen at a glance between two patches. Just noticeable are 2.3 (Mahy 1994).
APART = 10.0
#: WCAG 2.2, 1.4.11: graphics against their ground.
VISIBLE = 3.0
TONES = ("critical", "warning", "good", "info")
ASSETS = Path(stabilityfrontend.__file__).parent / "assets"


def linear(colour: str) -> list[float]:
    channels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    return [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]


def seen(colour: str) -> list[float]:
    """Return what a colour looks like without green cones, linear RGB from 0 to 1."""
    given = linear(colour)
    return [min(1.0, max(0.0, sum(m * v for m, v in zip(row, given, strict=True)))) for row in _MATRIX]


def lab(rgb: list[float]) -> tuple[float, float, float]:
    """Return CIE L*a*b* of linear RGB, white D65."""
    red, green, blue = rgb
    xyz = (
        (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.95047,
        0.2126 * red + 0.7152 * green + 0.0722 * blue,
        (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.08883,
    )
    x, y, z = (value ** (1 / 3) if value > 0.008856 else 7.787 * value + 16 / 116 for value in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def apart(one: str, other: str) -> float:
    pairs = zip(lab(seen(one)), lab(seen(other)), strict=True)
    return float(sum((a - b) ** 2 for a, b in pairs) ** 0.5)


def contrast(one: str, other: str) -> float:
    weights = (0.2126, 0.7152, 0.0722)
    light = [sum(weight * value for weight, value in zip(weights, seen(color), strict=True)) for color in (one, other)]
    dim, bright = sorted(light)
    return (bright + 0.05) / (dim + 0.05)


def test_the_simulation_leaves_grey_grey_and_makes_red_and_green_of_one_hue() -> None:
    assert seen("#808080") == pytest.approx(linear("#808080"), abs=1e-3)
    red, green = lab(seen("#ff0000")), lab(seen("#00ff00"))
    assert red[1] * green[1] > 0
    assert red[2] * green[2] > 0


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(TONES, 2)), ids="-".join)
def test_two_tones_are_told_apart_without_green(theme: str, one: str, other: str) -> None:
    colors = THEMES[theme]
    assert apart(str(colors[one]), str(colors[other])) >= APART


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("tone", TONES)
def test_a_tone_is_visible_on_every_surface_without_green(theme: str, tone: str) -> None:
    colors = THEMES[theme]
    for surface in ("bg", "panel", "raised", f"{tone}-soft"):
        assert contrast(str(colors[tone]), str(colors[surface])) >= VISIBLE, surface


@pytest.mark.parametrize("theme", THEMES)
def test_all_lines_of_a_chart_are_visible_and_differ_without_green(theme: str) -> None:
    colors = THEMES[theme]
    series = list(colors["series"])
    assert [color for color in series if contrast(color, str(colors["panel"])) < VISIBLE] == []
    assert {pair for pair in itertools.combinations(series, 2) if apart(*pair) < APART} == set()


@pytest.mark.parametrize("shape", ["octagon", "triangle", "disc", "ring", "tick"])
def test_the_mark_of_each_tone_has_a_shape_of_its_own(shape: str) -> None:
    rules = (ASSETS / "styles" / "wall.css").read_text().splitlines()
    own = [line.split("{")[1] for line in rules if f".shape-{shape} {{" in line]
    others = [line.split("{")[1] for line in rules if ".wall-mark.shape-" in line and f".shape-{shape} {{" not in line]
    assert len(own) == 1
    assert own[0] not in others
