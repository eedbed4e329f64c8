"""Wires the parts of the server into one ASGI application. Everything that starts here stops here, in reverse order."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

import msgspec
from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from stabilitybackend.access.audit import AuditLog
from stabilitybackend.access.auth import Authenticator, KeyRing, check_exposure
from stabilitybackend.access.origins import Origins
from stabilitybackend.access.sessions import Sessions
from stabilitybackend.alerts.actions import AlertActions
from stabilitybackend.alerts.proposals import ProposalBook
from stabilitybackend.alerts.ratings import Ratings
from stabilitybackend.alerts.service import alert_rules, alerting_service, heartbeat, receivers
from stabilitybackend.base.collector import CycleCollector
from stabilitybackend.base.errors import RedisStartError, SettingsError, StabilityBoardError
from stabilitybackend.base.judging_lag import JudgingLag
from stabilitybackend.base.loop_lag import LoopLag
from stabilitybackend.base.settings import ROLES, Settings
from stabilitybackend.base.shared_answers import SharedAnswers
from stabilitybackend.base.steady_clock import SteadyClock
from stabilitybackend.base.struct_types import prepare_struct_types
from stabilitybackend.base.tasks import Watched, end
from stabilitybackend.ingest.durability import Durability
from stabilitybackend.ingest.gateway import Gateway
from stabilitybackend.ingest.gateway import router as agent_router
from stabilitybackend.ingest.ingest import Ingest
from stabilitybackend.judging.liveness.budgets import Limits
from stabilitybackend.plugins import Plugins
from stabilitybackend.run_table.digest_updates import DigestUpdater
from stabilitybackend.run_table.table import RunTables
from stabilitybackend.runs.archiving.archiver import ArchiveFiles
from stabilitybackend.runs.archiving.installation import Installation
from stabilitybackend.runs.archiving.restart_files import RestartShare
from stabilitybackend.runs.archiving.retention import Retention
from stabilitybackend.runs.derived.unknown_costs import work_out
from stabilitybackend.runs.index import RunIndex
from stabilitybackend.runs.manager import RunManager
from stabilitybackend.runs.ownership.fence import ANY, Ownership
from stabilitybackend.schema import kinds, severity, verdicts
from stabilitybackend.schema.gpus import GPUS
from stabilitybackend.schema.ranks import RANKS
from stabilitybackend.schema.runs import STATUSES
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
from stabilitybackend.server.api.people import alerting, pagerduty, proposals, ratings, slack
from stabilitybackend.server.api.people import audit as audit_calls
from stabilitybackend.server.api.people import oidc as sign_in_calls
from stabilitybackend.server.api.reading import ReadingThreads
from stabilitybackend.server.http_guard import HttpGuard, security_headers
from stabilitybackend.server.metrics import ServerMetrics, registry
from stabilitybackend.storage.archive.cache import ByteCache
from stabilitybackend.storage.archive.location import open_location
from stabilitybackend.storage.redis_link import as_unavailable, check_server, make_redis
from stabilitybackend.storage.storing import Storing
from stabilitybackend.storage.views import SavedViews
from stabilityfrontend import PagesError, attach
from stabilityplugins.oidc.sign_in import OidcSignIn
from stabilityplugins.other_runs.library import Library
from stabilityplugins.other_runs.service import OtherRuns
from stabilityplugins.scale.membership.server_claim import ServerClaim
from stabilityplugins.scale.relay.pages import Relay
from stabilityplugins.scale.relayed_actions import RelayedActions
from stabilityplugins.scale.roles.process import RoleProcess

__all__ = ["create_app"]

MIB = 1024 * 1024
#: Redis connections for storing frames (one writer) and for what comes before: keys, and an agent's numbers.
INGEST_CONNECTIONS = 8
#: Redis connections of alerting: each receiver waits on one and notes what it sent on another.
ALARM_CONNECTIONS = 16

_log = logging.getLogger(__name__)


def create_app(
    settings: Settings,
    redis_url: str,
    plugins: Plugins,
    collector: CycleCollector | None = None,
    claim: ServerClaim | None = None,
    installation: Installation | None = None,
) -> FastAPI:
    """Return the application; it connects when it is started, not before.

    Args:
        settings: what the server runs with.
        redis_url: the Redis or Valkey that holds the runs (the embedded one's, where that is used).
        plugins: of this process; their tables are filled.
        collector: of a process that is there for this app alone; without it Python's stays as it is.
        claim: on the Redis, taken; it is kept while the application runs.
        installation: whose archive it is, looked at; it is kept likewise.
    """
    prepare_struct_types()
    redis = make_redis(redis_url)
    # Connections of their own: whoever reads much must not keep frames from being stored or keys from being known.
    door = make_redis(redis_url, connections=INGEST_CONNECTIONS)
    alarm = make_redis(redis_url, connections=ALARM_CONNECTIONS)
    probe, follower = (make_redis(redis_url, connections=1) for _ in range(2))
    ring = KeyRing(door)
    sessions = Sessions(door)
    oidc = OidcSignIn.of(settings, door)
    people = (lambda person: None) if oidc is None else oidc.may
    authenticator = Authenticator(ring, sessions, key_needed=settings.exposed or settings.people_sign_in, people=people)
    origins = Origins.of(settings)
    ingest = Ingest(door)
    storing = Storing(probe, SteadyClock(time.time), lambda why: manager.note_storing(why), several=bool(settings.role))
    cache = ByteCache(int(settings.cache_mib * MIB))
    restart = RestartShare(in_redis=True) if settings.role else RestartShare(settings.data_dir / "restart")
    files = ArchiveFiles(open_location(settings.archive), cache, storing.now, restart=restart)
    limits = Limits(
        hang_floor_s=settings.hang_floor_s,
        hang_ceiling_s=settings.hang_ceiling_s,
        agent_lost_s=settings.agent_lost_s,
    )

    ours = version("stabilityboard")
    roles = frozenset(settings.role or ROLES)
    process = None
    address = settings.advertise_url or f"http://{settings.host}:{settings.port}"
    if settings.role:
        process = RoleProcess(door, redis_url, settings.role, address, ours)

    async def replaceable(run_id: str) -> str:
        if claim is not None:
            await claim.may_take_runs(redis)
        return ANY

    ownership = Ownership(replaceable=replaceable) if process is None else process.ownership
    manager = RunManager(
        redis, storing.now, files, int(settings.window_mib * MIB), limits, ownership, placed=process is not None
    )
    relay = None
    if process is not None:
        process.attach(manager, ingest, storing)
        relay = Relay(redis, process.members, manager, authenticator, storing.now)
    manager.two_persons = settings.two_persons
    ingest.refused, ingest.beside = storing.failed, manager.arrivals.handed if process is None else None
    manager.lag = JudgingLag(storing.redis_now)

    watched = Watched()

    def trouble() -> str:
        return server.trouble(manager, storing, watched, alerts)

    audit = AuditLog(redis)
    sinks = receivers(plugins.of("channels"))
    rules = alert_rules(alarm, settings, sinks, storing.now)
    ratings_kept = Ratings(redis)
    actions = AlertActions(
        manager, RunIndex(redis), audit, rules, ProposalBook(redis), ratings_kept, two_persons=settings.two_persons
    )
    relayed = actions if relay is None else RelayedActions(actions, relay.calls)
    fits = (lambda: True) if process is None else lambda: process.members.takes_part
    alerts = alerting_service(alarm, settings, sinks, rules, trouble, relayed, clock=storing.now, may_send=fits)
    actions.notified = alerts.notified
    beat = heartbeat(alerts.outcomes, trouble)
    loop_lag = LoopLag(time.monotonic)
    other_runs = OtherRuns(manager, Library(manager, RunIndex(redis)))
    run_tables = RunTables(manager, RunIndex(redis), news=None if relay is None else relay.news)
    run_digests = DigestUpdater(manager, run_tables)
    run_retention = Retention(manager, RunIndex(redis), storing.now, audit)

    def nobody_here() -> bool:
        return not (gateway.counts.connections or manager.browsers())

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        try:
            await check_server(redis, redis_url)
        except RedisStartError as error:
            if error.code != "redis_away":
                raise
            # It was there when ``up`` asked, a moment ago: it is waited for, as while the server runs.
            _log.warning("%s; the server goes on when it is back", error.message)
        for route in app.routes:  # FastAPI works them out when the first request comes, which would wait for all
            route.matches({"type": "http", "method": "GET", "path": "/", "root_path": "", "headers": []})
        await check_exposure(settings, ring)
        await storing.probe()  # it tells how far our clock is off, too
        if process is not None:
            await process.enter()
        stop = asyncio.Event()
        work = {"storing": storing.follow(), "loop-lag": loop_lag.follow()}
        if "door" in roles:
            ingest.start()
            work["durability"] = Durability(follower, gateway.connections).follow()
        if roles != {"door"}:
            await manager.start()
        if "worker" in roles:
            work |= {
                "other-runs": other_runs.follow(), "rollback-costs": work_out(manager),
                "run-digests": run_digests.follow(),
            }  # fmt: skip
            if settings.retention_days is not None:
                work["retention"] = run_retention.follow(settings.retention_days)
        if claim is not None:
            work["server-claim"] = claim.keep(probe)
        if installation is not None:
            work["installation"] = installation.follow(probe)
        if collector is not None:
            collector.start()
            work["collector"] = collector.follow(nobody_here)
        sending = set[asyncio.Task[None]]()
        if "alerting" in roles:
            sending.add(asyncio.create_task(alerts.run(stop), name="alerting"))
            if beat is not None:
                work["heartbeat"] = beat.run(stop)
        if relay is not None:
            work |= relay.work()
        others = [asyncio.create_task(each, name=name) for name, each in work.items()]
        watched.add(*sending, *others)
        if process is not None:
            watched.add(*process.start())
        try:
            yield
        finally:
            stop.set()
            if sending:
                await asyncio.wait(sending, timeout=2.0)
            await end(*sending, *others)
            if collector is not None:
                collector.stop()
            if process is not None:
                await process.stop()
            await manager.stop()
            if relay is not None:
                await relay.stop()
            await ingest.stop()
            if claim is not None:
                await claim.release(redis)
            if oidc is not None:
                await oidc.provider.close()
            for client in (follower, probe, alarm, door, redis):
                await client.aclose()

    app = _GuardedApp(
        title="Stabilityboard",
        version=ours,
        lifespan=lifespan,
        openapi_url=None,  # api/server.py has it, for those who may call
        docs_url=None,  # FastAPI's page loads scripts from another host
        redoc_url=None,
    )
    app.state.settings = settings
    app.state.redis = redis
    app.state.authenticator = authenticator
    app.state.origins = origins
    app.state.sessions = sessions
    app.state.oidc = oidc
    app.state.refusals = sign_in_calls.Refusals(audit)
    app.state.audit = audit
    app.state.views = SavedViews(redis)
    app.state.alerting = alerts
    app.state.alert_rules = rules
    app.state.ratings = ratings_kept
    app.state.manager = manager
    app.state.run_tables = run_tables
    app.state.storing = storing
    app.state.work = watched
    app.state.heartbeat = beat
    app.state.retention = run_retention if relay is None else relay.retention(run_retention)
    app.state.ingest = ingest
    app.state.version = ours
    app.state.reading_threads = ReadingThreads()
    app.state.shared_answers = shared_answers = SharedAnswers()
    app.state.exports = OrderedDict()
    app.state.trials = trial.Trials()
    app.state.started = time.monotonic()
    services = manager if process is None or process.door is None else process.door
    gateway = Gateway(ingest, authenticator, services, server_version=ours, clock=storing.now, takes_output=True)
    if services is not manager:
        gateway.types = {}
    app.state.gateway = gateway
    app.state.metrics = registry(
        ServerMetrics(manager, gateway, storing, alerts, loop_lag, collector or CycleCollector(), shared_answers)
    )
    app.state.members = None if process is None else process.members
    app.state.feeds = None if relay is None else relay.feeds
    rooms = (server,) if not roles & {"worker", "pages"} else (
        server, login, runs, about, output, run_table, notes, attempts, autopilot, batches, compare, commands,
        detectors, trial, fleet, incidents, storage, export, views, alerting, pagerduty, ratings, proposals, slack,
        audit_calls, sign_in_calls,
    )  # fmt: skip
    added = plugins.of("routes") if roles & {"worker", "pages"} else []
    for router in (*(room.router for room in rooms), *added):
        app.include_router(router, dependencies=[Depends(check_run)])
    if roles & {"worker", "pages"}:
        app.include_router(live.router)
    if "door" in roles:
        app.include_router(agent_router(gateway))
    app.include_router(server.fallback)
    _add_error_handlers(app)
    tables = {
        "kinds": kinds.served(), "statuses": msgspec.to_builtins(STATUSES), "verdicts": verdicts.WORDS, "ranks": RANKS,
        "gpus": GPUS, "appearances": severity.served(),
    }  # fmt: skip
    try:
        headers = security_headers(attach(app, tables=tables, added=plugins.of("pages")))
    except PagesError as error:
        raise SettingsError(str(error), hint="docs/extending.md: A page and a panel") from error
    if relay is None:
        app.guard = lambda inner: HttpGuard(inner, origins, authenticator, headers)
    else:
        app.guard = lambda inner: relay.around(HttpGuard(relay.inside(inner), origins, authenticator, headers))
    return app


class _GuardedApp(FastAPI):
    """Has its guard around everything: Starlette would put it within what answers to an exception of ours.

    Its OpenAPI has the answers that the routes declare.
    """

    guard: Callable[[ASGIApp], ASGIApp]

    def build_middleware_stack(self) -> ASGIApp:
        return self.guard(super().build_middleware_stack())

    def openapi(self) -> dict[str, Any]:
        known = self.openapi_schema
        document = super().openapi()
        return document if document is known else complete(document, self.routes)


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
    if error.code == "redis_away" and request.method not in ("GET", "HEAD"):
        # Nobody here tries it again; and a Redis that stood still may yet do what it was sent.
        error.hint = "what you sent may not be stored: look, then send it again"
    return JSONResponse(error.as_json(), status_code=error.status)


def _answer(status: int, code: str, message: str, hint: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": {"code": code, "message": message, "hint": hint}}, status, headers)
