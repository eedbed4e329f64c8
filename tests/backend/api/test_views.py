"""Saved views over HTTP: what is saved comes back, replaced under its name, and a key of one project stays in it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from stabilitybackend.access.auth import SCOPES, KeyRing
from stabilitybackend.base.errors import BadRequest
from stabilitybackend.storage.redis_link import make_redis
from stabilitybackend.storage.redis_server.embedded import EmbeddedRedis
from stabilitybackend.storage.views import MAX_STATE_BYTES, MAX_VIEWS, SavedViews
from support.server_stack import RunningServer

STATE = {"filter": "state:sick", "columns": ["loss", "config.lr"], "nested": {"sizes": {"loss/code": "L"}}}


@pytest.fixture(scope="module")
def keys_and_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, str], str]]:
    folder = tmp_path_factory.mktemp("views")
    with EmbeddedRedis(folder) as redis:
        keys = asyncio.run(_keys(redis.url))
        with RunningServer(redis.url, folder / "data", host="0.0.0.0") as server:
            yield keys, server.url


async def _keys(redis_url: str) -> dict[str, str]:
    redis = make_redis(redis_url)
    ring = KeyRing(redis)
    keys = {
        "all": (await ring.create("ada", SCOPES))[1],
        "a": (await ring.create("of a", SCOPES, "a"))[1],
        "b": (await ring.create("of b", SCOPES, "b"))[1],
    }
    await redis.aclose()
    return keys


@pytest.fixture
def as_(keys_and_url: tuple[dict[str, str], str]) -> Iterator[dict[str, httpx.Client]]:
    keys, url = keys_and_url
    clients = {
        who: httpx.Client(base_url=f"{url}/api/v1", headers={"Authorization": f"Bearer {key}"}, verify=False)
        for who, key in keys.items()
    }
    yield clients
    for client in clients.values():
        client.close()


def _save(client: httpx.Client, name: str, project: str = "", **more: Any) -> httpx.Response:
    return client.put("/views", json={"kind": "runs", "project": project, "name": name, "state": STATE, **more})


def _names(client: httpx.Client, **query: str) -> list[tuple[str, str]]:
    found = client.get("/views", params={"kind": "runs", **query}).json()["views"]
    return [(one["project"], one["name"]) for one in found]


def test_a_view_comes_back_as_it_was_saved_last_with_who_saved_it(as_: dict[str, httpx.Client]) -> None:
    _save(as_["all"], "mine", "kept", kind="layout", state={"filter": "an older one"})
    saved = _save(as_["all"], " mine ", "kept", kind="layout").json()
    assert as_["all"].get("/views", params={"kind": "layout", "project": "kept"}).json() == {"views": [saved]}
    assert (saved["name"], saved["state"], saved["saved_by"]) == ("mine", STATE, "ada")
    assert ("kept", "mine") not in _names(as_["all"], project="kept")


def test_a_deleted_view_is_gone_and_the_others_stay(as_: dict[str, httpx.Client]) -> None:
    for name in ("one", "two"):
        _save(as_["all"], name, "deleting")
    gone = {"kind": "runs", "project": "deleting", "name": "one"}
    assert [one["name"] for one in as_["all"].delete("/views", params=gone).json()["views"]] == ["two"]
    again = as_["all"].delete("/views", params=gone)
    assert (again.status_code, again.json()["error"]["message"]) == (
        404,
        "there is no runs view 'one' of project 'deleting'",
    )


def test_a_key_of_a_project_sees_its_views_and_those_of_all_and_changes_its_own_alone(
    as_: dict[str, httpx.Client],
) -> None:
    assert _save(as_["a"], "of a", "a").status_code == 200
    _save(as_["all"], "of all")
    assert _names(as_["a"], project="a") == [("a", "of a"), ("", "of all")]
    assert _names(as_["b"]) == [("", "of all")]
    assert _names(as_["b"], project="a") == [("", "of all")]
    for project in ("", "a"):
        assert _save(as_["b"], "of all", project).status_code == 403
        refused = as_["b"].delete("/views", params={"kind": "runs", "project": project, "name": "of a"})
        assert refused.status_code == 403


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"name": " "}, "name has 0 characters, expected 1 to 80"),
        ({"name": "n" * 81}, "name has 81 characters, expected 1 to 80"),
        ({"kind": "metrics"}, "kind is 'metrics': Input should be 'runs' or 'layout'"),
        ({"state": []}, "state is []: Input should be a valid dictionary"),
    ],
)
def test_a_view_that_can_t_be_saved_is_refused_with_what_was_given_and_expected(
    as_: dict[str, httpx.Client], wrong: dict[str, Any], message: str
) -> None:
    refused = _save(as_["all"], **({"name": "x"} | wrong))
    assert (refused.status_code, refused.json()["error"]["message"]) == (422, message)


def test_a_state_that_is_too_large_is_refused(as_: dict[str, httpx.Client]) -> None:
    refused = _save(as_["all"], "large", state={"x": "y" * MAX_STATE_BYTES})
    assert refused.status_code == 422
    assert "expected at most 65,536" in refused.json()["error"]["message"]


async def test_there_are_at_most_so_many_views_and_a_known_one_can_still_be_saved(tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path) as server:
        redis = make_redis(server.url)
        saved = SavedViews(redis)
        await asyncio.gather(*(saved.save("runs", "", f"view {n}", {}, "ada") for n in range(MAX_VIEWS)))
        with pytest.raises(BadRequest, match="there are 1,000 views already"):
            await saved.save("runs", "", "one more", {}, "ada")
        await saved.save("runs", "", "view 0", {"new": True}, "ada")
        assert len(await saved.all("runs")) == MAX_VIEWS
        await redis.aclose()
