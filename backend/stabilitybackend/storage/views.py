"""Views, saved under a name, in Redis. They belong to a project, not to a run: they stay when runs go."""

from __future__ import annotations

from typing import Any

import msgspec

from stabilitybackend.base.errors import BadRequest, NotFound
from stabilitybackend.base.keys import VIEWS
from stabilitybackend.schema.pages.views import VIEW_KINDS, View, ViewKind
from stabilitybackend.storage.redis_link import InRedis, redis_errors

__all__ = ["MAX_NAME_CHARS", "MAX_STATE_BYTES", "MAX_VIEWS", "SavedViews"]

#: Longest name, characters: it has to fit into a menu.
MAX_NAME_CHARS = 80
#: Largest state as JSON, bytes: a layout of some hundred charts has about 20 kB.
MAX_STATE_BYTES = 65_536
#: All views of the server: together at most 64 MiB of Redis.
MAX_VIEWS = 1_000


class SavedViews(InRedis):
    """The saved views of all projects."""

    async def all(self, kind: ViewKind, projects: set[str] | None = None) -> list[View]:
        """Return the views of a kind, by name; those of ``projects`` alone, if given.

        Raises:
            Unavailable: Redis is away.
        """
        with redis_errors():
            found: Any = await self._redis.hvals(VIEWS)
        views = (msgspec.json.decode(one, type=View) for one in found)
        kept = (one for one in views if one.kind == kind and (projects is None or one.project in projects))
        return sorted(kept, key=lambda one: (one.name.casefold(), one.project))

    async def save(self, kind: ViewKind, project: str, name: str, state: dict[str, Any], who: str) -> View:
        """Save a view, in place of that of the same kind, project and name.

        Raises:
            BadRequest: the name is empty or too long, the state is too large, or there are MAX_VIEWS others.
            Unavailable: Redis is away.
        """
        name = name.strip()
        if not 0 < len(name) <= MAX_NAME_CHARS:
            raise BadRequest(f"name has {len(name)} characters, expected 1 to {MAX_NAME_CHARS}")
        view = View(kind, project, name, state, who, self._clock())
        stored = msgspec.json.encode(view)
        if len(stored) > MAX_STATE_BYTES:
            raise BadRequest(
                f"state has {len(stored):,} bytes, expected at most {MAX_STATE_BYTES:,}",
                hint="leave charts out, or save them as two views",
            )
        field = _field(kind, project, name)
        with redis_errors():
            if await self._redis.hlen(VIEWS) >= MAX_VIEWS and not await self._redis.hexists(VIEWS, field):
                raise BadRequest(f"there are {MAX_VIEWS:,} views already", hint="delete some that nobody uses")
            await self._redis.hset(VIEWS, field, stored)
        return view

    async def delete(self, kind: ViewKind, project: str, name: str) -> None:
        """Delete a view.

        Raises:
            NotFound: there is none.
            Unavailable: Redis is away.
        """
        with redis_errors():
            gone = await self._redis.hdel(VIEWS, _field(kind, project, name))
        if not gone:
            raise NotFound(f"there is no {kind} view {name!r}{_of(project)}", hint="GET /api/v1/views lists them")


def _field(kind: str, project: str, name: str) -> bytes:
    assert kind in VIEW_KINDS
    return msgspec.json.encode([kind, project, name])


def _of(project: str) -> str:
    return f" of project {project!r}" if project else " of all projects"
