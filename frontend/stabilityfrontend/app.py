"""Puts the pages on a FastAPI application: Dash serves the skeletons, the browser talks to ``/api/v1`` by itself.

Dash brings the page, its routing and the component suites; live data never passes through a Dash callback, because
the browser's one WebSocket is 13 times cheaper for the server and loses nothing (docs/page.md).
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import json
import re
from collections.abc import Mapping

from dash import ClientsideFunction, Dash, Input, Output, State
from dash.exceptions import DashException
from fastapi import FastAPI, Request, Response

from stabilityfrontend import figures, layout, run_page, theme
from stabilityfrontend.bundle import bundle
from stabilityfrontend.served import ASSETS, packed, serve_modules, serve_styles

__all__ = ["attach", "register"]

#: The product's mark, drawn here; a data address, so no request.
_ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E"
    "%3Crect width='16' height='16' rx='4' fill='%232a5fd6'/%3E"
    "%3Cpath d='M2.5 6.5 6 9.5 8 4v6.2l2-1.4 3.5 2.7' fill='none' stroke='white' stroke-width='1.5' "
    "stroke-linejoin='round' stroke-linecap='round'/%3E%3C/svg%3E"
)

#: The page around Dash's own. The first script sets the theme before anything is painted, so nothing flashes.
_INDEX = """<!DOCTYPE html>
<html lang="en" data-theme="dark">
  <head>
    {%metas%}
    <title>{%title%}</title>
    <link rel="icon" href="__ICON__">
    <style>__VARIABLES__</style>
    <script>
      (function () {
        var kept = null;
        try { kept = localStorage.getItem("stability-theme"); } catch (error) { /* storage is off */ }
        var light = window.matchMedia("(prefers-color-scheme: light)").matches;
        document.documentElement.dataset.theme = kept === "light" || kept === "dark" ? kept : light ? "light" : "dark";
      })();
    </script>
    <script>__PRELOAD__</script>
    <link rel="modulepreload" href="__MODULES__">
    {%css%}
    <link rel="stylesheet" href="__STYLES__">
  </head>
  <body>
    {%app_entry%}
    <footer>
      {%config%}
      {%scripts%}
      {%renderer%}
    </footer>
  </body>
</html>"""


def attach(app: FastAPI, *, title: str, kinds: Mapping[str, object]) -> list[str]:
    """Serve the pages from ``app``. Call it once, after every other route: Dash adds a catch-all at the start.

    Returns the hashes of the scripts that stand in the page, as a Content-Security-Policy names them.

    Args:
        app: the application that serves ``/api/v1``.
        title: what the browser's tab says before a run is open.
        kinds: the table of incident kinds by name.
    """
    index = _index(modules=serve_modules(app), styles=serve_styles(app), kinds=kinds)
    pages = Dash(
        __name__,
        server=app,
        title=title,
        update_title=None,
        # Dash would print to stdout, which belongs to whoever asked for JSON there.
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
    # Pages call nothing in the server through Dash. With a socket for that, each would try it without
    # end.
    pages.backend.websocket_capability = False
    register(pages)
    # Dash reads its set-up at the first request to one of its own paths; a first request for a run's page is not one.
    pages._setup_server()
    _close_callback_doors(pages, app)
    return [*pages.csp_hashes(), *_script_hashes(index)]


def register(pages: Dash) -> None:
    """Give a Dash application its layout and callbacks.

    Args:
        pages: the Dash application; nothing global is touched.
    """
    pages.layout = layout.layout(figures.browser_config(importlib.metadata.version("stabilityboard")))

    pages.clientside_callback(
        ClientsideFunction("stability", "show"),
        Output("page", "children"),
        Input("location", "pathname"),
        State("skeletons", "data"),
        State("chart-config", "data"),
    )


def _close_callback_doors(pages: Dash, app: FastAPI) -> None:
    """Take away the addresses of Dash that no page of ours uses: no callback of ours runs in the server, and the folder
    of assets is served as two files.

    Dash answers what it can't read there with 500, and its WebSocket is open to whoever comes. A component's file that
    it does not have becomes a 404.
    """
    prefix = pages.config.routes_pathname_prefix
    suites = f"{prefix}_dash-component-suites/{{package_name}}/{{fingerprinted_path:path}}"
    gone = {f"{prefix}{name}" for name in ("_dash-update-component", "_dash-ws-callback", "_reload-hash")}
    gone |= {suites, f"{prefix}assets"}
    app.router.routes[:] = [route for route in app.router.routes if getattr(route, "path", None) not in gone]

    def suite(request: Request, package_name: str, fingerprinted_path: str) -> Response:
        try:
            return packed(
                pages.backend.serve_component_suites(pages, package_name, fingerprinted_path, request), request
            )
        except (DashException, KeyError, OSError):
            return Response("there is no such file", status_code=404, media_type="text/plain")

    app.add_api_route(suites, suite, methods=["GET"], include_in_schema=False)


def _script_hashes(page: str) -> list[str]:
    """Return ``'sha256-...'`` of each inline script of a page."""
    texts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    return [f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in texts]


def _index(*, modules: str, styles: str, kinds: Mapping[str, object]) -> str:
    """Return the page around Dash's own: icon, colours, theme, and the script that loads the modules.

    Args:
        modules: address of the browser's modules.
        styles: address of the style sheets.
        kinds: the table of incident kinds by name.
    """
    # Names come from our own tables; still no text of theirs may end the script.
    given = json.dumps({"first": run_page.first_requests(), "kinds": dict(kinds)}).replace("<", "\\u003c")
    code = bundle(ASSETS, "preload.js").text
    preload = f'(() => {{\n"use strict";\n{code}preload.begin({given}, "{modules}");\n}})();'
    parts = {
        "__ICON__": _ICON,
        "__VARIABLES__": theme.css_variables(),
        "__PRELOAD__": preload,
        "__MODULES__": modules,
        "__STYLES__": styles,
    }
    return re.sub("__[A-Z]+__", lambda mark: parts[mark[0]], _INDEX)
