"""Relay of a run's requests to the process that owns it, and of the answer back; ASGI.

The owner is asked again, or the next one, for some seconds: a run is taken over within five. A change is
sent again only where it is certain that it was not made (the connection was refused, or the process asked denies that
the run is its own), or where it is one thing however often it comes: an order with a key, an acknowledgement. Where no
worker is alive this process answers reads by itself, from the store (runs/reading), with a
header. Orders for the job, acknowledgements and settings are stored then, and wait for the next owner (runs/orders,
runs/detector_settings.py); notes, tags and ratings follow from nothing and lead to nothing, and are stored for good.
"""

from __future__ import annotations

import asyncio
import re
import time

import httpx
import orjson
from redis.exceptions import RedisError
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stabilitybackend.access.auth import Authenticator, Principal
from stabilitybackend.access.people.proxy import person_of
from stabilitybackend.base.errors import BadRequest, StabilityBoardError, Unavailable
from stabilitybackend.base.keys import check_run_id
from stabilitybackend.base.tasks import end
from stabilitybackend.runs.reading.reader import no_worker
from stabilitybackend.server.http_guard import RELAYED
from stabilitybackend.storage.redis_link import as_unavailable
from stabilityplugins.scale.relay.clients import MAX_REFUSAL_BYTES, PAUSE_S, RETRY_S, code_of, make_client, whole
from stabilityplugins.scale.relay.owners import Owners, Target
from stabilityplugins.scale.relay.signer import HEADER, RelaySigner, refuse, target_of

__all__ = ["READER_HEADER", "Forwarding"]

#: Header of an answer without an owner: it is read from the store.
READER_HEADER = "x-stability-reader"
#: How often it is looked whether the process that is to answer is alive still, seconds.
_LOOK_S = 0.25
#: Codes of a 503 after which nothing was done: the run is another process' by now, or this one stops.
_ELSEWHERE = frozenset({"moved", "stopping"})
#: Methods that change nothing.
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
#: Headers that are about one connection (RFC 9110, section 7.6.1), and those that are made anew.
_OWN = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade"}
)
#: Header that each server adds by itself.
_DATE = b"date"
#: Slack's address for pressed buttons: they are refused in Slack (alerts/relayed_actions.py), not Slack itself.
_SLACK = "/api/v1/slack"
_PATH = re.compile(r"/api/v1/runs/([^/]+)(?:/.*)?")
#: Requests that can be stored without an owner.
_KEPT = re.compile(
    r"/api/v1/runs/[^/]+/(?:commands(?:/[^/]+)?|proposals/[^/]+/approve|incidents/[^/]+/(?:ack|rating)"
    r"|detectors|annotations(?:/[^/]+)?|about)"
)


class _Again(Exception):
    """Another process has to be asked; ``undone``: for certain nothing was done."""

    def __init__(self, undone: bool) -> None:
        super().__init__()
        self.undone = undone


class Forwarding:
    """Answers for runs that other processes own.

    Args:
        app: answers everything else, and for runs that this process owns or reads.
        authenticator: identifies the caller; the owner accepts that, but for keys, which it checks itself.
        retry_s: an owner is looked for so long, seconds.
    """

    def __init__(
        self, app: ASGIApp, owners: Owners, signer: RelaySigner, authenticator: Authenticator, retry_s: float = RETRY_S
    ) -> None:
        self._app = app
        self._owners = owners
        self._signer = signer
        self._authenticator = authenticator
        self._retry_s = retry_s
        self._made: httpx.AsyncClient | None = None

    @property
    def _client(self) -> httpx.AsyncClient:
        if self._made is None:  # not in the constructor: it belongs to the loop that it is used in
            self._made = make_client()
        return self._made

    async def close(self) -> None:
        """End all connections."""
        if self._made is not None:
            await self._made.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        run_id = _run_of(scope)
        changes = scope["type"] == "http" and scope["method"] not in _SAFE
        if changes and scope["path"] != _SLACK and (why := self._owners.no_part()) is not None:
            await refuse(why, scope, receive, send)
            return
        if run_id is None or scope.get(RELAYED):  # a relayed request is answered here, or refused
            await self._app(scope, receive, send)
            return
        try:
            await self._answer(run_id, scope, receive, send)
        except StabilityBoardError as error:
            await refuse(error, scope, receive, send)
        except (RedisError, OSError) as error:
            away = as_unavailable(error)
            if away is None:
                raise
            await refuse(away, scope, receive, send)

    async def _answer(self, run_id: str, scope: Scope, receive: Receive, send: Send) -> None:
        caller = HTTPConnection(scope)
        who = await self._authenticator.authenticate(caller.headers, caller.cookies, person_of(scope))
        safe = scope["method"] in _SAFE
        body = await whole(receive)
        if body is None:
            return
        until = time.monotonic() + self._retry_s
        while (target := await self._owners.find(run_id)) is not None or not safe:
            if target is None:  # reads are answered here without a wait
                if time.monotonic() >= until:
                    break
                await asyncio.sleep(PAUSE_S)
                continue
            if self._owners.is_me(target):
                await self._app(scope, _once(body, receive), send)
                return
            try:
                await self._ask(target, who, scope, body, receive, send)
                return
            except _Again as again:
                self._owners.forget(run_id)
                if not (safe or again.undone or (_is_kept(scope) and _is_once(scope, body))):
                    raise Unavailable(
                        f"the worker of run {run_id} went away while it was asked for this: it may have been done",
                        hint="look at the run, then send it again where it was not",
                        code="unsure",
                    ) from None
            if time.monotonic() >= until:
                break
            await asyncio.sleep(PAUSE_S)
        if not safe and not _is_kept(scope):
            raise no_worker(run_id)
        await self._app(scope, _once(body, receive), _marked(send))

    async def _ask(
        self, target: Target, who: Principal, scope: Scope, body: bytes, receive: Receive, send: Send
    ) -> None:
        """Ask one process, and pass on its answer. Raises _Again where it has not begun to answer."""
        request = httpx.Request(
            scope["method"],
            httpx.URL(target.address).copy_with(raw_path=target_of(scope)),
            headers=[pair for pair in scope["headers"] if pair[0] not in _OWN and pair[0] != b"content-length"],
            content=body,
        )
        client = "" if scope.get("client") is None else scope["client"][0]
        request.headers[HEADER.decode()] = await self._signer.sign(
            target.member_id, request.method, request.url.raw_path, client, who
        )
        asking = asyncio.create_task(self._asked(request))
        # A departed caller ends it, and so does a dead or stopped process.
        left, dead = asyncio.create_task(_left(receive)), asyncio.create_task(self._dead(target))
        passing: asyncio.Task[None] | None = None
        try:
            await asyncio.wait({asking, left, dead}, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                passing = asyncio.create_task(_pass_on(*asking.result(), send))
                await asyncio.wait({passing, left, dead}, return_when=asyncio.FIRST_COMPLETED)
                if passing.done():
                    passing.result()
            elif not left.done():
                raise _Again(undone=False)
        finally:
            await end(asking, passing, left, dead)
            if not asking.cancelled() and asking.exception() is None:
                await asking.result()[0].aclose()

    async def _asked(self, request: httpx.Request) -> tuple[httpx.Response, bytes | None]:
        """Return the beginning of the answer, and all of one that refuses. Raises _Again."""
        try:
            answer = await self._client.send(request, stream=True)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout):
            raise _Again(undone=True) from None
        except httpx.TransportError:
            raise _Again(undone=False) from None
        if answer.status_code != 503:
            return answer, None
        refusal = await _refusal(answer)
        if code_of(refusal) in _ELSEWHERE:
            raise _Again(undone=True)
        return answer, refusal

    async def _dead(self, target: Target) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            if not self._owners.lives(target):
                return


async def _pass_on(answer: httpx.Response, refusal: bytes | None, send: Send) -> None:
    """Pass an answer on as it comes. One that breaks off breaks off here, too: the connection ends without its end."""
    headers = [(name.lower(), value) for name, value in answer.headers.raw if name.lower() not in _OWN | {_DATE}]
    await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
    if refusal is None:
        try:
            async for chunk in answer.aiter_raw():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except httpx.TransportError:
            return
    await send({"type": "http.response.body", "body": refusal or b"", "more_body": False})


async def _refusal(answer: httpx.Response) -> bytes:
    """Return a process's refusal. Raises _Again."""
    read = bytearray()
    try:
        async for chunk in answer.aiter_raw():
            read += chunk
            if len(read) > MAX_REFUSAL_BYTES:
                raise _Again(undone=False)  # no process of this server refuses like that
    except httpx.TransportError:
        raise _Again(undone=False) from None
    return bytes(read)


def _is_kept(scope: Scope) -> bool:
    """Whether it can be stored without an owner."""
    return _KEPT.fullmatch(scope["path"]) is not None


def _is_once(scope: Scope, body: bytes) -> bool:
    """Whether it is one thing however often it comes: it names itself, or the first acknowledgement counts."""
    if scope["method"] == "PUT" or scope["path"].endswith("/ack"):
        return True
    try:
        return bool(orjson.loads(body)["idempotency_key"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return False


def _run_of(scope: Scope) -> str | None:
    found = _PATH.fullmatch(scope["path"]) if scope["type"] == "http" else None
    if found is None:
        return None
    try:
        return check_run_id(found[1])
    except BadRequest:
        return None  # the app answers that


def _once(body: bytes, receive: Receive) -> Receive:
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return waiting.pop() if waiting else await receive()

    return next_message


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _marked(send: Send) -> Send:
    async def marked(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), (READER_HEADER.encode(), b"no worker follows this run")]
        await send(message)

    return marked
