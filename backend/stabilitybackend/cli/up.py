"""Runs the whole server in this process: port, Redis, checks, app, in that order, and back again at the end."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import logging
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from redis.asyncio import Redis
from redis.exceptions import RedisError

from stabilitybackend.access.auth import KeyRing, check_exposure
from stabilitybackend.base.allocator import give_memory_back
from stabilitybackend.base.collector import CycleCollector
from stabilitybackend.base.errors import StartError
from stabilitybackend.base.settings import Settings
from stabilitybackend.cli.serving import bind, serve, stops_as_exit, url_of
from stabilitybackend.plugins import Plugins
from stabilitybackend.storage.redis_link import check_server, examine_redis, make_redis, shown_url
from stabilitybackend.storage.redis_link.server_lease import ServerLease
from stabilitybackend.storage.redis_server.embedded import EmbeddedRedis
from stabilitybackend.storage.redis_server.folder_lock import FolderLock

if TYPE_CHECKING:
    from fastapi import FastAPI

    from stabilitybackend.runs.archiving.installation import Installation

__all__ = ["run_up"]

_log = logging.getLogger(__name__)


def run_up(settings: Settings, on_up: Callable[[str, str], None], plugins: Plugins) -> None:
    """Serve until SIGINT or SIGTERM, then stop everything and leave with SystemExit(0).

    The port comes first: it is the likeliest thing to be wrong, and cheap to find out.

    Args:
        settings: of the server; port 0 takes a free one.
        on_up: called with the URL and a line about Redis once requests are answered.
        plugins: of this process.

    Raises:
        StartError: a requirement is missing or in use; the remedy is in the message and hint.
    """
    give_memory_back()
    with stops_as_exit() as stop, contextlib.ExitStack() as stack:
        settings.make_data_dir()
        bound = stack.enter_context(bind(settings.host, settings.port))
        settings = dataclasses.replace(settings, port=bound.getsockname()[1])
        lease = None
        if settings.redis_url is None:
            embedded = stack.enter_context(EmbeddedRedis(settings.data_dir, server=settings.redis_server))
            url, place = embedded.url, f"embedded, data in {settings.data_dir}"
        else:
            stack.enter_context(FolderLock(settings.data_dir / "server.lock"))
            url, place = settings.redis_url, shown_url(settings.redis_url)
            lease = None if settings.role else ServerLease(url_of(bound))
            if settings.role and settings.advertise_url is None:
                settings = dataclasses.replace(settings, advertise_url=_reached_at(bound))
        stop.check()
        server, installation = asyncio.run(_check(settings, url, lease, plugins))
        stop.check()
        app = _made(settings, url, lease, installation, plugins)
        try:
            serve(app, bound, settings, lambda address: on_up(address, f"{server} ({place})"), stop)
        finally:
            if lease is not None and lease.lost_to:
                raise StartError(f"this server was stalled, and {lease.lost_to} took over", hint="start one of them")
            if installation is not None and installation.refused:
                raise StartError(installation.refused, hint="docs/operations.md: Whose archive it is")


def _made(
    settings: Settings,
    redis_url: str,
    lease: ServerLease | None,
    installation: Installation | None,
    plugins: Plugins,
) -> FastAPI:
    gc.disable()  # nearly all that is made here stays: looking through it for garbage took a sixth of the start
    try:
        from stabilitybackend.server.app import create_app  # heavy (Dash, Polars): after all that may stop the start
        from stabilitybackend.server.stages import Options

        return create_app(Options(settings, redis_url, plugins, CycleCollector(), lease, installation))
    finally:
        gc.enable()


async def _note(redis: Redis, url: str) -> None:
    """Log the faults of an external Redis."""
    try:
        notes = await examine_redis(redis, url)
    except (RedisError, OSError):
        return  # it answered a moment ago; the server reports its absence by itself
    for note in notes:
        _log.warning("%s. %s", note.text, note.advice)


async def _check(
    settings: Settings, url: str, lease: ServerLease | None, plugins: Plugins
) -> tuple[str, Installation | None]:
    redis = make_redis(url)
    try:
        server = await check_server(redis, url)
        if settings.redis_url is not None:
            await _note(redis, url)
        await check_exposure(settings, KeyRing(redis))
        for check in plugins.call("before_start", settings=settings, redis=redis, location=shown_url(url)):
            await check
        if settings.role:
            await ServerLease.refuse_beside(redis, shown_url(url))
        elif lease is not None:
            await lease.take(redis, shown_url(url))
        installation = None
        if not settings.role or "worker" in settings.role:
            from stabilitybackend.runs.archiving.installation import Installation  # with Polars: after all checks

            installation = Installation.of(settings)
            await installation.begin(redis)
    finally:
        await redis.aclose()
    return server, installation


def _reached_at(bound: socket.socket) -> str:
    """Return where other processes reach a server that listens everywhere: this host's name."""
    host, port = bound.getsockname()[:2]
    return f"http://{socket.gethostname()}:{port}" if host in ("0.0.0.0", "::") else url_of(bound)
