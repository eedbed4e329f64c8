"""What is asked about a run reaches its owner as its caller sent it, once; what went wrong on the way is said."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from redis.asyncio import Redis
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp

from stabilitybackend.access.auth import Authenticator, KeyRing
from stabilitybackend.access.origins import Origins
from stabilitybackend.base.keys import RunKeys
from stabilitybackend.server.http_guard import HttpGuard
from stabilitybackend.storage.redis_server.embedded import EmbeddedRedis
from stabilityplugins.scale.members import Member, Members
from stabilityplugins.scale.relay.forwarding import READER_HEADER, Forwarding
from stabilityplugins.scale.relay.owners import Owners
from stabilityplugins.scale.relay.signer import HEADER, RelaySigner, SignatureCheck
from support.gateway_stack import log_frames
from support.job_frames import Job
from support.server_stack import RunningServer
from support.waiting import wait_until

RUN = "run-1"
USER = "X-Forwarded-User"


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, RunningServer]]:
    """A process of pages behind a proxy that signs people in, and a worker that knows nothing of one."""
    folder = tmp_path_factory.mktemp("relay")
    (folder / "roles.toml").write_text('[users]\nanna = "operator"\ncarl = "viewer"\n')
    with EmbeddedRedis(folder) as redis:
        shared = {"archive_url": str(folder / "archive")}
        with (
            RunningServer(redis.url, folder / "worker", role=("door", "worker"), **shared) as worker,
            RunningServer(
                redis.url, folder / "pages", role=("pages",), proxy_user_header=USER, trusted_proxies="127.0.0.1",
                roles=folder / "roles.toml", **shared,
            ) as pages,
        ):  # fmt: skip
            log_frames(worker.url, Job().rows(range(1, 2_001)), run_id=RUN)
            worker.wait_for(f"/runs/{RUN}", lambda run: run["last_step"] == 2_000, "it is folded")
            wait_until(lambda: ask(pages, "").status_code == 200, 20, "the run is passed on")
            yield worker, pages


def ask(pages: RunningServer, path: str, method: str = "GET", user: str = "carl", **more: Any) -> httpx.Response:
    headers = {USER: user, "X-Forwarded-For": "203.0.113.7"} | more.pop("headers", {})
    return pages.client.request(method, f"/api/v1/runs/{RUN}{path}", headers=headers, **more)


def test_an_answer_is_the_owners_own_byte_for_byte(servers: tuple[RunningServer, RunningServer]) -> None:
    worker, pages = servers
    for path in ("/series?metric=loss&points=200", "/segments", "/nothing", "/export?format=jsonl"):
        mine, its = ask(pages, path), worker.client.get(f"/api/v1/runs/{RUN}{path}")
        assert mine.status_code == its.status_code
        if "export" not in path:  # each one says when it was made
            assert mine.content == its.content
        both = [{k: v for k, v in one.headers.items() if k not in ("date", "x-export-id")} for one in (mine, its)]
        assert both[0] == both[1]
        assert len(mine.headers.get_list("date")) == 1


def test_who_calls_is_known_at_the_owner_with_what_that_one_may_and_from_where(
    servers: tuple[RunningServer, RunningServer],
) -> None:
    worker, pages = servers
    note = {"step": 3, "text": "hm"}
    refused = ask(pages, "/detectors", "PUT", json={"settings": {}})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "missing_scope")
    assert ask(pages, "/annotations", "POST", user="anna", json=note).status_code == 201
    entries = worker.get("/audit", limit=20)["entries"]
    found = next(one for one in entries if one["who"] == "anna")
    assert "203.0.113.7" in found["detail"]
    assert ask(pages, "", headers={USER: "mallory"}).json()["error"]["code"] == "no_role"
    nobody = pages.client.get(f"/api/v1/runs/{RUN}")
    assert nobody.json()["error"]["code"] == "key_missing"


def test_the_header_of_our_own_lets_nobody_in_from_outside(servers: tuple[RunningServer, RunningServer]) -> None:
    for server in servers:
        answer = server.client.get(f"/api/v1/runs/{RUN}", headers={HEADER.decode(): "x.y"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "not_relayed")


class Stack:
    """A process of pages before owners of the test's own, which answer what it says."""

    def __init__(self, redis: Redis, retry_s: float = 20.0) -> None:
        self.redis = redis
        self.members = Members(redis, Member("pages", ("pages",), "http://pages"))
        self.asked: list[str] = []
        self.was_asked = asyncio.Event()
        self._servers: list[asyncio.Server] = []
        self._connections: list[asyncio.StreamWriter] = []
        self.local = local = FastAPI()

        @local.api_route("/{path:path}", methods=["GET", "POST", "PUT"])
        async def here(path: str, request: Request) -> PlainTextResponse:
            return PlainTextResponse("read here")

        authenticator = Authenticator(KeyRing(redis), key_needed=False)
        self.forwarding = Forwarding(
            local, Owners(redis, self.members), RelaySigner(redis, "pages"), authenticator, retry_s=retry_s
        )

    async def owner(self, name: str, answer: bytes | None, *, owns: bool = True) -> None:
        """Let a process own the run that answers so on each connection, and then ends it; None: it stands still."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._connections.append(writer)
            await reader.readuntil(b"\r\n\r\n")
            self.asked.append(name)
            self.was_asked.set()
            if answer is not None:
                writer.write(answer)
                writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        self._servers.append(server)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self.members.alive[name] = Member(name, ("worker",), url)
        if owns:
            await self.owned(name, url)

    async def owned(self, name: str, url: str) -> None:
        owner = {"token": "t", "worker": name, "address": url}
        await self.redis.hset(RunKeys(RUN).owner, mapping=owner)  # type: ignore[misc, arg-type]

    async def ask(self, method: str = "GET", path: str = "commands", **more: Any) -> httpx.Response:
        app: ASGIApp = self.forwarding
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://board") as client:
            return await client.request(method, f"/api/v1/runs/{RUN}/{path}", **more)

    async def close(self) -> None:
        await self.forwarding.close()
        for writer in self._connections:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        for server in self._servers:
            server.close()
            await server.wait_closed()


def http(status: str, body: bytes) -> bytes:
    return b"HTTP/1.1 %s\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s" % (status.encode(), len(body), body)


OK = http("200 OK", b"the owner's")
MOVED = http("503 Service Unavailable", b'{"error":{"code":"moved","message":"","hint":""}}')
FULL = http("503 Service Unavailable", b'{"error":{"code":"window_full","message":"","hint":""}}')
CUT = b""


@pytest.fixture
async def stack(redis: Redis) -> AsyncIterator[Stack]:
    made = Stack(redis)
    yield made
    await made.close()


async def meanwhile(stack: Stack, method: str, then: Callable[[], Awaitable[None]]) -> httpx.Response:
    """Return what is answered to a request during which, once somebody was asked, something happens."""
    stack.was_asked.clear()

    async def later() -> None:
        await stack.was_asked.wait()
        await then()

    answer, _ = await asyncio.gather(stack.ask(method), later())
    return answer


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_whoever_says_that_the_run_is_elsewhere_has_done_nothing_and_the_owner_is_asked(
    stack: Stack, method: str
) -> None:
    await stack.owner("w1", MOVED)
    answer = await meanwhile(stack, method, lambda: stack.owner("w2", OK))
    assert (answer.text, stack.asked[-1]) == ("the owner's", "w2")


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_where_nobody_takes_the_connection_the_next_owner_is_asked(stack: Stack, method: str) -> None:
    await stack.owner("w2", OK, owns=False)
    stack.members.alive["w1"] = Member("w1", ("worker",), "http://127.0.0.1:1")
    await stack.owned("w1", "http://127.0.0.1:1")
    asking = asyncio.create_task(stack.ask(method))
    await asyncio.sleep(0)
    del stack.members.alive["w1"]
    assert (await asking).text == "the owner's"


async def test_a_question_whose_owner_went_away_is_asked_again_and_an_order_is_not(stack: Stack) -> None:
    await stack.owner("w1", CUT)
    order = await stack.ask("POST")
    assert (order.status_code, order.json()["error"]["code"]) == (503, "unsure")
    assert "may have been done" in order.json()["error"]["message"]
    assert stack.asked == ["w1"]
    answer = await meanwhile(stack, "GET", lambda: stack.owner("w2", OK))
    assert answer.text == "the owner's"


async def test_another_503_of_the_owner_is_its_answer(stack: Stack) -> None:
    await stack.owner("w1", FULL)
    assert (await stack.ask("POST")).json()["error"]["code"] == "window_full"
    assert stack.asked == ["w1"]


async def test_an_owner_that_stands_still_is_given_up_when_it_counts_as_dead(stack: Stack) -> None:
    await stack.owner("w1", None)
    await stack.owner("w2", OK, owns=False)

    async def dies() -> None:
        del stack.members.alive["w1"]

    assert (await meanwhile(stack, "GET", dies)).text == "the owner's"


async def test_without_a_worker_a_question_is_answered_here_and_says_so_and_a_change_is_refused(redis: Redis) -> None:
    stack = Stack(redis, retry_s=0.3)
    answer, change = await stack.ask(), await stack.ask("POST", "segments/1/undo")
    assert (answer.text, answer.headers[READER_HEADER]) == ("read here", "no worker follows this run")
    assert (change.status_code, change.json()["error"]["code"]) == (503, "no_worker")
    await stack.close()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "commands"), ("POST", "incidents/i-1/ack"), ("PUT", "incidents/i-1/rating"), ("PUT", "detectors"),
        ("POST", "annotations"), ("PUT", "annotations/a-1"), ("PUT", "about"),
    ],
)  # fmt: skip
async def test_what_needs_no_owner_or_can_wait_for_one_is_stored_here_where_none_comes(
    redis: Redis, method: str, path: str
) -> None:
    stack = Stack(redis, retry_s=0.0)
    assert (await stack.ask(method, path)).text == "read here"
    await stack.close()


async def test_an_order_is_held_until_a_worker_is_there(redis: Redis) -> None:
    stack = Stack(redis)
    asking = asyncio.create_task(stack.ask("POST"))
    await asyncio.sleep(0)
    await stack.owner("w1", OK)
    assert (await asking).text == "the owner's"
    await stack.close()


@pytest.mark.parametrize(
    ("method", "path", "order"),
    [
        ("POST", "commands", {"kind": "stop", "idempotency_key": "k"}), ("POST", "incidents/i-1/ack", None),
        ("PUT", "detectors", {"settings": {}}),
    ],
)  # fmt: skip
async def test_what_is_one_however_often_it_comes_goes_to_the_next_owner_where_nobody_knows_what_the_last_one_did(
    stack: Stack, method: str, path: str, order: dict[str, object] | None
) -> None:
    await stack.owner("w1", CUT)
    stack.was_asked.clear()

    async def next_one() -> None:
        await stack.was_asked.wait()
        await stack.owner("w2", OK)

    answer, _ = await asyncio.gather(stack.ask(method, path, json=order), next_one())
    assert (answer.text, stack.asked[-1]) == ("the owner's", "w2")


async def test_where_no_worker_can_be_reached_a_question_is_answered_here_after_a_while(redis: Redis) -> None:
    stack = Stack(redis, retry_s=0.3)
    await stack.owner("w1", CUT)
    answer = await stack.ask()
    assert (answer.text, READER_HEADER in answer.headers) == ("read here", True)
    assert stack.asked
    await stack.close()


async def test_who_was_let_in_by_the_process_that_passes_it_on_needs_no_host_of_ours(stack: Stack) -> None:
    authenticator = Authenticator(KeyRing(stack.redis), key_needed=False)
    guard = HttpGuard(stack.local, Origins(), authenticator, [])
    value = await RelaySigner(stack.redis, "pages").sign("w", "GET", b"/livez")
    for headers, status in (({}, 403), ({HEADER.decode(): value}, 200)):
        around = SignatureCheck(guard, RelaySigner(stack.redis, "w"))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(around), base_url="http://board") as client:
            assert (await client.get("/livez", headers=headers)).status_code == status
