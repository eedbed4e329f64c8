"""The HTTP API as the demo uses it: a small synchronous client, with the server's own words in its errors."""

from __future__ import annotations

import time
from typing import Any

import httpx

from stabilitybackend.errors import NotFound, StabilityBoardError, Unavailable
from stabilitybackend.schema.commands import Command, CommandRequest, read_command

__all__ = ["BoardClient"]

#: Longest wait for one answer, seconds. A busy two-core machine may need a few.
_TIMEOUT_S = 10.0
_POLL_S = 0.1


class BoardClient:
    """Talks to one server.

    Args:
        url: base address, such as ``http://127.0.0.1:8080``.
        api_key: sent as a bearer token where given.
    """

    def __init__(self, url: str, api_key: str | None = None) -> None:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        # trust_env=False: a proxy of the environment must not be between this machine and itself.
        self._http = httpx.Client(base_url=url, headers=headers, timeout=_TIMEOUT_S, trust_env=False)
        self.url = url

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def healthy(self) -> bool:
        """Return whether the server answers and its Redis is well."""
        try:
            return self._http.get("/healthz", timeout=2.0).status_code == 200
        except httpx.HTTPError:
            return False

    def wait_healthy(self, timeout_s: float) -> bool:
        """Return whether the server became healthy within ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        while not self.healthy():
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
        return True

    def run(self, run_id: str) -> dict[str, Any] | None:
        """Return the run, or None while the server does not know it."""
        try:
            return self._call("GET", f"/api/v1/runs/{run_id}")
        except NotFound:
            return None

    def incidents(self, run_id: str) -> list[dict[str, Any]]:
        """Return the incidents of a run, newest first; none while the server does not know it."""
        return self._list(run_id, "incidents")

    def checkpoints(self, run_id: str) -> list[dict[str, Any]]:
        """Return the checkpoints of a run, newest first."""
        return self._list(run_id, "checkpoints")

    def commands(self, run_id: str) -> list[Command]:
        """Return the commands of a run, newest first."""
        return [read_command(one) for one in self._list(run_id, "commands")]

    def segments(self, run_id: str) -> dict[str, Any]:
        """Return ``{"head", "segments"}`` of a run."""
        return self._call("GET", f"/api/v1/runs/{run_id}/segments")

    def series(self, run_id: str, metrics: list[str], view: str) -> list[dict[str, Any]]:
        """Return the series of ``metrics`` in full resolution; ``view`` is ``effective`` or ``all``."""
        params = {"metric": metrics, "view": view}
        return list(self._call("GET", f"/api/v1/runs/{run_id}/series", params=params)["series"])

    def issue(self, run_id: str, request: CommandRequest) -> Command:
        """Send a command and return it as the server took it."""
        return read_command(self._call("POST", f"/api/v1/runs/{run_id}/commands", json=request.given()))

    def command(self, run_id: str, command_id: str) -> Command:
        """Return one command with its history."""
        return read_command(self._call("GET", f"/api/v1/runs/{run_id}/commands/{command_id}"))

    def _list(self, run_id: str, what: str) -> list[dict[str, Any]]:
        try:
            return list(self._call("GET", f"/api/v1/runs/{run_id}/{what}")[what])
        except NotFound:
            return []

    def _call(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        try:
            answer = self._http.request(method, path, **request)
        except httpx.HTTPError as error:
            raise Unavailable(f"{method} {path} on {self.url} failed: {error}") from error
        if answer.status_code == 404:
            raise NotFound(f"{method} {path} on {self.url} answered 404")
        if answer.is_error:
            raise StabilityBoardError(
                f"{method} {path} on {self.url} answered {answer.status_code}: {answer.text[:500]}",
                status=answer.status_code,
            )
        body: dict[str, Any] = answer.json()
        return body
