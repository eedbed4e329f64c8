"""Every page has one maker: a browser module, or the server; no element has its id in both languages."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stabilityfrontend
from stabilityfrontend import layout
from stabilityfrontend.app import OUR_PAGES
from stabilityfrontend.declared import LIVE_PAGES, collect, functions_of
from stabilityfrontend.figures import first_requests
from stabilityfrontend.parts import ServerParts

PACKAGE = Path(stabilityfrontend.__file__).parent
ADDRESSES = {"/": "Runs", "/runs": "Runs", "/runs/a%20b": "Run", "/runs/a/incidents/i": "Incident"}
ADDRESSES |= {
    "/incidents": "Incidents",
    "/interruptions": "Interruptions",
    "/gallery": "Gallery",
    "/alerting": "Alerting",
}
ADDRESSES |= {"/login": "Login", "/compare": "Compare", "/runs/a/b": "Page not found", "/x": "Page not found"}
#: The frame around all pages is Dash's.
OF_THE_FRAME = {"page", "toasts"}


def nodes(node: Any) -> Iterator[dict[str, Any]]:
    """Yield the properties of every component, the outermost first."""
    tree = node.to_plotly_json() if hasattr(node, "to_plotly_json") else node
    if isinstance(tree, list | tuple):
        for one in tree:
            yield from nodes(one)
    elif isinstance(tree, dict) and "props" in tree:
        yield tree["props"]
        yield from nodes(tree["props"].get("children"))


def found_in(pattern: str, suffix: str) -> set[str]:
    """Return the matches of a pattern in all files of a language."""
    return {one for path in PACKAGE.rglob(f"*{suffix}") for one in re.findall(pattern, path.read_text())}


DECLARED = collect(functions_of(OUR_PAGES), LIVE_PAGES)
TABLE = layout.page_table(DECLARED, ServerParts(DECLARED))
SCRIPT_IDS = found_in(r'byId\("([^"]+)"\)', ".js")


def test_no_script_looks_up_an_id_that_the_server_writes() -> None:
    assert SCRIPT_IDS & found_in(r'\bid(?:=|": )"([^"]+)"', ".py") == OF_THE_FRAME & SCRIPT_IDS


def test_every_id_that_a_script_looks_up_is_made_by_a_script() -> None:
    texts = [re.sub(r'byId\("[^"]+"\)', "", path.read_text()) for path in PACKAGE.rglob("*.js")]
    literal = {one for text in texts for one in re.findall(r'"([a-z][a-z-]*)"', text)}
    made = {one for text in texts for one in re.findall(r"\bid: `([^`]+)`", text)}
    patterns = [re.sub(r"\$\{\w+\}", "[a-z-]+", one) for one in made if re.fullmatch(r"([\w-]|\$\{\w+\})+", one)]
    assert {
        one for one in SCRIPT_IDS - literal - OF_THE_FRAME if not any(re.fullmatch(like, one) for like in patterns)
    } == set()


def test_every_live_page_has_a_browser_class() -> None:
    classes = (PACKAGE / "assets" / "page_lifecycle.js").read_text()
    assert [one.path for one in LIVE_PAGES if not re.search(rf"^  {one.live}: \w+Page,$", classes, re.MULTILINE)] == []


def test_the_table_of_pages_is_plain_json_that_comes_with_the_frame() -> None:
    frame = {props["id"]: props for props in nodes(layout.layout({}, TABLE)) if "id" in props}
    assert json.loads(json.dumps(frame["page-table"]["data"])) == TABLE
    assert {entry["name"] for entry in TABLE} == {
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
