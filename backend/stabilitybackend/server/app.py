"""The ASGI application of a server: its stages, their routes, the pages, and the checks around all of them."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from stabilitybackend.base.errors import SettingsError, StabilityBoardError
from stabilitybackend.base.struct_types import prepare_struct_types
from stabilitybackend.schema import kinds, severity, verdicts
from stabilitybackend.schema.gpus import GPUS
from stabilitybackend.schema.ranks import RANKS
from stabilitybackend.schema.runs import STATUSES
from stabilitybackend.server import stages
from stabilitybackend.server.api import (
    about,
    attempts,
    autopilot,
    batches,
    commands,
    compare,
    detectors,
    export,
    fleet,
    incidents,
    live,
    login,
    notes,
    output,
    run_table,
    runs,
    server,
    storage,
    trial,
    views,
)
from stabilitybackend.server.api.access import check_run
from stabilitybackend.server.api.answers import complete
from stabilitybackend.server.api.people import alerting, proposals, ratings
from stabilitybackend.server.api.people import audit as audit_calls
from stabilitybackend.server.http_guard import HttpGuard, security_headers
from stabilitybackend.server.stage import Server, Stage
from stabilitybackend.storage.redis_link import as_unavailable
from stabilityfrontend import PagesError, attach

__all__ = ["create_app", "stages_of"]

#: Calls of processes with a role "worker" or "pages"; probes are answered by every process.
_CALLS = (
    login, runs, about, output, run_table, notes, attempts, autopilot, batches, compare, commands, detectors, trial,
    fleet, incidents, storage, export, views, alerting, ratings, proposals, audit_calls, live,
)  # fmt: skip

_log = logging.getLogger(__name__)


class Api(Stage):
    """The HTTP calls that pages and programs make, and the browsers' feed."""

    def __init__(self, options: stages.Options) -> None:
        self._routers = [server.router]
        if options.has("worker", "pages"):
            self._routers += [*(one.router for one in _CALLS), *options.plugins.of("routes")]

    def routes(self) -> Sequence[APIRouter]:
        """Return the routers, those of probes first."""
        return self._routers


#: The stages of a server without roles and plug-ins.
CORE: tuple[type[Stage], ...] = (
    stages.Connections,
    stages.Membership,
    stages.Storage,
    stages.SignIn,
    stages.Access,
    stages.Runs,
    stages.Neighbours,
    stages.Intake,
    stages.Health,
    stages.Alerting,
    stages.RunLists,
    stages.Reading,
    stages.Metrics,
    Api,
)


def stages_of(options: stages.Options) -> list[type[Stage]]:
    """Return the stages of a process: those of the core and of its plug-ins."""
    return [*CORE, *(stage for stages_ in options.plugins.call("stages", options=options) for stage in stages_)]


def create_app(options: stages.Options) -> Application:
    """Return the application; it connects when it is started.

    Raises:
        SettingsError: a setting, or a page of a plug-in, can't be used.
    """
    prepare_struct_types()
    try:
        return Application(options)
    except PagesError as error:
        raise SettingsError(str(error), hint="docs/extending.md: A page and a panel") from error


class Application(FastAPI):
    """Serves the routes of all stages, with their middleware and the guard around everything.

    Starlette would put a middleware inside of its handler of unexpected errors, whose answers need the guard's headers
    too. The OpenAPI has the answers that the routes declare.

    Attributes:
        server: the stages, of which routes ask theirs (``stage.part``).
    """

    def __init__(self, options: stages.Options) -> None:
        super().__init__(
            title="Stabilityboard",
            version=options.version,
            lifespan=_lifespan,
            openapi_url=None,  # api/server.py has it, for callers with a key
            docs_url=None,  # FastAPI's page loads scripts from another host
            redoc_url=None,
        )
        self.server = Server(stages_of(options), options)
        for stage in self.server.stages:
            for router in stage.routes():
                self.include_router(router, dependencies=[Depends(check_run)])
        self.include_router(server.fallback)
        _add_error_handlers(self)
        tables = {
            "kinds": kinds.served(), "statuses": msgspec.to_builtins(STATUSES), "verdicts": verdicts.WORDS,
            "ranks": RANKS, "gpus": GPUS, "appearances": severity.served(),
        }  # fmt: skip
        self._signed = {path: most for found in options.plugins.call("signed_requests") for path, most in found.items()}
        self._headers = security_headers(attach(self, tables=tables, added=options.plugins.of("pages")))

    def build_middleware_stack(self) -> ASGIApp:
        """Return the application within guard and middleware."""
        access = self.server[stages.Access]
        app = super().build_middleware_stack()
        for stage in self.server.stages:
            app = stage.inside(app)
        app = HttpGuard(app, access.origins, access.authenticator, self._headers, self._signed)
        for stage in self.server.stages:
            app = stage.around(app)
        return app

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document."""
        before = self.openapi_schema
        document = super().openapi()
        return document if document is before else complete(document, self.routes)


@asynccontextmanager
async def _lifespan(app: Application) -> AsyncIterator[None]:
    for route in app.routes:  # FastAPI compiles them with the first request, which would wait for all
        route.matches({"type": "http", "method": "GET", "path": "/", "root_path": "", "headers": []})
    async with app.server.running():
        yield


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(StabilityBoardError)
    async def ours(request: Request, error: StabilityBoardError) -> JSONResponse:
        return _ours(request, error)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            reason = (first.get("ctx") or {}).get("error", first["msg"])
            return _answer(422, "bad_request", f"the request is no JSON: {reason}", "send one JSON object")
        place = ".".join(str(part) for part in first["loc"] if part not in ("body", "query"))
        given = first.get("input")
        shown = repr(given) if len(repr(given)) <= 80 else repr(given)[:80] + "..."
        message = f"{place or 'the request'} is {shown}: {first['msg']}"
        return _answer(422, "bad_request", message, "see /api/v1/openapi.json for what this call takes")

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        what = f"{request.method} {request.url.path}: {error.detail}"
        code = {404: "not_found", 405: "wrong_method"}.get(error.status_code, "bad_request")
        return _answer(error.status_code, code, what, "the calls are listed at /api/v1/openapi.json", error.headers)

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> JSONResponse:
        away = as_unavailable(error)
        if away is not None:
            return _ours(request, away)
        _log.exception("unexpected error in %s %s", request.method, request.url.path, exc_info=error)
        return _answer(500, "internal", "internal error", "see the server log")


def _ours(request: Request, error: StabilityBoardError) -> JSONResponse:
    content = error.as_json()
    if error.code == "redis_away" and request.method not in ("GET", "HEAD"):
        # A Redis that stood still may yet carry out its last command, and the server repeats none.
        content["error"]["hint"] = "what you sent may not be stored: look, then send it again"
    return JSONResponse(content, status_code=error.status)


def _answer(status: int, code: str, message: str, hint: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": {"code": code, "message": message, "hint": hint}}, status, headers)
