"""What a file of pages may declare, and in which words it is refused when the server starts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
from dash import html
from fastapi import FastAPI

import stabilityfrontend
from stabilityfrontend.extend import Cell, Column, Theme, table
from stabilityfrontend.loading import collect, from_path
from stabilityfrontend.parts import plain

#: Text of a file, and what is said of it.
REFUSED = {
    "1 +": "pages.py, line 3: SyntaxError",
    "1 / 0": "pages.py, line 3: ZeroDivisionError: division by zero",
    "x = 1": "declares nothing, expected a function below @page(...) or @panel(...)",
    "@page('mine', name='Mine')\ndef mine(): ...": "page path is 'mine', expected one such as",
    "@page('/api/mine', name='Mine')\ndef mine(): ...": "page path is '/api/mine', expected",
    "@page('/mine', name='Mine')\ndef mine(run): ...": "pages.py:3: mine() asks for 'run', expected some of: api:",
    "@page('/mine', name='Mine')\ndef mine(rank): ...": "pages.py:3: mine() asks for 'rank', expected",
    "@page('/fleet', name='Mine')\ndef mine(): ...": "page '/fleet' is already declared at fleet_page.py:",
    "@panel(page='/nowhere', title='Mine')\ndef mine(): ...": "panel 'Mine' is for page '/nowhere', expected: /,",
    "@panel(page='/login', title='Mine')\ndef mine(): ...": "page '/login' takes no panels",
}


def asking(app: FastAPI) -> httpx.AsyncClient:
    """Return a client of an application in this process."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1")


@pytest.mark.parametrize("text", REFUSED)
def test_a_wrong_file_stops_the_start_and_says_where_and_what_is_expected(text: str, tmp_path: Path) -> None:
    file = tmp_path / "pages.py"
    file.write_text(f"from stabilityfrontend.extend import page, panel\n\n{text}\n")
    with pytest.raises(stabilityfrontend.PagesError) as refused:
        stabilityfrontend.attach(FastAPI(), pages=file)
    assert REFUSED[text] in str(refused.value)


def test_a_folder_without_files_and_a_path_to_nothing_are_refused(tmp_path: Path) -> None:
    for path, said in ((tmp_path, "no Python file"), (tmp_path / "none.py", "there is no such file")):
        with pytest.raises(stabilityfrontend.PagesError, match=said):
            from_path(path)


async def test_the_server_answers_at_what_pages_declare_and_with_404_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from stabilityfrontend.extend import page\n"
        "@page('/runs/{run}/mine', name='Mine')\ndef mine(run): ...\n"
        "@page('/mine.d', name='Mine')\ndef other(): ...\n"
    )
    app = FastAPI()
    stabilityfrontend.attach(app, pages=tmp_path)
    paths = ["/", "/runs", "/fleet", "/fleet/", "/runs/a%20b/mine", "/mine.d", "/mineXd", "/runs/a/b/mine", "/nothing"]
    async with asking(app) as client:
        assert [(await client.get(path)).status_code for path in paths] == [200, 200, 200, 200, 200, 200, 404, 404, 404]


async def test_what_no_callback_reads_is_refused_and_not_an_error_of_the_server() -> None:
    app = FastAPI()
    stabilityfrontend.attach(app)
    async with asking(app) as client:
        for body in ("{", "[]", '{"output": "nothing.children"}', '{"output": "..page.children...viewer.data.."}'):
            assert (await client.post("/_dash-update-component", content=body)).status_code == 422


def test_declarations_are_collected_in_the_order_of_the_navigation(tmp_path: Path) -> None:
    lines = [f"@page('/{name}', name='{name}'{order})\ndef {name}(): ..." for name, order in
             (("a", ", order=7"), ("b", ""), ("c", ", order=3"))]  # fmt: skip
    (tmp_path / "pages.py").write_text("from stabilityfrontend.extend import page\n" + "\n".join(lines))
    assert list(collect(from_path(tmp_path)).pages) == ["/c", "/a", "/b"]


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


def test_a_part_that_takes_too_long_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import threading

    from starlette.requests import Request

    from stabilityfrontend import parts

    monkeypatch.setattr(parts, "LIMIT_S", 0.05)
    (tmp_path / "slow.py").write_text(
        "import threading\nfrom stabilityfrontend.extend import page\nended = threading.Event()\n"
        "@page('/slow', name='Slow')\ndef slow(): ended.wait()\n"
    )
    modules = from_path(tmp_path)
    scope = {
        "type": "http",
        "app": None,
        "scheme": "http",
        "path": "/",
        "query_string": b"",
        "headers": [(b"host", b"a")],
    }
    viewer = {"path": "/slow", "search": "", "theme": "dark"}
    drawn = asyncio.run(parts.ServerParts(collect(modules)).drawn("/slow", viewer, Request(scope)))
    modules[0].ended.set()
    assert "not drawn after" in str(drawn)
    assert all(thread.name != "stability-page" or not thread.join() for thread in threading.enumerate())
