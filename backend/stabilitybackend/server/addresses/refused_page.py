"""Page for a request under an unknown host name: the setting that adds the name.

Such a request may be one of a page of another site (DNS rebinding, docs/security.md). So the page has no data,
no script, and of the request only what its sender knows.
"""

from __future__ import annotations

import re
from html import escape

from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, Response
from starlette.types import Scope

from stabilitybackend.base.errors import StabilityBoardError

__all__ = ["refused_page"]

_PAGE = """<!DOCTYPE html>
<html lang="en">
  <head>
    <meta charset="utf-8">
    <meta name="viewport" content="width=device-width, initial-scale=1">
    <title>Stabilityboard: an unknown name</title>
    <style>
      :root {{ color-scheme: light dark; font: 15px/1.55 system-ui, sans-serif; }}
      body {{ max-width: 44rem; margin: 12vh auto; padding: 0 1.2rem; }}
      pre {{ padding: .9rem 1rem; border: 1px solid; border-radius: 8px; }}
      pre {{ white-space: pre-wrap; overflow-wrap: anywhere; }}
    </style>
  </head>
  <body>
    <h1>This server does not know the name {host}</h1>
    <p>Stabilityboard answers under the names that it was given, as a page of another site could have made this one up.
      If {host} is where you open it, start it with the address that the browser has, up to where the board begins:</p>
    <pre>STABILITY_PUBLIC_URL={url} stabilityboard up</pre>
    <p>Others may reach it there, so every call needs a key then. Make one before:
      <code>stabilityboard keys create NAME</code>. A further name of the server goes into
      <code>STABILITY_TRUSTED_HOSTS</code>. Recipes for nginx, Jupyter, Open OnDemand and code-server:
      docs/operations.md, “Below a path”.</p>
    <p>{code}</p>
  </body>
</html>
"""
_PATH = re.compile(r"(/[A-Za-z0-9._~@%-]{1,100}){1,20}")


def refused_page(error: StabilityBoardError, scope: Scope) -> Response | None:
    """Return the page for a request that was refused, None where no browser asked for one, or for another reason."""
    headers = Headers(scope=scope)
    if error.code != "foreign_host" or scope["method"] != "GET" or "text/html" not in headers.get("accept", ""):
        return None
    host = headers.get("host", "")
    told = headers.get("x-forwarded-prefix", "").rstrip("/")
    below = told if _PATH.fullmatch(told) else scope.get("root_path", "")
    scheme = "http" if scope["scheme"] == "http" and headers.get("x-forwarded-proto") == "http" else "https"
    text = _PAGE.format(host=escape(host[:200]), url=escape(f"{scheme}://{host[:200]}{below}"), code=escape(error.code))
    return HTMLResponse(text, error.status)
