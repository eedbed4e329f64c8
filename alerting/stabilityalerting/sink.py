"""What a receiver of alerts is, and the one way in which HTTP receivers are spoken to."""

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
from .surroundings import Surroundings
from .variables import Variables

#: Longest time for a whole attempt to connect, to write and to get the answer, seconds each.
HTTP_TIMEOUT_S = 10.0
#: Status codes below 500 with which a later attempt can succeed.
RECOVERABLE_STATUS = frozenset({408, 425, 429})
#: Characters of a receiver's answer that are shown in an error.
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
    """Keep httpx, which logs each address it asks for, from writing a secret one into the log."""
    hidden = list(secrets)

    def clean(record: logging.LogRecord) -> bool:
        record.msg, record.args = redact(record.getMessage(), hidden), ()
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
        channel: what kind of receiver it is: ``slack`` ...; by default its name.
        name: unique among the receivers, lower case; part of Redis keys.
        min_severity: milder incidents are not sent.
        acknowledges: whether it is told that somebody acknowledged an incident.
        idempotent: True when the receiver makes one of two equal messages. Such a message is sent again when a crash
            leaves open whether it arrived; one to another receiver is not.
    """

    channel: str = ""
    name: str
    idempotent: bool
    min_severity: Severity
    acknowledges: bool = False
    #: False for one that takes any number of messages at once: it groups by itself.
    rate_bound: bool = True
    #: Strings that must never show up in a message of ours.
    secrets: tuple[str, ...] = ()

    @classmethod
    def from_variables(cls, variables: Variables) -> Sink | None:
        """Return the receiver that an environment sets up, None where it names none.

        Raises:
            AlertingSettingsError: a value has the wrong form; also where the receiver is not set up.
        """
        return None

    @abstractmethod
    async def send(self, notice: Notice, before_write: BeforeWrite) -> None:
        """Hand over one notice.

        Args:
            notice: what to send.
            before_write: awaited once, after the connection is open and before the message's body leaves.

        Raises:
            SendError: the receiver did not take it. No secret is in its text.
        """

    async def knows(self, notice: Notice) -> bool:
        """Return whether the receiver knows this by itself, so that it is not sent. Raises RedisError."""
        return False

    def outcome_names(self) -> list[str]:
        """Return the names under which it is noted what was accepted and refused: its own, unless it has several."""
        return [self.name]

    def begin(self, surroundings: Surroundings) -> None:  # noqa: B027
        """Take what the service gives, before the first notice. Nothing by default."""

    def follow(self, stream: str, alert: Alert) -> None:  # noqa: B027
        """Note that an incident changed in a way that is no message of its own. Returns at once, raises nothing."""

    async def arrived(self, stream: str, incident_id: str, key: str) -> bool | None:
        """Return whether the notice with this idempotency key has arrived: asked after a crash. None: not known."""
        return None

    async def serve(self, stop: asyncio.Event) -> None:  # noqa: B027
        """Work beside the messages until ``stop`` is set: listen to what people press. Nothing by default."""

    async def aclose(self) -> None:  # noqa: B027  (most doubles hold nothing)
        """Give back what the sink holds. Nothing by default."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One HTTP request of a sink."""

    url: str = field(repr=False)
    body: bytes = field(repr=False)
    headers: dict[str, str] = field(default_factory=dict, repr=False)


class HttpSink(Sink):
    """A receiver that takes a POST with JSON. A subclass says what to post; this class says what the answer means.

    Args:
        min_severity: see ``Sink``.
        secrets: strings that must never show up in a message of ours.
    """

    def __init__(self, min_severity: Severity, secrets: Iterable[str]) -> None:
        self.min_severity = min_severity
        self.secrets = tuple(secrets)
        self._client: httpx.AsyncClient | None = None

    @abstractmethod
    def outgoing(self, notice: Notice) -> Outgoing:
        """Return the request that sends this notice."""

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
    """The shipped double: keeps what it is sent, in order, in ``notices``."""

    name = "recording"
    idempotent = False

    def __init__(self, min_severity: Severity = "info") -> None:
        self.min_severity = min_severity
        self.notices: list[Notice] = []

    async def send(self, notice: Notice, before_write: BeforeWrite) -> None:
        await before_write()
        self.notices.append(notice)
