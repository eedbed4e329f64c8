"""Browsers that are logged in, on a real Redis: opaque, bound to a key, ended by people, by time and by its key."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis

from stabilitybackend.access.auth import Authenticator, KeyRing, Principal
from stabilitybackend.access.sessions import (
    CACHE_S,
    IDLE_S,
    LIFE_S,
    PERSON_LIFE_S,
    Sessions,
    SignedIn,
    login_cookie,
    logout_cookies,
)
from stabilitybackend.base.errors import Unauthorized
from stabilitybackend.base.keys import session_key
from stabilitybackend.storage.redis_link import make_redis

HOST = {"host": "board.example:8443"}


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Stage:
    """A ring, sessions, and who asks both."""

    def __init__(self, redis: Redis) -> None:
        self.clock = Clock()
        self.ring = KeyRing(redis, self.clock)
        self.sessions = Sessions(redis, self.clock)
        self.authenticator = Authenticator(self.ring, self.sessions, key_needed=True, clock=self.clock)

    async def who(self, text: str, name: str = "stabilityboard_8443") -> Principal:
        """Return who calls with a cookie."""
        return await self.authenticator.authenticate(HOST, {name: text})


@pytest.fixture
def stage(redis: Redis) -> Stage:
    return Stage(redis)


async def test_a_session_may_what_its_key_may(stage: Stage) -> None:
    key, _ = await stage.ring.create("screen", ["read"], "llm")
    text = await stage.sessions.open(key.key_id)
    expected = Principal("screen", frozenset({"read"}), key.key_id, "llm", session=True)
    assert await stage.who(text) == expected
    assert await stage.who(text, "__Host-stabilityboard_8443") == expected


async def test_redis_knows_neither_the_session_nor_the_key(stage: Stage, redis: Redis) -> None:
    key, secret = await stage.ring.create("screen")
    text = await stage.sessions.open(key.key_id)
    stored = [str(name) for name in await redis.keys("*")] + [
        str(await redis.get(name)) for name in await redis.keys("sb:session:*")
    ]
    assert not [one for one in stored if text in one or secret.split("_", 2)[2] in one]


async def test_the_key_itself_is_no_session(stage: Stage) -> None:
    _, secret = await stage.ring.create("screen")
    with pytest.raises(Unauthorized):
        await stage.who(secret)


async def test_a_session_of_another_port_is_not_sent_for_this_one(stage: Stage) -> None:
    key, _ = await stage.ring.create("screen")
    text = await stage.sessions.open(key.key_id)
    with pytest.raises(Unauthorized) as refused:
        await stage.who(text, "stabilityboard_8080")
    assert refused.value.code == "key_missing"


async def test_a_session_ends_with_its_key(stage: Stage) -> None:
    key, _ = await stage.ring.create("screen")
    text = await stage.sessions.open(key.key_id)
    await stage.who(text)
    await stage.ring.revoke(key.key_id)
    stage.clock.now += CACHE_S
    with pytest.raises(Unauthorized) as refused:
        await stage.who(text)
    assert (refused.value.code, "revoked" in refused.value.message) == ("session_ended", True)


async def test_who_logs_out_is_out_at_once(stage: Stage) -> None:
    key, _ = await stage.ring.create("screen")
    text, other = await stage.sessions.open(key.key_id), await stage.sessions.open(key.key_id)
    await stage.who(text)
    await stage.sessions.close(text)
    with pytest.raises(Unauthorized):
        await stage.who(text)
    assert (await stage.who(other)).name == "screen"


async def test_a_session_lives_a_week_without_use_and_a_month_with_it(stage: Stage, redis: Redis) -> None:
    key, _ = await stage.ring.create("screen")
    text = await stage.sessions.open(key.key_id)
    (stored,) = await redis.keys("sb:session:*")
    assert IDLE_S - 10 <= await redis.ttl(stored) <= IDLE_S
    stage.clock.now += LIFE_S - 3600
    assert (await stage.who(text)).name == "screen"
    assert await redis.ttl(stored) <= 3600
    stage.clock.now += 3601
    with pytest.raises(Unauthorized):
        await stage.who(text)


async def test_a_session_that_redis_let_go_is_over(stage: Stage, redis: Redis) -> None:
    key, _ = await stage.ring.create("screen")
    text = await stage.sessions.open(key.key_id)
    await stage.who(text)
    await redis.delete(*await redis.keys("sb:session:*"))
    stage.clock.now += CACHE_S
    with pytest.raises(Unauthorized):
        await stage.who(text)


async def test_while_redis_is_away_a_session_that_is_known_goes_on(stage: Stage) -> None:
    key, _ = await stage.ring.create("screen")
    text = await stage.sessions.open(key.key_id)
    await stage.who(text)
    stage.sessions._redis = make_redis("redis://127.0.0.1:1")
    stage.clock.now += CACHE_S
    assert await stage.sessions.find(text) is not None


def test_the_cookie_is_out_of_reach_for_scripts_other_sites_and_other_ports() -> None:
    over_http = login_cookie("id", HOST, secure=False)
    over_https = login_cookie("id", HOST, secure=True)
    assert over_http.startswith("stabilityboard_8443=id; ")
    assert over_https.startswith("__Host-stabilityboard_8443=id; ")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(over_http.split("; ")) & set(over_https.split("; "))
    assert ("Secure" in over_https.split("; "), "Secure" in over_http.split("; ")) == (True, False)
    assert login_cookie("id", {"host": "board.example"}, secure=False).startswith("stabilityboard_default=id; ")


def test_logging_out_forgets_what_older_versions_kept_too() -> None:
    gone = [cookie.split("=")[0] for cookie in logout_cookies(HOST)]
    assert gone == ["__Host-stabilityboard_8443", "stabilityboard_8443", "stabilityboard_key"]
    assert all("Max-Age=0" in cookie for cookie in logout_cookies(HOST))


async def test_the_name_in_redis_is_the_digest(stage: Stage, redis: Redis) -> None:
    key, _ = await stage.ring.create("screen")
    await stage.sessions.open(key.key_id)
    (stored,) = await redis.keys("sb:session:*")
    digest = stored.decode().rpartition(":")[2]
    assert session_key(digest) == stored.decode()
    assert len(digest) == 64


async def test_a_session_of_a_person_ends_after_half_a_day_however_much_it_is_used(stage: Stage, redis: Redis) -> None:
    text = await stage.sessions.open(SignedIn("https://id.example", "1", "anna", ("ml",)))
    name = (await redis.keys("sb:session:*"))[0]
    assert 0 < await redis.ttl(name) <= PERSON_LIFE_S
    for _ in range(11):
        stage.clock.now += PERSON_LIFE_S / 12
        found = await stage.sessions.find(text)
        assert found is not None
        assert found.person is not None
        assert found.person.name == "anna"
        assert await redis.ttl(name) <= PERSON_LIFE_S
    stage.clock.now += PERSON_LIFE_S / 12
    assert await stage.sessions.find(text) is None


async def test_a_session_of_a_person_is_nothing_to_a_server_that_signs_nobody_in(stage: Stage) -> None:
    text = await stage.sessions.open(SignedIn("https://id.example", "1", "anna", ("ml",)))
    with pytest.raises(Unauthorized, match="no role here any more"):
        await stage.who(text)
