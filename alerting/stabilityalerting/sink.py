"""The contract of a receiver, its double, and the shared part of HTTP receivers."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from .alert import Alert, Notice, Severity
from .errors import SendError
from .server import SinkContext
from .variables import Variables

#: Longest time to connect, to write and to wait for the answer, seconds each.
HTTP_TIMEOUT_S = 10.0
#: Status codes below 500 after which a later attempt can succeed.
RECOVERABLE_STATUS = frozenset({408, 425, 429})
#: Characters of a receiver's answer in an error.
MAX_ANSWER_CHARS = 200

#: Called and awaited at the last moment before a message can reach its receiver whole.
BeforeWrite = Callable[[], Awaitable[None]]

__all__ = ["BeforeWrite", "HttpSink", "Outgoing", "RecordingSink", "Sink", "redact", "secrets_hidden"]


def redact(text: str, secrets: Iterable[str]) -> str:
    """Return ``text`` with every secret replaced by ``***``."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, "***")
    return text


@contextmanager
def secrets_hidden(secrets: Iterable[str]) -> Iterator[None]:
    """Keep httpx, which logs the address of each request, from logging a secret one."""
    hidden = list(secrets)

    def clean(record: logging.LogRecord) -> bool:
        record.msg = redact(record.getMessage(), hidden)
        record.args = ()
        return True

    logger = logging.getLogger("httpx")
    logger.addFilter(clean)
    try:
        yield
    finally:
        logger.removeFilter(clean)


class Sink(ABC):
    """A receiver of notices.

    Attributes:
        channel: its kind, such as ``slack``; "": its name is that.
        name: unique among the receivers, lower case; part of Redis keys.
        min_severity: milder incidents are not sent.
        acknowledges: acknowledgements are sent to it.
        idempotent: two equal messages count as one there. Such a message is repeated when a crash leaves its fate
            open; one to another receiver is not.
        rate_bound: False for one that takes any number of messages at a time and groups by itself.
        secrets: strings that must not appear in logs and errors.
    """

    channel: str = ""
    name: str
    idempotent: bool
    min_severity: Severity
    acknowledges: bool = False
    rate_bound: bool = True
    secrets: tuple[str, ...] = ()

    @classmethod
    def from_variables(cls, variables: Variables) -> Sink | None:
        """Return the receiver that an environment sets up, None where it names none.

        Raises:
            AlertingSettingsError: a value has the wrong form; also without a receiver.
        """
        return None

    def rename(self, name: str) -> Sink:
        """Give a further receiver of a channel a name of its own; returns it."""
        self.channel = self.name
        self.name = name
        return self

    @abstractmethod
    async def send(self, notice: Notice, before_write: BeforeWrite) -> None:
        """Hand over one notice.

        Args:
            before_write: awaited once, after the connection is open and before the message's body leaves.

        Raises:
            SendError: the receiver did not take it. Its text has no secret.
        """

    async def knows(self, notice: Notice) -> bool:
        """Return whether the receiver has this from elsewhere, so that it is not sent. Raises RedisError."""
        return False

    def outcome_names(self) -> list[str]:
        """Return the names in the log of outcomes: its own, unless it has several."""
        return [self.name]

    def begin(self, context: SinkContext) -> None:  # noqa: B027
        """Start with the service, before the first notice. Nothing by default."""

    def follow(self, stream: str, alert: Alert) -> None:  # noqa: B027
        """Note a change of an incident that is no message of its own. Does not wait, raises nothing."""

    async def arrived(self, stream: str, incident_id: str, key: str) -> bool | None:
        """Return whether the notice with this idempotency key has arrived, after a crash. None: no answer."""
        return None

    async def serve(self, stop: asyncio.Event) -> None:  # noqa: B027
        """Work in parallel to the messages until ``stop`` is set, such as listening for buttons. Nothing by default."""

    async def aclose(self) -> None:  # noqa: B027  (most doubles hold nothing)
        """Release connections. Nothing by default."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One HTTP request of a sink."""

    url: str = field(repr=False)
    body: bytes = field(repr=False)
    headers: dict[str, str] = field(default_factory=dict, repr=False)


class HttpSink(Sink):
    """A receiver of POST requests with JSON. A subclass makes the request; this class judges the answer."""

    def __init__(self, min_severity: Severity, secrets: Iterable[str]) -> None:
        self.min_severity = min_severity
        self.secrets = tuple(secrets)
        self._client: httpx.AsyncClient | None = None

    @abstractmethod
    def outgoing(self, notice: Notice) -> Outgoing:
        """Return the request for this notice."""

    async def send(self, notice: Notice, before_write: BeforeWrite) -> None:
        await self.post(self.outgoing(notice), before_write)

    async def post(self, outgoing: Outgoing, before_write: BeforeWrite) -> None:
        """Send one request. Raises SendError where it was not taken."""
        if self._client is None:
            self._client = httpx.AsyncClient(timeout=HTTP_TIMEOUT_S, follow_redirects=False)
        written = False

        async def trace(event: str, _: dict[str, Any]) -> None:
            nonlocal written
            if not written and event.endswith("send_request_body.started"):
                written = True
                await before_write()

        headers = {"Content-Type": "application/json", "User-Agent": "stabilityalerting", **outgoing.headers}
        try:
            answer = await self._client.post(
                outgoing.url, content=outgoing.body, headers=headers, extensions={"trace": trace}
            )
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            why = redact(str(error), self.secrets)
            raise SendError(f"{self.name}: no answer ({type(error).__name__}: {why})", recoverable=True) from None
        if not answer.is_success:
            raise self._refused(answer)

    async def aclose(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    def _refused(self, answer: httpx.Response) -> SendError:
        status = answer.status_code
        text = redact(answer.text[:MAX_ANSWER_CHARS], self.secrets)
        try:
            retry_after_s = float(answer.headers["Retry-After"])
        except (KeyError, ValueError):
            retry_after_s = None
        return SendError(
            f"{self.name} answered {status}: {text}",
            recoverable=status >= 500 or status in RECOVERABLE_STATUS,
            retry_after_s=retry_after_s,
            status=status,
        )


class RecordingSink(Sink):
    """The shipped double: keeps its notices in order in ``notices``."""

    name = "recording"
    idempotent = False

    def __init__(self, min_severity: Severity = "info") -> None:
        self.min_severity = min_severity
        self.notices: list[Notice] = []

    async def send(self, notice: Notice, before_write: BeforeWrite) -> None:
        await before_write()
        self.notices.append(notice)
