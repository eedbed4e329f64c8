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
from stabilityfrontend.app import OUR_PAGES
from stabilityfrontend.declared import collect, functions_of
from stabilityfrontend.parts import ServerParts
from stabilityfrontend.run_page import first_requests

ASSETS = Path(stabilityfrontend.__file__).parent / "assets"
ADDRESSES = {"/": "Runs", "/runs": "Runs", "/runs/a%20b": "Run", "/runs/a/incidents/i": "Incident"}
ADDRESSES |= {
    "/incidents": "Incidents",
    "/interruptions": "Interruptions",
    "/gallery": "Gallery",
    "/alerting": "Alerting",
}
ADDRESSES |= {"/login": "Login", "/compare": "Compare", "/runs/a/b": "Page not found", "/x": "Page not found"}
#: Regions that scripts make themselves.
MADE_BY_SCRIPTS = {
    "rollback-dialog", "detectors-steps", "runs-filter", "all-filter", "login-key", "annotations",
    "annotations-all", "annotations-panel", "about-name", "about-notes", "about-add-tag",
}  # fmt: skip


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
    return [props["id"] for props in nodes(node) if isinstance(props.get("id"), str)]


def script_ids() -> set[str]:
    """Return the ids that the scripts look up by a literal name."""
    found: set[str] = set()
    for script in ASSETS.rglob("*.js"):
        found |= set(re.findall(r'byId\("([^"]+)"\)', script.read_text()))
    return found


DECLARED = collect(functions_of(OUR_PAGES))
TABLE = layout.page_table(DECLARED, ServerParts(DECLARED))
SKELETONS = {entry["name"]: entry["skeleton"] for entry in TABLE}
PAGES = {"frame": layout.layout({}, TABLE)} | SKELETONS


@pytest.mark.parametrize("name", PAGES)
def test_an_id_stands_once_on_a_page(name: str) -> None:
    counts = Counter(ids(PAGES[name]) + (ids(PAGES["frame"]) if name != "frame" else []))
    assert {id_ for id_, count in counts.items() if count > 1} == set()


def test_every_region_that_a_script_looks_up_is_on_some_page() -> None:
    there = {id_ for page in PAGES.values() for id_ in ids(page)}
    assert script_ids() - there - MADE_BY_SCRIPTS == set()


def test_the_table_of_pages_is_plain_json_that_comes_with_the_frame() -> None:
    frame = {props["id"]: props for props in nodes(PAGES["frame"]) if "id" in props}
    assert json.loads(json.dumps(frame["page-table"]["data"])) == TABLE
    assert set(SKELETONS) == {
        "Runs",
        "Login",
        "Run",
        "Compare",
        "Incident",
        "Attempts",
        "Audit",
        "Incidents",
        "Interruptions",
        "Alerting",
        "Gallery",
        "Server",
        "Page not found",
    }


@pytest.mark.parametrize(("address", "page"), ADDRESSES.items())
def test_the_first_pattern_that_fits_an_address_is_its_page(address: str, page: str) -> None:
    assert next(entry["name"] for entry in TABLE if re.fullmatch(entry["pattern"], address)) == page


def test_the_page_asks_early_for_what_the_large_chart_may_show() -> None:
    assert {"loss", "train/loss", "grad_norm"} <= set(first_requests()["fine"])


def test_buttons_that_are_not_for_sending_say_so() -> None:
    for page in PAGES.values():
        for props in nodes(page):
            if props.get("className", "").split(" ")[0] in ("button", "toggle", "icon-button", "fold"):
                assert props["type"] in ("button", "submit"), props
