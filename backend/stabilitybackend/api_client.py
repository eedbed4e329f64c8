"""Talks to a running server over its HTTP API, for the command line and the demo."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any
from urllib.parse import quote

import httpx

from stabilitybackend.errors import StabilityBoardError, Unavailable

__all__ = ["ApiClient", "run_path"]

#: Seconds for one call.
TIMEOUT_S = 15.0
#: Runs asked for in one call.
PAGE_RUNS = 500


def run_path(run_id: str) -> str:
    """Return where a run is in the API."""
    return f"/api/v1/runs/{quote(run_id, safe='')}"


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
            if page["next"] is None or (limit is not None and len(runs) >= limit):
                return runs, page["total"]
            cursor = f"&cursor={quote(page['next'])}"

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
        content = _content(answer)
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
                raise _refusal(answer, _content(answer))
            yield answer

    def __enter__(self) -> ApiClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()


def _content(answer: httpx.Response) -> Any:
    """Return the JSON of an answer, None for one that is none."""
    try:
        return answer.json()
    except ValueError:
        return None


def _refusal(answer: httpx.Response, content: Any) -> StabilityBoardError:
    problem = content.get("error") if isinstance(content, dict) else None
    problem = problem if isinstance(problem, dict) else {}
    return StabilityBoardError(
        str(problem.get("message") or f"{answer.url} answered {answer.status_code}, expected JSON"),
        hint=str(problem.get("hint") or ("" if problem else "is this the URL of a Stabilityboard server?")),
        code=str(problem.get("code") or "http"),
        status=answer.status_code,
    )
