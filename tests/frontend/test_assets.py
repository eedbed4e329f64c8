"""What the pages ship: ours, small, safe with texts from anywhere, and content without any other host."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

import stabilityfrontend
from stabilitybackend.schema.ranks import RankStatus
from stabilityfrontend.theme import FONT_FILES, THEMES

ASSETS = Path(stabilityfrontend.__file__).parent / "assets"
FONTS = ASSETS / "fonts"
FILES = sorted(path for path in ASSETS.rglob("*") if path.is_file() and path.parent != FONTS)
SCRIPTS = [path for path in FILES if path.suffix == ".js"]
STYLES = [path for path in FILES if path.suffix == ".css"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_is_a_script_or_a_style_sheet(path: Path) -> None:
    assert path.suffix in (".js", ".css")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_nothing_is_fetched_from_another_host(path: Path) -> None:
    # The name of the SVG vocabulary is written like an address and never fetched.
    text = path.read_text().replace("http://www.w3.org/2000/svg", "")
    assert re.findall(r"(?:https?:)?//[\w-]+\.[\w.-]+/?", text) == []
    assert "@import" not in text


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_text_never_becomes_markup(path: Path) -> None:
    text = path.read_text()
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert way not in text, way


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_module_says_what_it_is_for_and_leaves_no_global(path: Path) -> None:
    text = path.read_text()
    assert text.startswith("// ")
    # Dash calls what stands in `dash_clientside`, its tables what draws a cell, its figures the address of plotly.js.
    known = {"dash_clientside", "dashAgGridComponentFunctions", "_dashPlotlyJSURL"}
    assert set(re.findall(r"window\.(\w+)(?:\.\w+)* = ", text)) <= known


@pytest.mark.parametrize("path", STYLES, ids=lambda path: path.name)
def test_a_style_sheet_takes_its_colours_from_the_theme(path: Path) -> None:
    text = re.sub(r'url\("data:[^"]*"\)', "", path.read_text())
    # White and a very dark red are the ink of the red button in either theme.
    assert set(re.findall(r"#[0-9a-fA-F]{3,8}\b(?=[;\s}])", text)) <= {"#fff", "#1d0509"}


def test_every_status_of_a_rank_has_its_colour() -> None:
    assert [status for status in get_args(RankStatus) if f"rank-{status}" not in THEMES["dark"]] == []


def test_one_font_is_shipped_with_its_licence_and_nothing_else_beside_it() -> None:
    assert {path.name for path in FONTS.iterdir()} == {*FONT_FILES, "OFL.txt"}
    assert "SIL OPEN FONT LICENSE Version 1.1" in (FONTS / "OFL.txt").read_text()
    assert [name for name in FONT_FILES if (FONTS / name).read_bytes()[:4] != b"wOF2"] == []
