"""Viewer of a drawing function: the server's API with the viewer's rights, and the theme.

The API is asked within this process, as HTTP, with the cookie and the key of the request that the browser sent: data
that the viewer may not read or change is refused here as everywhere.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx
from starlette.requests import Request

from stabilityfrontend.figures import template
from stabilityfrontend.theme import THEMES

__all__ = ["Api", "ApiError", "Theme"]

#: Headers of a browser's request that identify the viewer, their address and the host name.
_CARRIED = ("authorization", "cookie", "host", "origin", "x-forwarded-for", "x-forwarded-proto")
#: Where the server notes whom a trusted proxy signed in.
_PERSON = "stability.person"
#: Seconds that one request to the API may take.
TIMEOUT_S = 15.0


def _seen_as(app: Any, person: Any) -> Any:
    """Return an app whose requests come from whom a proxy signed in: headers alone would not be believed."""

    async def passed_on(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, _PERSON: person}, receive, send)

    return app if person is None else passed_on


class ApiError(Exception):
    """The API refused, or could not carry out, the request.

    Attributes:
        status: HTTP status.
        code: short word for programs.
        message: the value given and the one expected.
        hint: the remedy; may be empty.
    """

    def __init__(self, status: int, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.hint = status, code, message, hint


class Api:
    """The server's API for one viewer. To be called from the thread that draws, not from the server's own.

    Args:
        request: of the viewer's browser.
        loop: the server's event loop.
    """

    def __init__(self, request: Request, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._base = f"{request.url.scheme}://{request.url.netloc}"
        self._headers = {name: request.headers[name] for name in _CARRIED if name in request.headers}
        client = (request.client.host, request.client.port) if request.client else ("127.0.0.1", 0)
        app = _seen_as(request.app, request.scope.get(_PERSON))
        self._transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=client)

    def get(self, path: str, **given: Any) -> Any:
        """Return the answer of ``GET /api/v1{path}``.

        Args:
            path: such as ``/runs/{run_id}/incidents``; ``{names}`` are filled from ``given`` and quoted.
            given: those, and parameters of the query; None leaves one out.

        Raises:
            ApiError: the server refused, or there is no such thing.
            TypeError: one of ``{names}`` is not given.
        """
        return self._ask("GET", path, given, None)

    def put(self, path: str, body: Any, **given: Any) -> Any:
        """Return the answer of ``PUT /api/v1{path}``; see ``get``."""
        return self._ask("PUT", path, given, body)

    def post(self, path: str, body: Any, **given: Any) -> Any:
        """Return the answer of ``POST /api/v1{path}``; see ``get``."""
        return self._ask("POST", path, given, body)

    def _ask(self, method: str, path: str, given: dict[str, Any], body: Any) -> Any:
        query = {name: value for name, value in given.items() if value is not None}
        if missing := [name for name in re.findall(r"\{(\w+)\}", path) if name not in query]:
            raise TypeError(f"{path!r} needs {', '.join(f'{name}=...' for name in missing)}, given: {sorted(query)}")
        filled = re.sub(r"\{(\w+)\}", lambda name: quote(str(query.pop(name[1])), safe=""), path)
        work = self._send(method, f"{self._base}/api/v1{filled}", query, body)
        answer = asyncio.run_coroutine_threadsafe(work, self._loop).result(TIMEOUT_S)
        if answer.is_success:
            return answer.json()
        try:
            told = answer.json()["error"]
            raise ApiError(answer.status_code, told["code"], told["message"], told.get("hint", ""))
        except (ValueError, KeyError, TypeError):
            raise ApiError(answer.status_code, "", f"{method} {filled} was answered {answer.status_code}") from None

    async def _send(self, method: str, url: str, query: dict[str, Any], body: Any) -> httpx.Response:
        async with httpx.AsyncClient(transport=self._transport, headers=self._headers, trust_env=False) as client:
            return await client.request(method, url, params=query, json=body, timeout=None)


@dataclass(frozen=True, slots=True)
class Theme:
    """The theme that is on in the viewer's browser.

    Attributes:
        name: ``dark`` or ``light``.
    """

    name: str

    @property
    def colors(self) -> dict[str, Any]:
        """Its colours by name, as in ``theme.py``: ``text``, ``muted``, ``good``, ``critical``, ``series`` ..."""
        return THEMES[self.name]

    @property
    def template(self) -> Any:
        """Its Plotly template. A figure without a template of its own gets it by itself."""
        return template(self.name)
