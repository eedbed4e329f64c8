"""What a file of pages may declare, and in which words it is refused when the server starts."""

from __future__ import annotations

import asyncio
import importlib.util
import re
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import httpx
import pytest
from dash import html
from fastapi import FastAPI
from starlette.requests import Request

import stabilityfrontend
from stabilityfrontend import parts
from stabilityfrontend.declared import collect, functions_of
from stabilityfrontend.extend import Cell, Column, Theme, table
from stabilityfrontend.parts import plain

#: Text of a file, and what is said of it.
REFUSED = {
    "@page('mine', name='Mine')\ndef mine(): ...": "page path is 'mine', expected one such as",
    "@page('/api/mine', name='Mine')\ndef mine(): ...": "page path is '/api/mine', expected",
    "@page('/mine', name='Mine')\ndef mine(run): ...": "mine() asks for 'run', expected some of: api:",
    "@page('/mine', name='Mine')\ndef mine(rank): ...": "mine() asks for 'rank', expected",
    "@page('/x/{rank}', name='Mine')\ndef mine(): ...": "page path '/x/{rank}' has ['rank'], expected {run} and",
    "@page('/fleet', name='Mine')\ndef mine(): ...": "page path '/fleet' leads to",
    "@panel(page='/nowhere', title='Mine')\ndef mine(): ...": "panel 'Mine' is for page '/nowhere', expected: /,",
    "@panel(page='/login', title='Mine')\ndef mine(): ...": "page '/login' takes no panels",
}


Module = Callable[[str], ModuleType]


@pytest.fixture
def module(tmp_path: Path) -> Module:
    """Return what makes a plug-in of a text."""

    def made(text: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location("pages", tmp_path / "pages.py")
        (tmp_path / "pages.py").write_text(f"from stabilityfrontend.extend import page, panel\n\n{text}\n")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return made


def asking(app: FastAPI) -> httpx.AsyncClient:
    """Return a client of an application in this process."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1")


@pytest.mark.parametrize("text", REFUSED)
def test_a_wrong_declaration_stops_the_start_and_says_what_is_expected(text: str, module: Module) -> None:
    with pytest.raises(stabilityfrontend.PagesError) as refused:
        stabilityfrontend.attach(FastAPI(), added=functions_of([module(text)]))
    assert REFUSED[text] in str(refused.value)


async def test_the_python_of_the_document_can_be_served(module: Module) -> None:
    text = (Path(__file__).parents[2] / "docs" / "extending.md").read_text()
    found = [code for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "@page" in code]
    app = FastAPI()
    stabilityfrontend.attach(app, added=functions_of([module("\n".join(found))]))
    async with asking(app) as client:
        assert (await client.get("/losses")).status_code == 200


async def test_the_server_answers_at_what_pages_declare_and_with_404_elsewhere(module: Module) -> None:
    mine = module(
        "@page('/runs/{run}/mine', name='Mine')\ndef mine(run): ...\n@page('/mine.d', name='Mine')\ndef other(): ...\n"
    )
    app = FastAPI()
    stabilityfrontend.attach(app, added=functions_of([mine]))
    paths = [
        "/",
        "/runs",
        "/incidents",
        "/incidents/",
        "/runs/a%20b/mine",
        "/mine.d",
        "/mineXd",
        "/runs/a/b/mine",
        "/nothing",
    ]
    async with asking(app) as client:
        assert [(await client.get(path)).status_code for path in paths] == [200, 200, 200, 200, 200, 200, 404, 404, 404]


async def test_what_no_callback_reads_is_refused_and_not_an_error_of_the_server() -> None:
    app = FastAPI()
    stabilityfrontend.attach(app)
    async with asking(app) as client:
        for body in ("{", "[]", '{"output": "nothing.children"}', '{"output": "..page.children...viewer.data.."}'):
            assert (await client.post("/_dash-update-component", content=body)).status_code == 422


def test_declarations_are_collected_in_the_order_of_the_navigation(module: Module) -> None:
    lines = [f"@page('/{name}', name='{name}'{order})\ndef {name}(): ..." for name, order in
             (("a", ", order=7"), ("b", ""), ("c", ", order=3"))]  # fmt: skip
    assert list(collect(functions_of([module("\n".join(lines))])).pages) == ["/c", "/a", "/b"]


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_a_figure_gets_the_template_of_the_theme(theme: str) -> None:
    go = pytest.importorskip("plotly.graph_objects")
    shown = plain(go.Figure(go.Bar(y=[1])), Theme(theme))
    layout = shown["props"]["figure"]["layout"]
    assert layout["template"]["layout"]["paper_bgcolor"] == Theme(theme).colors["panel"]
    go.Figure(layout=layout)  # Plotly knows all that is in it


@pytest.mark.parametrize("what", [{"a": 1}, object(), html.Div([{"a": 1}]), html.Div({1}), [html.P(object())]])
def test_what_a_browser_can_not_show_is_refused(what: object) -> None:
    with pytest.raises(TypeError):
        plain(what, Theme("dark"))


def test_a_cell_sorts_by_its_value_and_shows_its_text() -> None:
    grid = table([{"run": Cell("b", "B", href="/runs/b"), "step": 7}], [Column("run", "Run"), Column("step", "Step")])
    assert grid.rowData == [{"cells": {"run": {"text": "B", "href": "/runs/b"}}, "run": "b", "step": 7}]


def drawn(of: ModuleType) -> str:
    """Return what the page /mine of a module shows."""
    scope = {
        "type": "http",
        "app": None,
        "scheme": "http",
        "path": "/",
        "query_string": b"",
        "headers": [(b"host", b"a")],
    }
    viewer = {"path": "/mine", "search": "", "theme": "dark"}
    return str(asyncio.run(parts.ServerParts(collect(functions_of([of]))).drawn("/mine", viewer, Request(scope))))


def test_a_part_that_takes_too_long_says_so(monkeypatch: pytest.MonkeyPatch, module: Module) -> None:
    monkeypatch.setattr(parts, "LIMIT_S", 0.05)
    slow = module("import threading\nended = threading.Event()\n@page('/mine', name='M')\ndef mine(): ended.wait()\n")
    shown = drawn(slow)
    slow.ended.set()
    assert "not drawn after" in shown
    assert all(thread.name != "stability-page" or not thread.join() for thread in threading.enumerate())


@pytest.mark.parametrize(
    ("body", "line", "words"),
    [
        ("import json\n    return json.loads('{')", 8, "JSONDecodeError: Expecting property name"),
        ("return {'a': 1}", 5, "drew dict, expected Dash components"),
        ("return api.get('/runs/{run_id}/segments', run='a')", 7, "'/runs/{run_id}/segments' needs run_id=..., given"),
        ("from stabilityfrontend.extend import Column, table\n    return table([{'a': 1}], [Column('b', 'B')])", 8,
         "column 'b' is in no row, the first one has: a"),
    ],
)  # fmt: skip
def test_what_goes_wrong_in_a_function_is_shown_with_the_line_of_its_own_file(
    body: str, line: int, words: str, module: Module
) -> None:
    shown = drawn(module(f"\n\n@page('/mine', name='Mine')\ndef mine(api):\n    {body}\n"))
    assert words in shown.replace('\\"', "'").replace("\\'", "'")
    assert f"pages.py, line {line}" in shown
