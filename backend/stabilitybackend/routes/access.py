"""Who may call: the dependencies that every route takes."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends
from starlette.requests import HTTPConnection

from stabilitybackend.auth import Authenticator, Identity
from stabilitybackend.runs.manager import RunManager
from stabilitybackend.runs.worker import RunWorker

__all__ = ["Commander", "Manager", "Reader", "Worker", "identify"]


async def identify(connection: HTTPConnection) -> Identity:
    """Return who makes the call.

    Raises:
        Unauthorized: a key is needed and none, or a wrong one, came.
    """
    authenticator: Authenticator = connection.app.state.authenticator
    return await authenticator.authenticate(connection.headers, connection.cookies)


async def _reader(connection: HTTPConnection) -> Identity:
    identity = await identify(connection)
    identity.require("read")
    return identity


async def _commander(connection: HTTPConnection) -> Identity:
    identity = await identify(connection)
    identity.require("command")
    return identity


def _manager(connection: HTTPConnection) -> RunManager:
    manager: RunManager = connection.app.state.manager
    return manager


async def _worker(run_id: str, manager: Annotated[RunManager, Depends(_manager)]) -> RunWorker:
    return await manager.get(run_id)


Reader = Annotated[Identity, Depends(_reader)]
Commander = Annotated[Identity, Depends(_commander)]
Manager = Annotated[RunManager, Depends(_manager)]
#: The worker of the run that the path names; 404 where there is no such run.
Worker = Annotated[RunWorker, Depends(_worker)]
