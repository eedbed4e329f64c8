"""The demo's run as the server reports it over HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from stabilitybackend.base.api_client import ApiClient, run_path
from stabilitybackend.base.errors import StabilityBoardError
from stabilitybackend.schema.commands import Command, CommandRequest, read_command

__all__ = ["DemoRun", "wait_healthy"]

_HEALTH_TIMEOUT_S = 2.0
_POLL_S = 0.1


def wait_healthy(client: ApiClient, timeout_s: float, alive: Callable[[], bool] = lambda: True) -> bool:
    """Return whether the server reported itself healthy within ``timeout_s``, while ``alive`` is true."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            client.call("GET", "/healthz", timeout_s=_HEALTH_TIMEOUT_S)
            return True
        except StabilityBoardError:
            if not alive() or time.monotonic() > deadline:
                return False
        time.sleep(_POLL_S)


class DemoRun:
    """One run of one server."""

    def __init__(self, client: ApiClient, run_id: str) -> None:
        self.run_id = run_id
        self.page = f"{client.url}/runs/{run_id}"
        self._client = client
        self._path = run_path(run_id)

    def facts(self) -> dict[str, Any] | None:
        """Return the run, or None while the server does not know it."""
        found: dict[str, Any] | None = self._known("")
        return found

    def last_step(self) -> int:
        """Return the newest step, 0 before the first."""
        return (self.facts() or {}).get("last_step") or 0

    def incidents(self) -> list[dict[str, Any]]:
        """Return the incidents, newest first; none while the server does not know the run."""
        return list((self._known("/incidents") or {"incidents": []})["incidents"])

    def checkpoints(self) -> list[dict[str, Any]]:
        """Return the checkpoints, newest first."""
        return list(self._client.get(f"{self._path}/checkpoints")["checkpoints"])

    def commands(self) -> list[Command]:
        """Return the commands, newest first."""
        return [read_command(one) for one in self._client.get(f"{self._path}/commands")["commands"]]

    def segments(self) -> list[dict[str, Any]]:
        """Return the segments."""
        return list(self._client.get(f"{self._path}/segments")["segments"])

    def series(self, metric: str, view: str) -> list[dict[str, Any]]:
        """Return the series of ``metric`` in full resolution; ``view`` is ``effective`` or ``all``."""
        query = urlencode({"metric": metric, "view": view})
        return list(self._client.get(f"{self._path}/series?{query}")["series"])

    def issue(self, request: CommandRequest) -> Command:
        """Send a command and return it as the server took it."""
        return read_command(self._client.call("POST", f"{self._path}/commands", request.given()))

    def command(self, command_id: str) -> Command:
        """Return one command with its history."""
        return read_command(self._client.get(f"{self._path}/commands/{command_id}"))

    def _known(self, place: str) -> Any:
        try:
            return self._client.get(self._path + place)
        except StabilityBoardError as error:
            if error.status != 404:
                raise
            return None
