"""Who may call: the dependencies that every route takes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Depends
from starlette.requests import HTTPConnection

from stabilitybackend.access.auth import Principal
from stabilitybackend.access.people.proxy import person_of
from stabilitybackend.base.errors import Forbidden, NotFound, Unauthorized, Unavailable
from stabilitybackend.runs.manager import RunManager
from stabilitybackend.runs.worker import RunWorker
from stabilitybackend.server.stage import Server, part
from stabilitybackend.server.stages import Access, Alerting, Connections, Options, Runs

__all__ = [
    "Administrator", "AlertingPart", "Caller", "Commander", "Manager", "Proposer", "Reader", "Record", "Recorded",
    "RedisClients", "StartOptions", "Worker", "audit", "check_project", "check_run", "identify", "server_of",
    "until_refused",
]  # fmt: skip

#: How often it is asked whether the key or the session behind an open WebSocket still works, seconds.
RECHECK_S = 5.0


def server_of(connection: HTTPConnection) -> Server:
    """Return the server that answers a request."""
    server: Server = connection.app.server
    return server


async def identify(connection: HTTPConnection) -> Principal:
    """Return who makes the call.

    Raises:
        Unauthorized: a key is needed, and the request has none or a wrong one.
    """
    authenticator = server_of(connection)[Access].authenticator
    return await authenticator.authenticate(connection.headers, connection.cookies, person_of(connection.scope))


async def until_refused(connection: HTTPConnection, scope: str) -> None:
    """Return when the key or the session behind an open WebSocket no longer works."""
    while True:
        await asyncio.sleep(RECHECK_S)
        try:
            (await identify(connection)).require(scope)
        except (Unauthorized, Forbidden):
            return
        except Unavailable:
            continue


async def check_project(identity: Principal, manager: RunManager, run_id: str) -> None:
    """Refuse a run of a project that is no business of ``identity``, with the answer for a run that there is not.

    Raises:
        NotFound: it is, or there is no such run.
    """
    if identity.project is not None and not identity.sees(await manager.project(run_id)):
        raise NotFound(f"there is no run {run_id!r}", hint="GET /api/v1/runs lists them")


async def _manager(runs: Annotated[Runs, part(Runs)]) -> RunManager:
    return runs.manager


async def check_run(connection: HTTPConnection, manager: Annotated[RunManager, Depends(_manager)]) -> None:
    """Refuse a call about a run of a foreign project, before anything of the run is read.

    It is before every route, so that none with a run in its path can forget it.
    """
    run_id = connection.path_params.get("run_id")
    if run_id is not None:
        await check_project(await identify(connection), manager, run_id)


def _with_scope(scope: str) -> Callable[[Principal], Awaitable[Principal]]:
    async def allowed(identity: Annotated[Principal, Depends(identify)]) -> Principal:
        identity.require(scope)
        return identity

    return allowed


async def _worker(run_id: str, manager: Annotated[RunManager, Depends(_manager)]) -> RunWorker:
    return await manager.get(run_id)


async def audit(connection: HTTPConnection, who: Principal, action: str, target: str = "", detail: str = "") -> None:
    """Write an action and the address of its author into the audit log. Raises Unavailable when Redis is away."""
    log = server_of(connection)[Access].audit
    run = str(connection.path_params.get("run_id", ""))
    await log.add(who.name, who.key_id, action, target, _from(connection, detail), run)


def _from(connection: HTTPConnection, detail: str = "") -> str:
    address = "" if connection.client is None else f"from {connection.client.host}"
    return "; ".join(filter(None, (detail, address)))


class Record:
    """Audits a call, with the run of its path."""

    def __init__(self, connection: HTTPConnection) -> None:
        self._connection = connection

    async def did(self, who: Principal, action: str, target: str = "", detail: str = "") -> None:
        """Audit an action. Raises Unavailable when Redis is away, although the action may be done."""
        await audit(self._connection, who, action, target, detail)

    async def saw(self, who: Principal, action: str) -> None:
        """Audit a read of restricted data. Raises Unavailable when Redis is away."""
        log = server_of(self._connection)[Access].audit
        run = str(self._connection.path_params.get("run_id", ""))
        await log.saw(who.name, who.key_id, action, run, _from(self._connection))


async def _record(connection: HTTPConnection) -> Record:
    return Record(connection)


#: A caller with any valid key.
Caller = Annotated[Principal, Depends(identify)]
Reader = Annotated[Principal, Depends(_with_scope("read"))]
Proposer = Annotated[Principal, Depends(_with_scope("propose"))]
Commander = Annotated[Principal, Depends(_with_scope("command"))]
Administrator = Annotated[Principal, Depends(_with_scope("admin"))]
Manager = Annotated[RunManager, Depends(_manager)]
StartOptions = Annotated[Options, part(Options)]
RedisClients = Annotated[Connections, part(Connections)]
AlertingPart = Annotated[Alerting, part(Alerting)]
Recorded = Annotated[Record, Depends(_record)]
#: The worker of the run that the path names; 404 where there is no such run.
Worker = Annotated[RunWorker, Depends(_worker)]
