"""Several server processes: roles, relay between them, membership."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

from stabilitybackend.hooks import hook

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from stabilitybackend.base.settings import Settings
    from stabilitybackend.server.stage import Stage
    from stabilitybackend.server.stages import Options


@hook
def checks() -> list[Callable[..., Any]]:
    from stabilityplugins.scale import checkup

    return [checkup.processes]


@hook
def stages(options: Options) -> Iterable[type[Stage]]:
    if not options.settings.role:
        return ()
    from stabilityplugins.scale.shared_stages import SharedMembership, SharedWork

    return (SharedMembership, SharedWork)


@hook
def before_start(settings: Settings, redis: Redis, location: str) -> Awaitable[None] | None:
    """Refuse a server without roles next to processes with roles; the embedded Redis has none."""
    if settings.role or settings.redis_url is None:
        return None
    from stabilityplugins.scale.members import refuse_beside_members

    return refuse_beside_members(redis, location)
