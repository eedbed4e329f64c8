"""Requests among the processes of one server, by name; no route of the API, and closed to any other caller.

A request is signed like a relayed one (signer.py), with the digest of its body in its address, so that no one on
the way can change its caller or its order. Where another process owns the run by now, or the one asked is gone, the
next owner is asked, as in forwarding.py: a request must be such that doing it twice is doing it once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from hashlib import sha256

import httpx
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from stabilitybackend.access.auth import Principal
from stabilitybackend.access.people.proxy import PERSON
from stabilitybackend.base.errors import NotFound, StabilityBoardError, TakesNoPart, Unavailable
from stabilitybackend.server.http_guard import RELAYED
from stabilityplugins.scale.relay.clients import MAX_REFUSAL_BYTES, PAUSE_S, RETRY_S, make_client, refusal_of, whole
from stabilityplugins.scale.relay.owners import Owners, Target
from stabilityplugins.scale.relay.signer import HEADER, RelaySigner, refuse, target_of

__all__ = ["Calls", "Work"]

#: Handler of another process's request: from its body and its principal to the answer's body.
#: Raises StabilityBoardError: the answer is that. ``moved``: the run is another process' by now, nothing was done.
Work = Callable[[bytes, Principal | None], Awaitable[bytes]]

_PATH = "/relayed/"
#: Longest body, bytes: an order, never points.
MAX_BODY_BYTES = 64 * 1024
#: Who is asked has to answer within this time, seconds: a run is restored within 30 s.
ANSWER_S = 40.0
#: Codes after which the next owner is asked.
_ELSEWHERE = frozenset({"moved", "stopping", "unsure"})
#: Period of the check that the answering process is still alive, seconds.
_LOOK_S = 0.25


class Calls:
    """Calls of one process: other processes' requests to it, and its requests to them.

    Args:
        retry_s: a run's owner is looked for so long, seconds.

    Attributes:
        work: handlers of this process, by name.
    """

    def __init__(self, owners: Owners, signer: RelaySigner, retry_s: float = RETRY_S) -> None:
        self.work: dict[str, Work] = {}
        self._owners = owners
        self._signer = signer
        self._retry_s = retry_s
        self._made: httpx.AsyncClient | None = None

    def no_part(self) -> TakesNoPart | None:
        """Return why this process may change nothing, None while it takes part."""
        return self._owners.no_part()

    async def ask_owner(
        self,
        run_id: str,
        name: str,
        body: bytes,
        person: Principal | None = None,
        *,
        wait: bool = False,
        once: bool = False,
    ) -> bytes | None:
        """Return the answer of a run's owner; None where this process owns it, or no worker is there to ask.

        Args:
            wait: where no worker is alive, one is waited for, as long as a takeover takes.
            once: it is one thing however often it is asked for: the next owner is asked where the first one died.

        Raises:
            StabilityBoardError: the owner's refusal.
        """
        until = time.monotonic() + self._retry_s
        while True:
            target = await self._owners.find(run_id)
            if target is not None:
                if self._owners.is_me(target):
                    return None
                try:
                    return await self.ask(target, name, body, person)
                except Unavailable as error:
                    self._owners.forget(run_id)
                    if error.code not in _ELSEWHERE and not (once and error.code == "unsure"):
                        raise
            elif not wait:
                return None
            if time.monotonic() >= until:
                return None
            await asyncio.sleep(PAUSE_S)

    async def ask(
        self, target: Target, name: str, body: bytes, person: Principal | None = None, *,
        answer_s: float | None = ANSWER_S,
    ) -> bytes:  # fmt: skip
        """Return one process's answer, within ``answer_s`` seconds; None: as long as it is alive.

        Raises:
            StabilityBoardError: its refusal.
            Unavailable: ``moved``: it was not reached, nothing was done. ``unsure``: it went away while it did this.
        """
        if self._made is None:  # not in the constructor: it belongs to the loop that it is used in
            self._made = make_client()
        path = f"{_PATH}{name}?{sha256(body).hexdigest()}".encode()
        signed = await self._signer.sign(target.member_id, "POST", path, person=person)
        request = httpx.Request(
            "POST", httpx.URL(target.address).copy_with(raw_path=path), headers={HEADER.decode(): signed}, content=body
        )
        asking = asyncio.create_task(self._made.send(request))
        try:
            async with asyncio.timeout(answer_s):
                while not asking.done():
                    await asyncio.wait({asking}, timeout=_LOOK_S)
                    if not asking.done() and not self._owners.lives(target):
                        raise _unsure(target)
            answer = asking.result()
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout):
            raise Unavailable(f"{target.member_id} takes no connection", hint="try again", code="moved") from None
        except (httpx.TransportError, TimeoutError):
            raise _unsure(target) from None
        finally:
            asking.cancel()
        if answer.status_code == 200:
            return answer.content
        code, message, hint = refusal_of(answer.content[:MAX_REFUSAL_BYTES])
        if answer.status_code == 503:
            raise Unavailable(message, hint=hint, code=code)
        raise StabilityBoardError(message, hint=hint, code=code or "internal", status=answer.status_code)

    def around(self, app: ASGIApp) -> ASGIApp:
        """Return ``app`` with the handler of other processes' requests; it goes inside of their authentication."""

        async def calls(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http" and scope.get(RELAYED) and scope["path"].startswith(_PATH):
                await self._serve(scope, receive, send)
            else:
                await app(scope, receive, send)

        return calls

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await whole(receive, MAX_BODY_BYTES)
            if body is None:
                return
            work = self.work.get(scope["path"].removeprefix(_PATH))
            if work is None or target_of(scope).rpartition(b"?")[2] != sha256(body).hexdigest().encode():
                raise NotFound(
                    f"this process does not do {scope['path'][:80]!r}, or the request was changed on its way",
                    hint="processes of one server are at most one minor version apart: docs/operations.md",
                )
            answer = await work(body, scope.get(PERSON))
        except StabilityBoardError as error:
            await refuse(error, scope, receive, send)
            return
        await Response(answer, media_type="application/octet-stream")(scope, receive, send)

    async def close(self) -> None:
        """End all connections."""
        if self._made is not None:
            await self._made.aclose()


def _unsure(target: Target) -> Unavailable:
    return Unavailable(
        f"the worker {target.member_id} went away while it was asked for this: it may have been done",
        hint="look at the run, then try again where it was not",
        code="unsure",
    )
