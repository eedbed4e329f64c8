"""Talks to a running server over its HTTP API, for the command line."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

import httpx

from stabilitybackend.cli.serving import read_server_file
from stabilitybackend.errors import StabilityBoardError, Unavailable
from stabilitybackend.settings import Settings

__all__ = ["DEFAULT_URL", "ApiClient", "server_url"]

#: Where a server listens that was started with no options.
DEFAULT_URL = "http://127.0.0.1:8080"
#: Seconds for one call.
TIMEOUT_S = 15.0
#: Runs asked for in one call.
PAGE_RUNS = 500


def server_url(given: str | None, env: Mapping[str, str], data_dir: Path) -> str:
    """Return the server to ask: as given, else ``STABILITY_URL``, else the one that runs on ``data_dir``."""
    url = given or env.get("STABILITY_URL") or read_server_file(data_dir).get("url") or DEFAULT_URL
    return str(url).rstrip("/")


class ApiClient:
    """One server, by its URL; a context manager.

    Args:
        url: ``http://host:port``.
        api_key: sent as ``Authorization: Bearer``; None sends nothing.
    """

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self.url = url
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        try:
            # trust_env off: a proxy of the machine must not be between us and our own server.
            # Without TLS no certificates are read, which takes 40 ms.
            self._http = httpx.Client(
                base_url=url, headers=headers, timeout=TIMEOUT_S, trust_env=False, verify=not url.startswith("http:")
            )
        except httpx.InvalidURL as error:
            raise StabilityBoardError(f"{url!r} is no URL: {error}", hint="expected http://host:port") from error

    @classmethod
    def of(cls, url: str | None, api_key: str | None, data_dir: Path | None) -> ApiClient:
        """Return the client of the server that a command's options mean."""
        settings = Settings.from_env_and_args(os.environ, data_dir=data_dir)
        return cls(server_url(url, os.environ, settings.data_dir), api_key)

    def get(self, path: str) -> Any:
        """Return the JSON at ``path``. Raises as ``call`` does."""
        return self.call("GET", path)

    def runs(self, limit: int | None = None) -> tuple[list[dict[str, Any]], int]:
        """Return the newest ``limit`` runs, or all, and how many there are. Raises as ``call`` does."""
        runs: list[dict[str, Any]] = []
        cursor = ""
        while True:
            wanted = PAGE_RUNS if limit is None else min(limit - len(runs), PAGE_RUNS)
            page = self.get(f"/api/v1/runs?limit={wanted}{cursor}")
            runs += page["runs"]
            following = page.get("next")
            # A server of before pages names neither, and answers with what it has.
            if following is None or (limit is not None and len(runs) >= limit):
                return runs, max(len(runs), int(page.get("total") or 0))
            cursor = f"&cursor={quote(following)}"

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Send ``body`` as JSON and return the answer's JSON. Raises as ``call`` does."""
        return self.call("POST", path, body)

    def call(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, timeout_s: float | None = TIMEOUT_S
    ) -> Any:
        """Make one call and return the answer's JSON.

        Args:
            timeout_s: seconds; None for a call that may take as long as it takes.

        Raises:
            Unavailable: no answer came.
            StabilityBoardError: the server refused; code, message, hint and status are its own.
        """
        try:
            answer = self._http.request(method, path, json=body, timeout=timeout_s)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise Unavailable(
                f"no server answers at {self.url} ({error or type(error).__name__})",
                hint="start one with: stabilityboard up; or name it with --url or STABILITY_URL",
            ) from error
        try:
            content = answer.json()
        except ValueError:
            content = None
        if answer.is_success and content is not None:
            return content
        raise _refusal(answer, content)

    @contextmanager
    def stream(self, path: str, query: Mapping[str, Any], timeout_s: float) -> Iterator[httpx.Response]:
        """Give the answer of ``GET path`` as it comes.

        Args:
            timeout_s: seconds without a byte.

        Raises:
            httpx.HTTPError: the connection broke.
            StabilityBoardError: the server refused.
        """
        with self._http.stream("GET", path, params=query, timeout=timeout_s) as answer:
            if not answer.is_success:
                answer.read()
                try:
                    content = answer.json()
                except ValueError:
                    content = None
                raise _refusal(answer, content)
            yield answer

    def __enter__(self) -> ApiClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()


def _refusal(answer: httpx.Response, content: Any) -> StabilityBoardError:
    problem = content.get("error") if isinstance(content, dict) else None
    problem = problem if isinstance(problem, dict) else {}
    return StabilityBoardError(
        str(problem.get("message") or f"{answer.url} answered {answer.status_code}, expected JSON"),
        hint=str(problem.get("hint") or ("" if problem else "is this the URL of a Stabilityboard server?")),
        code=str(problem.get("code") or "http"),
        status=answer.status_code,
    )
