"""Routes and channels of a plug-in are those of the server: in its API, its guard and its receivers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stabilitybackend.access.auth import KeyRing
from stabilitybackend.plugins import load
from stabilitybackend.storage.redis_link import make_redis
from support.server_stack import RunningServer

PLUG_IN = """
from fastapi import APIRouter
from stabilityalerting import RecordingSink
from stabilitybackend.hooks import hook
from stabilitybackend.server.api.access import Reader

router = APIRouter(prefix="/api/v1", tags=["moon"])

@router.get("/moon")
async def moon(reader: Reader) -> dict[str, str]:
    return {"phase": "full"}

class Moon(RecordingSink):
    name = "moon"

    @classmethod
    def from_variables(cls, variables):
        return cls("warning")

@hook
def routes():
    return [router]

@hook
def channels():
    return [Moon]
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (file := tmp_path / "moon.py").write_text(PLUG_IN)
    return {"STABILITY_PLUGINS": str(file)}


def test_a_route_of_a_plug_in_is_served_with_the_rights_that_it_asks_for(
    redis_url: str, tmp_path: Path, environment: dict[str, str]
) -> None:
    async def made_key() -> str:
        redis = make_redis(redis_url)
        _, key = await KeyRing(redis).create("reader", ["read"])
        await redis.aclose()
        return key

    key = asyncio.run(made_key())
    with RunningServer(redis_url, tmp_path / "data", host="0.0.0.0", plugins=load(environment)) as server:
        assert server.client.get("/api/v1/moon").status_code == 401
        server.client.headers["Authorization"] = f"Bearer {key}"
        assert server.get("/moon") == {"phase": "full"}
        assert "/api/v1/moon" in server.get("/openapi.json")["paths"]


def test_a_channel_of_a_plug_in_is_a_receiver(redis_url: str, tmp_path: Path, environment: dict[str, str]) -> None:
    with RunningServer(redis_url, tmp_path / "data", plugins=load(environment)) as server:
        assert [one["name"] for one in server.get("/receivers")["receivers"]] == ["moon"]
