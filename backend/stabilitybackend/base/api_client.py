"""Talks to a running server over its HTTP API, for the command line and the demo."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any
from urllib.parse import quote, urlencode

import httpx

from stabilitybackend.base.errors import BadRequest, NotFound, SettingsError, StabilityBoardError, Unavailable
from stabilitybackend.base.settings import is_address

__all__ = ["ApiClient", "run_path"]

#: Seconds for one call.
TIMEOUT_S = 15.0
#: Runs asked for in one call.
PAGE_RUNS = 500
#: Runs looked through for a name, and those that are listed where several have it.
MAX_NAMED, MAX_LISTED = 5_000, 8
_KEY = re.compile(r"[!-~]+")
#: A call of the API in a hint of the server; the last part of its path is the kind of its list.
_CALL = re.compile(r"(?:GET|POST|PUT|DELETE) (?:/api/v1|\.\.\.)/(?:[\w{}.:-]+/)*([\w{}]+)")
#: List of a call -> the command that shows it; all else is on the page of the run.
_COMMANDS = {
    "runs": "stabilityboard runs",
    "commands": "stabilityboard commands RUN",
    "proposals": "stabilityboard commands RUN",
    "plan": "stabilityboard plan RUN",
    "detectors": "stabilityboard detectors RUN",
    "interruptions": "stabilityboard interruptions --json",
}


def run_path(run_id: str) -> str:
    """Return where a run is in the API."""
    return f"/api/v1/runs/{quote(run_id, safe='')}"


class ApiClient:
    """One server, by its URL; a context manager.

    Args:
        url: ``http://host:port``; without a scheme it is http.
        api_key: sent as ``Authorization: Bearer``; None sends nothing.

    Raises:
        SettingsError: one of them has a wrong form.
    """

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self.url = (url if "://" in url else f"http://{url}").rstrip("/")
        if not is_address(self.url):
            raise SettingsError(
                f"the server's URL is {url!r}, expected http://host:port", hint="give --url or set STABILITY_URL"
            )
        if api_key and not _KEY.fullmatch(api_key):
            raise SettingsError(
                "the API key has a character that no key has",
                hint="give --api-key or set STABILITY_API_KEY, as stabilityboard keys create printed it",
            )
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        # trust_env off: a proxy of the machine must not be between us and our own server.
        # Without TLS no certificates are read, which takes 40 ms.
        self._http = httpx.Client(
            base_url=self.url, headers=headers, timeout=TIMEOUT_S, trust_env=False,
            verify=not self.url.startswith("http:"),
        )  # fmt: skip

    def get(self, path: str) -> Any:
        """Return the JSON at ``path``. Raises as ``call`` does."""
        return self.call("GET", path)

    def run(self, reference: str) -> dict[str, Any]:
        """Return a run by its id, else by its name where only one has that.

        Raises:
            NotFound: no run has this id or name.
            BadRequest: several have this name; the message lists their ids. Else as ``call`` does.
        """
        try:
            found: dict[str, Any] = self.get(run_path(reference))
            return found
        except StabilityBoardError as error:
            # A text that is no id may be a name.
            if error.status not in (NotFound.default_status, BadRequest.default_status):
                raise
        word = reference.replace("\\", "\\\\").replace('"', '\\"')
        query = urlencode({"q": f'name:"{word}"', "limit": MAX_NAMED})
        rows = self.get(f"/api/v1/run_table?{query}")["rows"]
        named = [row["run_id"] for row in rows if row["name"] == reference]
        if not named:
            raise NotFound(f"there is no run {reference!r}", hint="stabilityboard runs lists them")
        if len(named) > 1:
            raise BadRequest(
                f"{len(named)} runs are called {reference!r}: {', '.join(named[:MAX_LISTED])}"
                + (", ..." if len(named) > MAX_LISTED else ""),
                hint="give the id of one of them",
            )
        return dict(self.get(run_path(named[0])))

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
            Unavailable: no answer arrived.
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


def _in_terminal(hint: str) -> str:
    """Return a hint of the server in terms of commands for a terminal."""
    return _CALL.sub(lambda call: _COMMANDS.get(call[1], "the page of the run"), hint)


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
        hint=_in_terminal(
            str(problem.get("hint") or ("" if problem else "is this the URL of a Stabilityboard server?"))
        ),
        code=str(problem.get("code") or "http"),
        status=answer.status_code,
    )
