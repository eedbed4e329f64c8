"""The skeletons have every region that the scripts fill, once."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stabilityfrontend
from stabilityfrontend import layout
from stabilityfrontend.run_page import KPIS, PANELS

ASSETS = Path(stabilityfrontend.__file__).parent / "assets"
#: Regions that scripts make themselves.
MADE_BY_SCRIPTS = {"rollback-dialog", "runs-filter", "all-filter", "login-key"}


def nodes(node: Any) -> Iterator[dict[str, Any]]:
    """Yield the properties of every component, the outermost first."""
    tree = node.to_plotly_json() if hasattr(node, "to_plotly_json") else node
    if isinstance(tree, list | tuple):
        for one in tree:
            yield from nodes(one)
    elif isinstance(tree, dict) and "props" in tree:
        yield tree["props"]
        yield from nodes(tree["props"].get("children"))


def ids(node: Any) -> list[str]:
    """Return the ids in a layout, in order."""
    return [props["id"] for props in nodes(node) if "id" in props]


def script_ids() -> set[str]:
    """Return the ids that the scripts look up by a literal name."""
    found: set[str] = set()
    for script in ASSETS.glob("*.js"):
        found |= set(re.findall(r'byId\("([^"]+)"\)', script.read_text()))
    return found


PAGES = {
    "frame": layout.layout({}),
    "runs": layout.page("/"),
    "run": layout.page("/runs/r-1"),
    "login": layout.page("/login"),
    "missing": layout.page("/nowhere"),
}


@pytest.mark.parametrize("name", PAGES)
def test_an_id_stands_once_on_a_page(name: str) -> None:
    counts = Counter(ids(PAGES[name]) + (ids(PAGES["frame"]) if name != "frame" else []))
    assert {id_ for id_, count in counts.items() if count > 1} == set()


def test_every_region_that_a_script_looks_up_is_on_some_page() -> None:
    there = {id_ for page in PAGES.values() for id_ in ids(page)}
    assert script_ids() - there - MADE_BY_SCRIPTS == set()


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", {"data-page": "runs"}),
        ("", {"data-page": "runs"}),
        ("/runs", {"data-page": "runs"}),
        ("/login", {"data-page": "login"}),
        ("/runs/abc", {"data-run": "abc"}),
        ("/runs/a%20b/", {"data-run": "a b"}),
        ("/runs/a/b", {"data-page": "missing"}),
        ("/somewhere", {"data-page": "missing"}),
    ],
)
def test_an_address_gives_its_page(path: str, expected: dict[str, str]) -> None:
    outermost = next(nodes(layout.page(path)))
    assert {key: value for key, value in outermost.items() if key.startswith("data-")} == expected


def test_a_run_id_reaches_the_page_as_text_only() -> None:
    nasty = "%3Cscript%3Ealert(1)%3C%2Fscript%3E"
    assert next(nodes(layout.page(f"/runs/{nasty}")))["data-run"] == "<script>alert(1)</script>"
    assert not [props for props in nodes(layout.page(f"/runs/{nasty}")) if "dangerouslySetInnerHTML" in props]


def test_every_number_of_the_strip_and_every_panel_has_its_region() -> None:
    there = ids(PAGES["run"])
    assert [id_ for id_ in there if id_.startswith("kpi-")] == [f"kpi-{kpi.id}" for kpi in KPIS]
    assert [id_ for id_ in there if id_.startswith("panel-")] == [f"panel-{panel.id}" for panel in PANELS]
    described = [json.loads(props["data-panel"]) for props in nodes(PAGES["run"]) if "data-panel" in props]
    assert [panel["metrics"] for panel in described] == [list(panel.metrics) for panel in PANELS]


def test_buttons_that_are_not_for_sending_say_so() -> None:
    for page in PAGES.values():
        for props in nodes(page):
            if props.get("className", "").split(" ")[0] in ("button", "toggle", "icon-button", "fold"):
                assert props["type"] in ("button", "submit"), props
