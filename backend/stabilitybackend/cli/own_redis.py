"""The Redis of the settings for a command that works without a server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from stabilitybackend.base.settings import Settings

__all__ = ["own_redis"]


@contextmanager
def own_redis(settings: Settings) -> Iterator[str]:
    """Give the URL of the Redis given, of the embedded one that runs, or of that one started for a moment."""
    from stabilitybackend.storage.redis_server.embedded import EmbeddedRedis, running_url

    with ExitStack() as stack:
        url = settings.redis_url
        if url is None:
            settings.make_data_dir()
            url = running_url(settings.data_dir)
        if url is None:
            url = stack.enter_context(EmbeddedRedis(settings.data_dir, server=settings.redis_server)).url
        yield url
