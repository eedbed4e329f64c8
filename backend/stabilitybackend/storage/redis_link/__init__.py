"""The way to Redis or Valkey: clients, the meaning of their errors, and whether a server can be used."""

from __future__ import annotations

from stabilitybackend.base.redis_address import shown_url
from stabilitybackend.storage.redis_link.away import answer_of, as_unavailable, redis_errors
from stabilitybackend.storage.redis_link.checks import check_server
from stabilitybackend.storage.redis_link.clients import InRedis, make_redis, make_watchful
from stabilitybackend.storage.redis_link.cluster import ClusterClient
from stabilitybackend.storage.redis_link.held import HeldConnection
from stabilitybackend.storage.redis_link.notes import RedisNote, examine_redis

__all__ = [
    "ClusterClient", "HeldConnection", "InRedis", "RedisNote", "answer_of", "as_unavailable", "check_server",
    "examine_redis", "make_redis", "make_watchful", "redis_errors", "shown_url",
]  # fmt: skip
