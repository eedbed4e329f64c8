"""What another process of ours passes on is believed once, for a moment, as it was signed, and by no other process."""

from __future__ import annotations

import base64
import itertools
from typing import Any

import pytest
from redis.asyncio import Redis
from starlette.types import Message, Receive, Scope, Send

from stabilitybackend.access.auth import Principal
from stabilitybackend.access.people.proxy import PERSON
from stabilitybackend.base.errors import Forbidden
from stabilitybackend.base.keys import RELAY
from stabilitybackend.server.http_guard import RELAYED
from stabilityplugins.scale.relay.signer import HEADER, LASTS_S, RelaySigner, SignatureCheck

PATH = b"/api/v1/runs/r/commands?limit=3"
PERSON_AT_EDGE = Principal("ada", frozenset({"read"}), project="p", proxied=True)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def signer(redis: Redis, me: str, clock: Clock | None = None) -> RelaySigner:
    count = itertools.count()
    return RelaySigner(redis, me, elapsed=clock or Clock(), nonce=lambda: f"{me}-{next(count)}")


async def refusal(worker: RelaySigner, value: str, method: str = "POST", target: bytes = PATH) -> str:
    with pytest.raises(Forbidden) as caught:
        await worker.verify(value.encode(), method, target)
    assert caught.value.code == "not_relayed"
    return caught.value.message


async def test_the_owner_learns_who_sent_it_and_from_where(redis: Redis) -> None:
    value = await signer(redis, "pages").sign("w", "POST", PATH, "10.1.2.3", PERSON_AT_EDGE)
    said = await signer(redis, "w").verify(value.encode(), "POST", PATH)
    assert (said.client, said.person) == ("10.1.2.3", PERSON_AT_EDGE)


async def test_it_holds_once(redis: Redis) -> None:
    worker = signer(redis, "w")
    value = await signer(redis, "pages").sign("w", "POST", PATH)
    await worker.verify(value.encode(), "POST", PATH)
    assert "came before" in await refusal(worker, value)


@pytest.mark.parametrize(
    ("method", "target"), [("GET", PATH), ("POST", PATH + b"0"), ("POST", b"/api/v1/runs/other/commands?limit=3")]
)
async def test_it_holds_for_no_other_method_or_address(redis: Redis, method: str, target: bytes) -> None:
    value = await signer(redis, "pages").sign("w", "POST", PATH)
    assert "no process of this server signed it" in await refusal(signer(redis, "w"), value, method, target)


async def test_it_holds_for_no_other_process(redis: Redis) -> None:
    value = await signer(redis, "pages").sign("another", "POST", PATH)
    assert "another process" in await refusal(signer(redis, "w"), value)


async def test_it_holds_no_longer_than_somebody_waits(redis: Redis) -> None:
    clock = Clock()
    worker = signer(redis, "w", clock)
    value = await signer(redis, "pages").sign("w", "POST", PATH)
    later = await signer(redis, "pages-2").sign("w", "POST", PATH)
    await worker.verify(later.encode(), "POST", PATH)
    clock.now += LASTS_S + 1.0
    assert "expected at most" in await refusal(worker, value)


async def test_clocks_of_machines_that_are_apart_change_nothing(redis: Redis) -> None:
    ahead = Clock()
    ahead.now += 3_600.0
    value = await signer(redis, "pages", ahead).sign("w", "POST", PATH)
    assert (await signer(redis, "w").verify(value.encode(), "POST", PATH)).to == "w"


async def test_a_changed_one_is_not_believed(redis: Redis) -> None:
    value = await signer(redis, "pages").sign("w", "POST", PATH, "", PERSON_AT_EDGE)
    data, _, mac = value.partition(".")
    more = base64.urlsafe_b64decode(data).replace(b'"read"', b'"admin"')
    forged = f"{base64.urlsafe_b64encode(more).decode()}.{mac}"
    assert "no process of this server signed it" in await refusal(signer(redis, "w"), forged)
    assert "no process of this server signed it" in await refusal(signer(redis, "w"), "")


async def test_a_secret_that_redis_lost_is_replaced_everywhere(redis: Redis) -> None:
    clock = Clock()
    pages, worker = signer(redis, "pages"), signer(redis, "w", clock)
    await worker.verify((await pages.sign("w", "POST", PATH)).encode(), "POST", PATH)
    await redis.delete(RELAY)
    fresh = await signer(redis, "pages-2").sign("w", "POST", PATH)
    clock.now += 2.0
    assert (await worker.verify(fresh.encode(), "POST", PATH)).to == "w"


async def passed(signer: RelaySigner, *headers: tuple[bytes, bytes]) -> tuple[Scope | None, list[Message]]:
    """Return the scope that the app within sees, and what is answered by the one around it."""
    seen: list[Scope] = []
    sent: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope)

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        sent.append(message)

    scope: dict[str, Any] = {
        "type": "http", "method": "POST", "path": "/api/v1/runs/r/commands", "raw_path": b"/api/v1/runs/r/commands",
        "query_string": b"limit=3", "headers": [(b"host", b"board"), *headers], "client": ("10.0.0.9", 5),
        PERSON: Forbidden("a foreign proxy"),
    }  # fmt: skip
    await SignatureCheck(app, signer)(scope, receive, send)
    return (seen[0] if seen else None), sent


async def test_a_request_that_was_passed_on_is_from_whom_the_first_process_says(redis: Redis) -> None:
    value = await signer(redis, "pages").sign("w", "POST", PATH, "10.1.2.3", PERSON_AT_EDGE)
    scope, _ = await passed(signer(redis, "w"), (HEADER, value.encode()))
    assert scope is not None
    assert (scope["headers"], scope["client"]) == ([(b"host", b"board")], ("10.1.2.3", 0))
    assert (scope[PERSON], scope[RELAYED]) == (PERSON_AT_EDGE, True)


@pytest.mark.parametrize("values", [(b"forged.00",), (b"",), (b"a.b", b"c.d")])
async def test_a_header_that_comes_from_outside_lets_nobody_in(redis: Redis, values: tuple[bytes, ...]) -> None:
    scope, sent = await passed(signer(redis, "w"), *((HEADER, value) for value in values))
    assert (scope, sent[0]["status"]) == (None, 403)


async def test_a_request_without_the_header_is_as_it_came(redis: Redis) -> None:
    scope, _ = await passed(signer(redis, "w"))
    assert scope is not None
    assert (scope["client"], scope.get(RELAYED)) == (("10.0.0.9", 5), None)
