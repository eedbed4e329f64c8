"""Holds every JSON answer of an app in the tests against what its route declares: nothing missing, nothing more."""

from __future__ import annotations

import functools
import gzip
import operator
import re
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from fastapi import FastAPI
from msgspec import NODEFAULT
from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stabilitybackend.schema.server import ErrorAnswer
from stabilitybackend.server.api.answers import JSON, DeclaredBody, always_there, declared

__all__ = ["AnswersChecked", "strict"]


@functools.cache
def strict(kind: Any) -> Any:
    """Return a type whose Structs refuse fields that they do not know, and miss those that are always there."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields, there = [], always_there(kind)
        for field in msgspec.structs.fields(kind):
            given: dict[str, Any] = {"name": field.encode_name}
            if field.encode_name not in there:
                given["default"] = None if field.default is NODEFAULT else field.default
            fields.append((field.name, strict(field.type), msgspec.field(**given)))
        form = kind.__struct_config__
        return msgspec.defstruct(
            kind.__name__, fields, forbid_unknown_fields=True, kw_only=True, tag=form.tag, tag_field=form.tag_field,
            array_like=form.array_like,
        )  # fmt: skip
    inner, origin = get_args(kind), get_origin(kind)
    if not inner or origin is Literal:
        return kind
    if origin is Annotated:
        return Annotated[(strict(inner[0]), *inner[1:])]
    if origin in (dict, list, tuple):
        return origin[tuple(map(strict, inner))]
    return functools.reduce(operator.or_, map(strict, inner))


class AnswersChecked:
    """Passes everything on to an app, and notes answers that are not what their route declares.

    Attributes:
        answered: method and path of the routes that answered with success.
        lies: what was wrong, one sentence each.
    """

    def __init__(self, app: FastAPI) -> None:
        self.answered: set[str] = set()
        self.lies: list[str] = []
        self._app: ASGIApp = app
        self._routes: dict[tuple[str, str], tuple[re.Pattern[str], dict[str, DeclaredBody]]] = {}
        for method, path, status, one in declared(app.routes):
            known = self._routes.setdefault((method, path), (compile_path(path)[0], {}))
            known[1][status] = one

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = bytearray()
        start: dict[str, Any] = {}

        async def listen(message: Message) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
            elif start.get("status") and JSON in dict(start["headers"]).get(b"content-type", b"").decode():
                body.extend(message.get("body", b""))
            await send(message)

        await self._app(scope, receive, listen if scope["type"] == "http" else send)
        if start:
            packed = body and dict(start["headers"]).get(b"content-encoding") == b"gzip"
            whole = gzip.decompress(body) if packed else bytes(body)
            self._check(scope["method"], scope["path"], start["status"], whole)

    def _check(self, method: str, path: str, status: int, body: bytes) -> None:
        for (allowed, template), (pattern, found) in self._routes.items():
            if allowed == method and pattern.match(path):
                one = found.get(str(status), found["default"] if status >= 400 else None)
                self._decode(f"{method} {template}", status, None if one is None else one.kind, body)
                if status < 400:
                    self.answered.add(f"{method} {template}")
                return
        if body and path.startswith("/api/v1/") and status >= 400:
            self._decode(f"{method} {path}", status, ErrorAnswer, body)

    def _decode(self, what: str, status: int, kind: Any, body: bytes) -> None:
        if not body:
            return
        try:
            msgspec.json.decode(body, type=strict(kind))
        except (msgspec.DecodeError, TypeError) as error:
            self.lies.append(f"{what}, status {status}: {error}: {body[:2_000]!r}")
