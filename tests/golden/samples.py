"""Reads what `record.py` stored of an older version, and puts it where today's server finds it."""

from __future__ import annotations

import base64
import gzip
import io
import json
import struct
import tarfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

from redis import Redis

__all__ = ["VERSION", "Message", "answers", "fill_redis", "frames", "talk", "unpack", "with_other_ids"]

#: The commit that the samples are of.
VERSION = "62f28c5"
_FOLDER = Path(__file__).parent / VERSION
_HEADER = struct.Struct("<2sBBI")


class Message(NamedTuple):
    """One message of the recorded talk, as bytes.

    Args:
        connection: which connection of an agent, from 1. by: ``agent`` or ``server``. data: header and body.
    """

    connection: int
    by: str
    data: bytes


def _lines(name: str) -> list[Any]:
    return [json.loads(line) for line in gzip.decompress((_FOLDER / name).read_bytes()).splitlines()]


def answers() -> dict[str, Any]:
    """Return what the older server answered: path and query below /api/v1 -> JSON; ``key``: an API key of it."""
    return json.loads(gzip.decompress((_FOLDER / "answers.json.gz").read_bytes()))  # type: ignore[no-any-return]


def talk() -> list[Message]:
    """Return what the older agents and their server said, in order."""
    return [Message(m["connection"], m["by"], base64.b64decode(m["bytes"])) for m in _lines("talk.jsonl.gz")]


def unpack(name: str, folder: Path) -> Path:
    """Unpack ``archive`` or ``spool`` into a folder and return where it is."""
    data = gzip.decompress((_FOLDER / f"{name}.tar.gz").read_bytes())
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        tar.extractall(folder, filter="data")
        return folder / tar.getnames()[0]


def fill_redis(url: str) -> None:
    """Put into an empty Redis what the older server left there."""
    with Redis.from_url(url) as redis:
        for line in _lines("redis.jsonl.gz"):
            key, value = line["key"], _bytes(line["value"])
            if line["type"] == "hash":
                redis.hset(key, mapping=value)
            elif line["type"] == "zset":
                redis.zadd(key, dict(value))
            elif line["type"] == "list":
                redis.rpush(key, *value)
            elif line["type"] == "set":
                redis.sadd(key, *value)
            elif line["type"] == "string":
                redis.set(key, value)
            else:
                for place, fields in value:
                    redis.xadd(key, fields, id=place)


def frames() -> list[bytes]:
    """Return the frames that lie in Redis, as they came."""
    streams = (_bytes(line["value"]) for line in _lines("redis.jsonl.gz") if line["key"].endswith(":frames"))
    return [fields[b"b"] for stream in streams for _, fields in stream]


def with_other_ids(data: bytes, ids: dict[bytes, bytes]) -> bytes:
    """Return a message with ids replaced by others of the same length."""
    for old, new in ids.items():
        assert len(old) == len(new)
        data = data.replace(old, new)
    magic, version, kind, _ = _HEADER.unpack_from(data)
    body = data[_HEADER.size :]
    return _HEADER.pack(magic, version, kind, zlib.crc32(body)) + body


def _bytes(value: Any) -> Any:
    """Return a value of the dump with its texts as the bytes that they stand for."""
    if isinstance(value, dict):
        return {_bytes(key): _bytes(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_bytes(item) for item in value]
    return base64.b64decode(value) if isinstance(value, str) else value
