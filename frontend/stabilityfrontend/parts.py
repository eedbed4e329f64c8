"""Server-side drawing of declared pages and panels, for one viewer at a time.

One Dash callback serves all of them. An error, a wrong result or a timeout of a function is shown in its own
place; the page around it stays. Functions run in threads of their own, so that none holds up the server.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import re
import threading
import traceback
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

from dash import MATCH, ClientsideFunction, Dash, Input, Output, State, dcc, html
from dash.development.base_component import Component
from dash.exceptions import PreventUpdate
from plotly.basedatatypes import BaseFigure
from plotly.io.json import to_json_plotly
from starlette.requests import Request

from stabilityfrontend.controls import panel_head
from stabilityfrontend.declared import Declarations, DeclaredPage, DeclaredPanel
from stabilityfrontend.figures import template
from stabilityfrontend.theme import THEMES
from stabilityfrontend.viewer import Api, ApiError, Theme

__all__ = ["REQUEST", "ServerParts"]

#: The request that the callback answers.
REQUEST: ContextVar[Request] = ContextVar("stability-request")
#: Time limit of a function, seconds: longest wait for a table.
LIMIT_S = 20.0
#: Functions that draw at a time, of all viewers together. More wait, within the limit.
AT_A_TIME = 8
#: Height of a figure that does not say its own, px.
FIGURE_PX = 300
#: Plotly's own switches for a figure made in Python.
_FIGURE_CONFIG = {"displayModeBar": False, "displaylogo": False, "showTips": False, "responsive": True}

_log = logging.getLogger(__name__)


class ServerParts:
    """All that is drawn in the server: the pages that no browser module fills, and the panels.

    Args:
        declared: pages and panels.
    """

    def __init__(self, declared: Declarations) -> None:
        self._pages = declared.pages
        self._parts: dict[str, DeclaredPage | DeclaredPanel] = {
            page.path: page for page in declared.pages.values() if not page.live
        }
        self._parts |= {f"{panel.page}#{index}": panel for index, panel in enumerate(declared.panels)}
        self._free = asyncio.Semaphore(AT_A_TIME)

    def places(self, page: DeclaredPage) -> html.Div:
        """Return the places of everything on a page that the server draws: its own function's part, and panels."""
        own = [] if page.live else [_place(page.path)]
        panels = [
            html.Section([panel_head(part.title), _place(name)], className="panel added")
            for name, part in self._parts.items()
            if isinstance(part, DeclaredPanel) and part.page == page.path
        ]
        return html.Div([*own, *panels], **{"data-panels": page.path})

    def register(self, app: Dash) -> None:
        """Give a Dash application the callback that draws, and the one that puts the answer into its place."""

        async def answer(viewer: Any, id_: Any) -> Any:
            return await self.drawn(str(id_["part"]), viewer, REQUEST.get())

        app.callback(
            Output({"type": "given", "part": MATCH}, "data"),
            Input("viewer", "data"),
            State({"type": "given", "part": MATCH}, "id"),
            prevent_initial_call=True,  # some pages ask only when their charts stand
        )(answer)
        app.clientside_callback(
            ClientsideFunction("stability", "fill"),
            Output({"type": "part", "part": MATCH}, "children"),
            Input({"type": "given", "part": MATCH}, "data"),
            State({"type": "given", "part": MATCH}, "id"),
            State("chart-config", "data"),
        )

    async def drawn(self, name: str, viewer: dict[str, Any], request: Request) -> Any:
        """Return a part's content for a viewer, as plain JSON.

        Args:
            name: of the part.
            viewer: ``path``, ``search`` and ``theme`` of the browser.
            request: who asks.

        Raises:
            PreventUpdate: the part is not on that page, or not any more.
        """
        part = self._parts[name]
        page = part if isinstance(part, DeclaredPage) else self._pages[part.page]
        found = re.fullmatch(page.pattern, str(viewer["path"]))
        if found is None:
            raise PreventUpdate
        theme = Theme(viewer["theme"] if viewer["theme"] in THEMES else "dark")
        given = dict(zip(page.ids, map(unquote, found.groups()), strict=True)) | {
            "api": Api(request, asyncio.get_running_loop()),
            "theme": theme,
            "query": dict(parse_qsl(str(viewer["search"]).removeprefix("?"))),
        }
        wanted = part.draw.__code__.co_varnames[: part.draw.__code__.co_argcount]

        def draw() -> Any:
            return plain(part.draw(**{name: given[name] for name in wanted if name in given}), theme)

        try:
            return await self._in_thread(draw)
        except TimeoutError:
            return plain(_trouble(f"not drawn after {LIMIT_S:.0f} s", f"the function is {part.draw.__name__}()"), theme)
        except ApiError as error:
            return plain(_trouble(error.message, error.hint), theme)
        except Exception as error:
            _log.warning("%s() of %s failed", part.draw.__name__, page.path, exc_info=error)
            return plain(_trouble(f"{type(error).__name__}: {error}", _where(error, part.draw)), theme)

    async def _in_thread(self, draw: Callable[[], Any]) -> Any:
        """Return the result of ``draw`` in a thread that ends with the process, however long it takes."""
        loop = asyncio.get_running_loop()
        result: asyncio.Future[Any] = loop.create_future()

        def done(set_: Callable[[Any], None], what: Any) -> None:
            self._free.release()
            if not result.done():
                set_(what)

        def work() -> None:
            try:
                answer = (result.set_result, draw())
            except BaseException as error:  # any error: a request waits for the answer
                answer = (result.set_exception, error)
            try:
                loop.call_soon_threadsafe(done, *answer)
            except RuntimeError:
                pass  # the server has ended meanwhile

        async with asyncio.timeout(LIMIT_S):
            await self._free.acquire()
            threading.Thread(target=work, name="stability-page", daemon=True).start()
            return await result


def plain(what: Any, theme: Theme) -> Any:
    """Return a function's result as the plain JSON of Dash components.

    Args:
        what: components, text, numbers, a Plotly figure, None, or a list of those.
        theme: its template goes to figures.

    Raises:
        TypeError: it is something else.
    """
    if what is None:
        return plain(html.P("Nothing to show.", className="sub"), theme)
    if isinstance(what, list | tuple):
        return [plain(one, theme) for one in what if one is not None]
    if isinstance(what, BaseFigure):
        figure = what.to_dict()
        layout = figure["layout"] | {"template": template(theme.name)}
        height = layout.get("height") or FIGURE_PX
        what = dcc.Graph(figure=figure | {"layout": layout}, config=_FIGURE_CONFIG, style={"height": f"{height}px"})
    if not isinstance(what, Component | str | int | float):
        raise TypeError(f"drew {type(what).__name__}, expected Dash components, a Plotly figure or text")
    shown = json.loads(to_json_plotly(what))
    _check(shown)
    return shown


def _check(shown: Any) -> None:
    """Refuse children that a browser can't show: it would lose the whole page over them."""
    if isinstance(shown, list):
        for one in shown:
            _check(one)
    elif isinstance(shown, dict):
        if "props" not in shown:
            raise TypeError(f"drew {shown!r:.80} among its components, expected components or text")
        _check(shown["props"].get("children"))


def _place(name: str) -> html.Div:
    return html.Div(
        [
            dcc.Store(id={"type": "given", "part": name}),
            html.Div("Loading …", id={"type": "part", "part": name}, className="part"),
        ],
        **{"data-part": name},
    )


def _trouble(message: str, more: str) -> html.Div:
    return html.Div(
        [html.Strong("This could not be shown: "), message, html.Div(more, className="sub") if more else None],
        className="part-trouble",
        role="alert",
    )


def _where(error: Exception, draw: Callable[..., Any]) -> str:
    """Return where an error comes from: the innermost line in the file of ``draw``, else the first of ``draw``."""
    code = inspect.unwrap(draw).__code__
    own = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == code.co_filename]
    return f"{Path(code.co_filename).name}, line {(own or [code.co_firstlineno])[-1]}"
