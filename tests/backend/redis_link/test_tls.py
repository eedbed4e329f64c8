"""Redis over TLS: a real one with certificates of openssl; a wrong authority and a wrong name are named as such."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stabilitybackend.base.errors import RedisStartError
from stabilitybackend.storage.redis_link import check_server, make_redis
from support.plain_redis import PlainRedis
from support.redis_servers.certificates import Certificate, make_certificate


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("tls") / "right")


@pytest.fixture(scope="module")
def secured(certificate: Certificate, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlainRedis]:
    with PlainRedis(tmp_path_factory.mktemp("redis"), tls=certificate) as running:
        yield running


async def refused(url: str) -> RedisStartError:
    redis = make_redis(url)
    with pytest.raises(RedisStartError) as found:
        await check_server(redis, url)
    await redis.aclose()
    return found.value


async def test_a_redis_over_tls_is_used_when_its_authority_is_named(secured: PlainRedis) -> None:
    redis = make_redis(secured.url)
    assert (await check_server(redis, secured.url)).startswith("redis")
    assert await redis.set("sb:x", 1)
    await redis.aclose()


async def test_an_authority_that_did_not_sign_it_is_refused_with_the_option_to_name_another(
    secured: PlainRedis, tmp_path: Path
) -> None:
    other = make_certificate(tmp_path / "other").authority
    found = await refused(f"{secured.url.partition('?')[0]}?ssl_ca_certs={other}")
    assert "the certificate of Redis at rediss://127.0.0.1" in found.message
    assert "is not trusted" in found.message
    assert "?ssl_ca_certs=/path/ca.pem" in found.hint


async def test_a_certificate_for_another_name_is_refused_with_what_to_do(tmp_path: Path) -> None:
    wrong = make_certificate(tmp_path / "wrong", "DNS:redis.example.org")
    with PlainRedis(tmp_path, tls=wrong) as running:
        found = await refused(running.url.replace("ssl_ca_certs", "socket_timeout=5&ssl_ca_certs"))
    assert "is not trusted" in found.message
    assert "give the name that its certificate has" in found.hint


async def test_tls_at_a_redis_without_it_and_none_at_one_with_it_are_named(secured: PlainRedis, tmp_path: Path) -> None:
    with PlainRedis(tmp_path) as plain:
        without = await refused(plain.url.replace("redis://", "rediss://"))
    assert "it may speak no TLS: write redis in place of rediss" in without.hint
    of_it = await refused(secured.url.replace("rediss://", "redis://").partition("?")[0])
    assert "it may want TLS: write rediss in place of redis" in of_it.hint
