"""A run as its last worker left it in Redis, without a worker."""

from __future__ import annotations

from redis.asyncio import Redis

from stabilitybackend.runs.index import RunIndex
from stabilitybackend.runs.run_listing import stored_view
from stabilitybackend.schema.runs import RunView

__all__ = ["store_view"]


async def store_view(redis: Redis, run_id: str, view: RunView, updated: float) -> None:
    """Store what a worker knew, ``updated`` unix seconds."""
    await redis.execute_command(*stored_view(run_id, view, updated))  # type: ignore[no-untyped-call]
    await RunIndex(redis).note_reported(run_id, updated)
