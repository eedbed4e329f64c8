"""Puts the pages on a FastAPI application.

Dash serves the page, its routing and the component suites. Data that changes each second never passes through a Dash
callback, because the browser's one WebSocket is 13 times cheaper for the server and loses nothing (docs/page.md); other
data is drawn in the server (``parts.py``).
"""

from __future__ import annotations

import base64
import hashlib
import html
import importlib.metadata
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dash import ClientsideFunction, Dash, Input, Output, State
from dash.backends._fastapi import set_current_request
from dash.exceptions import DashException, PreventUpdate
from dash.fingerprint import build_fingerprint
from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse
from plotly.io.json import to_json_plotly

from stabilityfrontend import (
    data_panel,
    figures,
    layout,
    resume_panel,
    rollback_cost_panel,
    spike_score_panel,
    theme,
)
from stabilityfrontend.bundle import bundle
from stabilityfrontend.declared import LIVE_PAGES, MOVED, Declarations, collect, functions_of
from stabilityfrontend.fleet import audit_page, interruptions_page, server_page
from stabilityfrontend.gallery import page as gallery_page
from stabilityfrontend.gallery.patterns import similar
from stabilityfrontend.parts import REQUEST, ServerParts
from stabilityfrontend.served import (
    ASSETS,
    packed,
    serve_dash_first,
    serve_fonts,
    serve_for_good,
    serve_modules,
    serve_styles,
)

__all__ = ["OUR_PAGES", "attach"]

#: Modules of our own pages and panels that the server draws; those of plug-ins follow.
OUR_PAGES = (
    resume_panel,
    data_panel,
    rollback_cost_panel,
    spike_score_panel,
    audit_page,
    interruptions_page,
    server_page,
)
#: Scripts that a page loads when something on it needs them: the table's is 1.3 MB. As Dash writes them into the page.
_LATER = '<script src="([^"]*/(dash_ag_grid|dash_table)/[^"]+)"></script>'
#: The scripts' common base; the mark of its version is not in the name of its file.
_FIRST = r'<script src="([^"]*/dash/deps/)([^"]+?)\.v\d+_\d+_\d+m\d+(\.[^"]+)"></script>'

#: The product's mark, drawn here; a data address, so no request.
_ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E"
    "%3Crect width='16' height='16' rx='4' fill='%232a5fd6'/%3E"
    "%3Cpath d='M2.5 6.5 6 9.5 8 4v6.2l2-1.4 3.5 2.7' fill='none' stroke='white' stroke-width='1.5' "
    "stroke-linejoin='round' stroke-linecap='round'/%3E%3C/svg%3E"
)

#: Placeholder for the way from a page's address up to the board's own: ``../``, as often as it takes. So no page has
#: the path that a proxy serves the board below, and each works below any.
_UP = "__UP__"
#: Placeholder for the slash at the end of the requested path, where it has one.
_ENDING = "__ENDING__"
#: Dash asks from the address that is open, which changes: before its renderer starts, the prefix becomes a whole one.
_PLACE = """(() => {
        const element = document.getElementById("_dash-config");
        const config = JSON.parse(element.textContent);
        config.requests_pathname_prefix = new URL(config.requests_pathname_prefix, location.href).pathname;
        element.textContent = JSON.stringify(config);
      })();"""

#: The page around Dash's own. The first script sets the theme before anything is painted, so nothing flashes.
_INDEX = """<!DOCTYPE html>
<html lang="en" data-theme="dark" data-ending="__ENDING__">
  <head>
    {%metas%}
    <title>{%title%}</title>
    <link rel="icon" href="__ICON__">
    <link rel="preload" href="__FONT__" as="font" type="font/woff2" crossorigin>
    <link rel="modulepreload" href="__MODULES__">
    <style>__VARIABLES__</style>
    <script>
      (function () {
        // A proxy may lead from its path without a slash to "/" here: seen from there, nothing that follows is found.
        if (document.documentElement.dataset.ending === "/" && !location.pathname.endsWith("/"))
          location.replace(location.pathname + "/" + location.search + location.hash);
        var kept = null;
        try { kept = localStorage.getItem("stability-theme"); } catch (error) { /* storage is off */ }
        var light = window.matchMedia("(prefers-color-scheme: light)").matches;
        document.documentElement.dataset.theme = kept === "light" || kept === "dark" ? kept : light ? "light" : "dark";
      })();
    </script>
    <script>__PRELOAD__</script>
    {%css%}
    <link rel="stylesheet" href="__STYLES__">
  </head>
  <body>
    {%app_entry%}
    <footer>
      {%config%}
      <script>__PLACE__</script>
      {%scripts%}
      {%renderer%}
    </footer>
  </body>
</html>"""


#: Placeholder in a page outside of this board until Dash draws it. Behind a proxy that passes its path on, each page is
#: one, and no drawing script is found: so it stays.
_LOADING = "Loading..."
_NOT_FOUND = """<style>@keyframes late {{ from {{ visibility: hidden }} }}</style>
      <p style="margin: 2rem; animation: late 0s 2s both">No page of this board is at {0}. Does a proxy serve it below a
      path, and pass that on? Then start it with the path: <code>stabilityboard up --root-path {1}</code></p>"""


class _Pages(Dash):
    """Dash without the parts of the head that only some pages need, and with addresses relative to the page."""

    def page(self, path: str, *, found: bool) -> str:
        """Return the page at a path within the board, quoted as the browser sent it; not ``found``: an unknown one."""
        page = self.index().replace(_UP, _way_up(path)).replace(_ENDING, "/" if path.endswith("/") else "")
        note = _NOT_FOUND.format(html.escape(path), html.escape(path.rstrip("/")))
        return page if found else page.replace(_LOADING, note, 1)

    def later(self) -> dict[str, str]:
        """Return the addresses of the parts left out, by the name that each defines."""
        return {name: url for url, name in re.findall(_LATER, super()._generate_scripts_html())}

    def join_first(self) -> None:
        """Serve the renderer's base (React and three more) as one script: three requests less on each page."""
        found = re.findall(_FIRST, super()._generate_scripts_html())
        self.first = serve_dash_first(self.server, [name + rest for _, name, rest in found])

    def _generate_scripts_html(self) -> str:
        others = re.sub(_FIRST, "", re.sub(_LATER, "", super()._generate_scripts_html()))
        return f'<script src="{self.first}"></script>{others}'.replace('src="/', f'src="{_UP}')

    def _generate_css_dist_html(self) -> str:
        return super()._generate_css_dist_html().replace('href="/', f'href="{_UP}')

    def _config(self) -> dict[str, Any]:
        return super()._config() | {"requests_pathname_prefix": _UP}


def attach(
    app: FastAPI, *, title: str, tables: Mapping[str, object], added: Iterable[Callable[..., Any]] = ()
) -> list[str]:
    """Serve the pages from ``app``. Call it once, after every other route: Dash adds a catch-all at the start.

    Returns the hashes of the scripts that stand in the page, as a Content-Security-Policy names them.

    Args:
        app: the application that serves ``/api/v1``.
        title: of the browser's tab before a run is open.
        tables: the server's tables for the pages, by name (``kinds``, ``statuses`` ...).
        added: functions that declare more pages and panels.

    Raises:
        PagesError: one of those can't be used.
    """
    declared = collect([*functions_of(OUR_PAGES), *added], LIVE_PAGES)
    index = _index(modules=serve_modules(app), styles=serve_styles(app), fonts=serve_fonts(app), tables=tables)
    dash = _Pages(
        __name__,
        server=app,
        title=title,
        update_title=None,
        # Dash would print to stdout, which may be a reader's JSON.
        add_log_handler=False,
        suppress_callback_exceptions=True,
        index_string=index,
        # They are served as one script and one style sheet.
        include_assets_files=False,
        meta_tags=[
            {"name": "viewport", "content": "width=device-width, initial-scale=1"},
            {"name": "robots", "content": "noindex"},
        ],
    )
    # Pages call nothing in the server through Dash's socket. With one, each would try it without end.
    dash.backend.websocket_capability = False
    dash.join_first()
    curves = json.dumps(gallery_page.content()).encode()
    _register(dash, declared, curves=serve_for_good(app, "curves.json", curves, "application/json"))
    # Dash reads its set-up at the first request to one of its own paths; a first request for a run's page is not one.
    dash._setup_server()
    _answer_what_is_ours(dash, app, declared)
    return [*dash.csp_hashes(), *_script_hashes(index)]


def _register(dash: _Pages, declared: Declarations, curves: str) -> None:
    """Give the Dash application its layout and callbacks; ``curves`` is the address of those of the gallery."""
    parts = ServerParts(declared)
    table = layout.page_table(declared, parts)
    config = figures.browser_config(importlib.metadata.version("stabilityboard"))
    dash.layout = layout.layout(config, table)
    config |= {"later": dash.later(), "curves": curves, "looks": similar()}
    # Under the name that Dash's renderer gives it, browsers would ask for it again at each visit.
    file = build_fingerprint("package_data/plotly.min.js", importlib.metadata.version("plotly"), "0")
    config["plotly"] = f"{dash.config.requests_pathname_prefix}_dash-component-suites/plotly/{file}"
    dash.clientside_callback(
        ClientsideFunction("stability", "show"),
        Output("page", "children"),
        Output("viewer", "data"),
        Input("address", "data"),
        State("page-table", "data"),
        State("chart-config", "data"),
    )
    parts.register(dash)


def _answer_what_is_ours(dash: _Pages, app: FastAPI, declared: Declarations) -> None:
    """Take away the addresses of Dash that no page uses here, and answer the others as the rest of the server does.

    Dash answers malformed requests with 500, its WebSocket is open to any client, and it serves a page at every
    address. A component's file that it does not have, and an undeclared page, become a 404.
    """
    prefix = dash.config.routes_pathname_prefix
    suites = f"{prefix}_dash-component-suites/{{package_name}}/{{fingerprinted_path:path}}"
    update = f"{prefix}_dash-update-component"
    frame = f"{prefix}_dash-layout"
    gone = {prefix, suites, update, frame, f"{prefix}assets", f"{prefix}_dash-ws-callback", f"{prefix}_reload-hash"}
    app.router.routes[:] = [route for route in app.router.routes if getattr(route, "path", None) not in gone]
    dispatch = dash.backend.serve_callback(dash)
    table = to_json_plotly(dash.layout).encode()

    def suite(request: Request, package_name: str, fingerprinted_path: str) -> Response:
        try:
            return packed(dash.backend.serve_component_suites(dash, package_name, fingerprinted_path, request), request)
        except (DashException, KeyError, OSError):
            return Response("there is no such file", status_code=404, media_type="text/plain")

    async def callback(request: Request) -> Response:
        REQUEST.set(request)
        try:
            return await dispatch(request)
        except PreventUpdate:
            return Response(status_code=204)
        except Exception as error:  # an error of a part is shown in its place: this is the request's
            told = {"code": "bad_request", "message": f"no callback of a page: {type(error).__name__}"}
            return JSONResponse({"error": told | {"hint": "load the page again"}}, status_code=422)

    def frame_of_pages(request: Request) -> Response:
        return packed(Response(table, media_type="application/json"), request)

    def page(request: Request, path: str) -> Response:
        set_current_request(request)  # of this thread's own context; Dash asks for it, and reads no data from it
        found = layout.is_page(f"/{path}", declared)
        return HTMLResponse(dash.page(_sent_path(request), found=found), status_code=200 if found else 404)

    def moved(request: Request) -> Response:
        query = f"?{request.url.query}" if request.url.query else ""
        return RedirectResponse(f"{_way_up(_sent_path(request))}{MOVED[request.url.path][1:]}{query}", status_code=308)

    for old in MOVED:
        app.add_api_route(old, moved, methods=["GET"], include_in_schema=False)
    app.add_api_route(frame, frame_of_pages, methods=["GET"], include_in_schema=False)
    app.add_api_route(suites, suite, methods=["GET"], include_in_schema=False)
    app.add_api_route(update, callback, methods=["POST"], include_in_schema=False)
    app.add_api_route(f"{prefix}{{path:path}}", page, methods=["GET"], include_in_schema=False)


def _sent_path(request: Request) -> str:
    """Return the path of a request as the browser sent it: a quoted slash is none."""
    sent: bytes = request.scope.get("raw_path") or request.url.path.encode()
    return sent.decode("ascii", "replace")


def _way_up(path: str) -> str:
    """Return the way from a path within the board to the board's own address."""
    return "../" * (path.count("/") - 1) or "./"


def _script_hashes(page: str) -> list[str]:
    """Return ``'sha256-...'`` of each inline script of a page."""
    texts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    return [f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in texts]


def _below(path: str) -> str:
    return _UP + path[1:]


def _index(*, modules: str, styles: str, fonts: dict[str, str], tables: Mapping[str, object]) -> str:
    """Return the page around Dash's own: icon, colours, theme, and the script that loads the modules.

    Args:
        modules: address of the browser's modules.
        styles: address of the style sheets.
        fonts: address of each file of the font, the one that every page needs first.
        tables: the server's tables for the pages, by name (``kinds``, ``statuses`` ...).
    """
    # Names come from our own tables; still no text of theirs may end the script.
    given = json.dumps({"first": figures.first_requests(), **tables}).replace("<", "\\u003c")
    code = bundle(ASSETS, "preload.js").text
    preload = f'(() => {{\n"use strict";\n{code}preload.begin({given});\n}})();'
    faces = theme.font_faces({name: _below(url) for name, url in fonts.items()})
    parts = {
        "__ICON__": _ICON,
        "__FONT__": _below(next(iter(fonts.values()))),
        "__VARIABLES__": f"{faces}\n{theme.css_variables()}",
        "__PRELOAD__": preload,
        "__PLACE__": _PLACE,
        "__MODULES__": _below(modules),
        "__STYLES__": _below(styles),
    }
    return re.sub("__[A-Z]+__", lambda mark: parts.get(mark[0], mark[0]), _INDEX)
