"""Serves the board below a path, removed from each request before routes, checks and logs.

Some proxies take it off themselves (jupyter-server-proxy's ``/proxy/8080/``, nginx with a slash after the address, Open
OnDemand's ``/rnode/``), others pass it on (``/proxy/absolute/8080/``, ``/node/``, code-server's ``/absproxy/``). Both
work, also without a word from the proxy: pages find everything from their own address (stabilityfrontend/app.py). Who
makes an address in the server finds the path in the scope's ``root_path``, as ASGI has it.
"""

from __future__ import annotations

import re
from collections.abc import Container
from urllib.parse import unquote, urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from stabilitybackend.base.settings import MAX_ROOT_PATH_CHARS, is_loopback

__all__ = ["ServedPath"]

#: Headers in which a proxy names the path that it removed; the second one is of older versions of jupyter-server-proxy.
_PREFIX_HEADERS = (b"x-forwarded-prefix", b"x-forwarded-context")
_PREFIX = re.compile(r"(/[A-Za-z0-9._~!$&'()*+,:@%-]+){1,50}/?")


class ServedPath:
    """Takes the path off; ASGI. It goes around uvicorn's reading of ``X-Forwarded-For``: it has to see who connects.

    Args:
        app: the served application.
        path: of the settings (``below``), quoted; "" for none.
        trusted: addresses of proxies whose ``X-Forwarded-Prefix`` is believed.
    """

    def __init__(self, app: ASGIApp, path: str, trusted: Container[str] = ()) -> None:
        self._app = app
        self._path = path
        self._decoded = unquote(path)
        self._trusted = trusted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Take it off, and pass the request on."""
        if scope["type"] in ("http", "websocket"):
            scope = {**scope, **self._found(scope)}
        await self._app(scope, receive, send)

    def _found(self, scope: Scope) -> Scope:
        """Return the changes of a scope: the remaining path, and the path below which the browser asked."""
        sent: str = scope["path"]
        if self._path and f"{sent}/".startswith(f"{self._decoded}/"):
            raw: bytes = scope.get("raw_path") or sent.encode()
            left = raw.split(b"/", self._path.count("/") + 1)
            return {
                "path": sent[len(self._decoded) :] or "/",
                "raw_path": b"/" + (left[-1] if len(left) > self._path.count("/") + 1 else b""),
                "root_path": self._path,
            }
        return {"root_path": self._forwarded(scope) or self._assumed(scope)}

    def _forwarded(self, scope: Scope) -> str:
        """Return the path named by a trusted proxy, "" without one."""
        client = scope.get("client")
        if client is None or client[0] not in self._trusted:
            return ""
        for name in _PREFIX_HEADERS:
            values: list[str] = [value.decode("latin-1").strip() for key, value in scope["headers"] if key == name]
            if len(values) == 1 and len(values[0]) <= MAX_ROOT_PATH_CHARS and _PREFIX.fullmatch(values[0]):
                return values[0].rstrip("/")
        return ""

    def _assumed(self, scope: Scope) -> str:
        """Return the path of the settings where the request has a host name: a proxy removed the path.

        At a loopback address the request may be of this machine, without a proxy.
        """
        hosts = [value.decode("latin-1") for key, value in scope["headers"] if key == b"host"]
        try:
            name = urlsplit(f"//{hosts[0]}").hostname if len(hosts) == 1 else None
        except ValueError:
            name = None
        return "" if name is None or is_loopback(name) else self._path
