"""Both themes can be read, and have the same names."""

from __future__ import annotations

import json

import pytest

from stabilityfrontend.figures import LIMITS, browser_config
from stabilityfrontend.theme import THEMES, css_variables

#: WCAG 2.2 level AA for text of normal size.
READABLE = 4.5
#: The same for lines and marks.
VISIBLE = 3.0
SURFACES = ("bg", "panel", "raised", "sunken")


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two ``#rrggbb`` colours, 1 to 21 (WCAG 2.2, relative luminance)."""
    bright, dim = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def _luminance(colour: str) -> float:
    channels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("surface", SURFACES)
@pytest.mark.parametrize("ink", ["text", "soft", "muted"])
def test_text_is_readable_on_every_surface(theme: str, surface: str, ink: str) -> None:
    colors = THEMES[theme]
    assert contrast(str(colors[ink]), str(colors[surface])) >= READABLE


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("tone", ["critical", "warning", "good", "info"])
def test_words_of_a_tone_are_readable_on_its_own_ground_and_on_panels(theme: str, tone: str) -> None:
    colors = THEMES[theme]
    assert contrast(str(colors[tone]), str(colors[f"{tone}-soft"])) >= READABLE
    assert contrast(str(colors[tone]), str(colors["panel"])) >= READABLE


@pytest.mark.parametrize("theme", THEMES)
def test_every_line_stands_out_from_its_panel(theme: str) -> None:
    colors = THEMES[theme]
    for color in colors["series"]:
        assert contrast(color, str(colors["panel"])) >= VISIBLE, color


def test_both_themes_have_the_same_names_and_as_many_lines() -> None:
    dark, light = THEMES["dark"], THEMES["light"]
    assert list(dark) == list(light)
    assert len(dark["series"]) == len(light["series"]) == LIMITS["lines"]


def test_every_colour_of_both_themes_is_a_css_variable() -> None:
    sheet = css_variables()
    for theme, table in THEMES.items():
        rule = next(line for line in sheet.splitlines() if f'data-theme="{theme}"' in line)
        for name, value in table.items():
            assert not isinstance(value, str) or f"--{name}: {value};" in rule


def test_contrast_is_that_of_the_standard() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.478, abs=0.001)


def test_what_the_browser_gets_is_plain_json_and_names_no_other_host() -> None:
    text = json.dumps(browser_config("1.2.3"))
    assert "http" not in text
    assert json.loads(text)["themes"].keys() == THEMES.keys()
