"""Checks of this machine from the view of the server and the client, and their results.

Each check is a function of the settings that returns one result; its name is that of the result. An exception of one
becomes a failed result, and the others are still made.
"""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import sys
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any, TypeVar

from redis.exceptions import RedisError

from stabilitybackend.base.api_client import ApiClient
from stabilitybackend.base.errors import ArchiveError, StabilityBoardError
from stabilitybackend.base.settings import Settings
from stabilitybackend.cli.serving import bind, read_server_file
from stabilitybackend.hooks import CheckResult
from stabilitybackend.plugins import Plugins
from stabilitybackend.storage.archive.location import open_location
from stabilitybackend.storage.redis_link import check_server, examine_redis, make_redis, shown_url
from stabilitybackend.storage.redis_server.binary import choose_binary
from stabilitybackend.storage.redis_server.embedded import running_url

__all__ = ["ask", "examine"]

#: Below this many free bytes a long run fills the disk soon: a note, not a failure.
LOW_DISK_BYTES = 2 * 1024**3
OLDEST_PYTHON = (3, 11)
_Answer = TypeVar("_Answer")
_Found = TypeVar("_Found", CheckResult, CheckResult | None)


def examine(
    settings: Settings, plugins: Plugins, *, url: str | None = None, api_key: str | None = None
) -> list[CheckResult]:
    """Return the results of all checks, in the order in which they matter.

    Args:
        settings: of a server here.
        plugins: with checks of their own.
        url: the server that jobs on this machine send to (``STABILITY_URL``); None: the one on the data folder, if any.
        api_key: the key they send.
    """
    results = [_guarded(check, settings) for check in (_python, _data_folder, _archive, _redis)]
    if settings.redis_url is not None and results[-1].state == "ok":
        results += _redis_notes(settings.redis_url)
    results += [_guarded(check, settings) for check in (_installation, _port)]
    results.append(_guarded(lambda given: _server(given, url, api_key), settings, "server"))
    added = [_guarded(check, settings) for check in plugins.of("checks")]
    return [*results, _guarded(_gpu, settings), _guarded(_kernel_log, settings), *filter(None, added)]


def _guarded(check: Callable[[Settings], _Found], settings: Settings, name: str = "") -> _Found | CheckResult:
    name = name or check.__name__.strip("_").replace("_", " ")
    try:
        return check(settings)
    except StabilityBoardError as error:
        return CheckResult(name, "fail", error.message, error.hint)
    except Exception as error:  # whatever it is, the other checks still help
        return CheckResult(name, "fail", f"{type(error).__name__}: {error}", "please report this")


def _python(settings: Settings) -> CheckResult:
    text = f"{platform.python_implementation()} {platform.python_version()} on {platform.system()} {platform.machine()}"
    if sys.version_info < OLDEST_PYTHON:
        return CheckResult("python", "fail", text, "Python 3.11 or newer is needed")
    return CheckResult("python", "ok", f"{text}, stabilityboard {version('stabilityboard')}")


def _data_folder(settings: Settings) -> CheckResult:
    folder = settings.make_data_dir()
    probe = folder / f".doctor-{os.getpid()}"
    probe.write_bytes(b"x")
    probe.unlink()
    free = shutil.disk_usage(folder).free
    text = f"{folder} can be written, {free / 1024**3:.1f} GiB free"
    if free < LOW_DISK_BYTES:
        return CheckResult("data folder", "note", text, "a long run may fill it: give another --data-dir or make room")
    return CheckResult("data folder", "ok", text)


def _archive(settings: Settings) -> CheckResult:
    place = open_location(settings.archive)
    place.check()
    return CheckResult("archive", "ok", f"{place.base} can be written and read")


def _redis(settings: Settings) -> CheckResult:
    if settings.redis_url is not None:
        found = asyncio.run(ask(settings.redis_url, check_server))
        return CheckResult("redis", "ok", f"{found} at {shown_url(settings.redis_url)}")
    running = running_url(settings.data_dir)
    if running is not None:
        return CheckResult("redis", "ok", f"{asyncio.run(ask(running, check_server))} runs in the data folder")
    binary = choose_binary(settings.data_dir / "redis", settings.redis_server)
    return CheckResult("redis", "ok", f"the embedded server will be {binary}")


def _installation(settings: Settings) -> CheckResult:
    from stabilitybackend.runs.archiving.installation import Installation

    url = settings.redis_url or running_url(settings.data_dir)
    if url is None:
        text = "whose the archive is can't be compared: the embedded Redis does not run"
        return CheckResult("installation", "ok", text)

    async def found() -> str | None:
        redis = make_redis(url)
        try:
            return await Installation.of(settings).compare(redis)
        finally:
            await redis.aclose()

    try:
        known = asyncio.run(found())
    except (ArchiveError, RedisError) as error:  # which their own checks explain
        return CheckResult("installation", "note", f"whose archive {settings.archive} is, is not known: {error}")
    if known is None:
        return CheckResult(
            "installation", "ok", f"{settings.archive} is marked as this installation's when a server starts"
        )
    return CheckResult("installation", "ok", f"Redis and {settings.archive} belong to installation {known}")


def _redis_notes(url: str) -> list[CheckResult]:
    try:
        notes = asyncio.run(ask(url, examine_redis))
    except Exception as error:  # it answered a moment ago
        return [CheckResult("redis", "note", f"what is to be mended about it is not known: {error}", "try it again")]
    return [CheckResult("redis", "note", note.text, note.advice) for note in notes]


def _port(settings: Settings) -> CheckResult:
    place = f"{settings.host}:{settings.port}"
    if _our_server(settings):
        return CheckResult("port", "ok", f"{place} is in use by the server of this data folder")
    bind(settings.host, settings.port).close()
    if settings.beyond_loopback:
        text = f"{place} is free and can be reached from other machines"
        return CheckResult("port", "note", text, "up needs an API key there: stabilityboard keys create NAME")
    if settings.exposed:
        text = f"{place} is free, and people come to it as {settings.public_url or ', '.join(settings.trusted_hosts)}"
        return CheckResult("port", "note", text, "up needs an API key there: stabilityboard keys create NAME")
    return CheckResult("port", "ok", f"{place} is free")


def _server(settings: Settings, url: str | None, api_key: str | None) -> CheckResult:
    url = url or _our_server(settings)
    if url is None:
        return CheckResult("server", "note", "none runs on this data folder", "start one with: stabilityboard up")
    with ApiClient(url, api_key) as client:
        health = client.get("/healthz")
        runs = client.runs()[0]  # also checks the key
    blind = [run["run_id"] for run in runs if run["status"] == "running" and run["unwatched"]]
    if blind:
        few = ", ".join(blind[:3]) + (f" and {len(blind) - 3} more" if len(blind) > 3 else "")
        text = f"{url} answers; running without a loss that is watched: {few}"
        return CheckResult(
            "server", "note", text, "log the loss as 'loss', or under another name that the run's page lists"
        )
    return CheckResult("server", "ok", f"{url} answers: {health['status']}, version {health['version']}")


def _gpu(settings: Settings) -> CheckResult:
    from stabilityclient.agent.gpu.checkup import check_gpus

    found = check_gpus()
    return CheckResult("gpu", "ok" if found.well else "note", found.text, found.advice)


def _kernel_log(settings: Settings) -> CheckResult:
    from stabilityclient.agent.watch.kernel_log import KernelLog, names_our_pids

    log = KernelLog(environ=os.environ)
    log.close()
    if log.blind:
        text = f"{log.blind}: some Xids (79, 119) and out-of-memory kills are not seen"
        return CheckResult("kernel log", "note", text, log.do)
    if not names_our_pids():
        text = f"{log.path} can be read, but its process ids are those of the host"
        advice = (
            "only the control group then shows out-of-memory kills; share the host's pid namespace to see the process"
        )
        return CheckResult("kernel log", "note", text, advice)
    return CheckResult("kernel log", "ok", f"{log.path} can be read: Xids and out-of-memory kills are seen")


def _our_server(settings: Settings) -> str | None:
    facts = read_server_file(settings.data_dir)
    url, pid = facts.get("url"), facts.get("pid")
    if not isinstance(url, str) or not isinstance(pid, int):
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None  # it was killed and left its note behind
    except PermissionError:
        pass
    return url


async def ask(url: str, question: Callable[[Any, str], Awaitable[_Answer]]) -> _Answer:
    """Return the answer of a question about a Redis, with a connection of its own."""
    redis = make_redis(url)
    try:
        return await question(redis, url)
    finally:
        await redis.aclose()
