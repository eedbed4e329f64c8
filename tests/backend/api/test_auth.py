"""API keys: who is let in with what, on a real Redis."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from redis.asyncio import Redis

from stabilitybackend.access.auth import CACHE_S, SCOPES, Authenticator, KeyRing, Principal, check_exposure
from stabilitybackend.base.errors import BadRequest, Forbidden, NotFound, SettingsError, Unauthorized, Unavailable
from stabilitybackend.base.keys import API_KEYS
from stabilitybackend.base.settings import Settings
from stabilitybackend.storage.redis_link import make_redis


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ring(redis: Redis, clock: Clock) -> KeyRing:
    return KeyRing(redis, clock)


@pytest.fixture
def authenticator(ring: KeyRing, clock: Clock) -> Authenticator:
    return Authenticator(ring, key_needed=True, clock=clock)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def test_a_key_gives_its_name_and_scopes(ring: KeyRing, authenticator: Authenticator) -> None:
    key, text = await ring.create("cluster", ["agent", "read"])
    identity = await authenticator.authenticate(bearer(text), {})
    assert identity == Principal("cluster", frozenset({"agent", "read"}), key.key_id)


async def test_redis_never_sees_the_secret(ring: KeyRing, redis: Redis) -> None:
    key, text = await ring.create("cluster")
    stored = json.loads(await redis.hget(API_KEYS, key.key_id))
    assert text.split("_", 2)[2] not in json.dumps(stored)
    assert len(stored["sha256"]) == 64


async def test_without_a_key_nobody_gets_in_where_one_is_needed(authenticator: Authenticator) -> None:
    with pytest.raises(Unauthorized) as refused:
        await authenticator.authenticate({}, {})
    assert (refused.value.code, refused.value.status) == ("key_missing", 401)


@pytest.mark.parametrize("header", ["Bearer", "Bearer ", "Basic dTpw", "Bearer sb_x", "Bearer sb_00000000_" + "x" * 43])
async def test_a_wrong_key_is_refused(authenticator: Authenticator, ring: KeyRing, header: str) -> None:
    await ring.create("other")
    with pytest.raises(Unauthorized):
        await authenticator.authenticate({"authorization": header}, {})


async def test_the_right_id_with_a_wrong_secret_is_refused(authenticator: Authenticator, ring: KeyRing) -> None:
    _, text = await ring.create("cluster")
    wrong = text[:-1] + ("A" if text[-1] != "A" else "B")
    with pytest.raises(Unauthorized, match="not known"):
        await authenticator.authenticate(bearer(wrong), {})


async def test_on_loopback_without_any_key_everything_is_open(ring: KeyRing, clock: Clock) -> None:
    identity = await Authenticator(ring, key_needed=False, clock=clock).authenticate({}, {"stabilityboard_8080": "x"})
    assert identity == Principal("local", frozenset(SCOPES))


async def test_on_loopback_a_wrong_key_is_still_noticed(ring: KeyRing, clock: Clock) -> None:
    with pytest.raises(Unauthorized, match="not known") as refused:
        await Authenticator(ring, key_needed=False, clock=clock).authenticate(bearer("typo"), {})
    assert "needs none" in refused.value.hint


async def test_with_the_first_key_loopback_asks_for_it(ring: KeyRing, clock: Clock) -> None:
    authenticator = Authenticator(ring, key_needed=False, clock=clock)
    await authenticator.authenticate({}, {})
    await ring.create("first")
    clock.now += CACHE_S
    with pytest.raises(Unauthorized):
        await authenticator.authenticate({}, {})


async def test_a_revoked_key_stops_working_within_seconds(
    ring: KeyRing, authenticator: Authenticator, clock: Clock
) -> None:
    key, text = await ring.create("cluster")
    await authenticator.authenticate(bearer(text), {})
    await ring.revoke(key.key_id)
    clock.now += CACHE_S
    with pytest.raises(Unauthorized, match="revoked"):
        await authenticator.authenticate(bearer(text), {})
    assert [k.revoked for k in await ring.list()] == [1000.0]


async def test_the_last_use_is_shown(ring: KeyRing, authenticator: Authenticator) -> None:
    _, text = await ring.create("cluster")
    assert [key.used for key in await ring.list()] == [None]
    await authenticator.authenticate(bearer(text), {})
    assert [key.used for key in await ring.list()] == [1000.0]


async def test_a_missing_scope_is_named() -> None:
    with pytest.raises(Forbidden, match="may read, this needs 'command'"):
        Principal("screen", frozenset({"read"})).require("command")


async def test_revoking_what_is_not_there_says_so(ring: KeyRing) -> None:
    with pytest.raises(NotFound, match="'nope'"):
        await ring.revoke("nope")


@pytest.mark.parametrize(
    ("name", "scopes"), [("", SCOPES), ("local", SCOPES), ("n" * 101, SCOPES), ("n", ["root"]), ("n", [])]
)
async def test_a_key_that_makes_no_sense_is_not_made(ring: KeyRing, name: str, scopes: list[str]) -> None:
    with pytest.raises(BadRequest):
        await ring.create(name, scopes)
    assert await ring.list() == []


async def test_known_keys_work_on_while_redis_is_away(ring: KeyRing, clock: Clock) -> None:
    _, text = await ring.create("cluster")
    switch = _Switchable(ring)
    authenticator = Authenticator(switch, key_needed=True, clock=clock)  # type: ignore[arg-type]
    before = await authenticator.authenticate(bearer(text), {})
    switch.ring = KeyRing(make_redis("redis://127.0.0.1:1"))
    clock.now += 1000
    assert await authenticator.authenticate(bearer(text), {}) == before


class _Switchable:
    """A ring whose Redis can be exchanged for one that is not there."""

    def __init__(self, ring: KeyRing) -> None:
        self.ring = ring

    def __getattr__(self, name: str) -> object:
        return getattr(self.ring, name)


async def test_unknown_keys_and_no_redis_is_unavailable_and_not_open() -> None:
    authenticator = Authenticator(KeyRing(make_redis("redis://127.0.0.1:1")), key_needed=False)
    with pytest.raises(Unavailable):
        await authenticator.authenticate({}, {})


async def test_beyond_loopback_nothing_starts_without_a_key(ring: KeyRing, tmp_path: Path) -> None:
    outside = Settings(host="0.0.0.0", data_dir=tmp_path)
    await check_exposure(Settings(data_dir=tmp_path), ring)
    with pytest.raises(SettingsError, match="no API key exists") as refused:
        await check_exposure(outside, ring)
    assert "stabilityboard keys create" in refused.value.hint
    key, _ = await ring.create("first")
    await check_exposure(outside, ring)
    await ring.revoke(key.key_id)
    with pytest.raises(SettingsError):
        await check_exposure(outside, ring)
