"""``stabilityboard keys``: make, list and revoke API keys.

Works on the same Redis as the server: the one given, the embedded one of a running server, or, when none runs, the
embedded one started for a moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from stabilitybackend.auth import SCOPES, KeyRing
from stabilitybackend.redis_link import check_server, make_redis
from stabilitybackend.redis_server.embedded import EmbeddedRedis, running_url
from stabilitybackend.settings import Settings

__all__ = ["app"]

app = typer.Typer(help="Make, list and revoke API keys.", no_args_is_help=True)

_DataDir = Annotated[Path | None, typer.Option(help="The server's data folder.")]
_RedisUrl = Annotated[str | None, typer.Option(help="The server's Redis, if it does not use the embedded one.")]
_Answer = TypeVar("_Answer")


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="What people call it, for example the cluster or the person.")],
    scope: Annotated[
        list[str] | None, typer.Option(help="agent, read, command; may be repeated. (default: all)")
    ] = None,
    data_dir: _DataDir = None,
    redis_url: _RedisUrl = None,
) -> None:
    """Make a key and show it. It is shown only now."""
    key, text = _with_keys(data_dir, redis_url, lambda ring: ring.create(name, scope or SCOPES))
    typer.echo(text)  # alone on standard output, so that KEY=$(stabilityboard keys create ...) works
    typer.echo(f"key {key.key_id} ({', '.join(key.scopes)}) for {key.name!r}: keep it, it is not shown again", err=True)


@app.command("list")
def list_keys(data_dir: _DataDir = None, redis_url: _RedisUrl = None) -> None:
    """Show all keys, without their secrets."""
    keys = _with_keys(data_dir, redis_url, lambda ring: ring.list())
    if not keys:
        typer.echo("no keys; on loopback none is needed. Make one with: stabilityboard keys create NAME")
        return
    table = Table("id", "name", "scopes", "created", "last used", "state")
    for key in keys:
        state = "works" if key.revoked is None else f"revoked {_when(key.revoked)}"
        table.add_row(key.key_id, escape(key.name), ", ".join(key.scopes), _when(key.created), _when(key.used), state)
    Console().print(table)


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(help="The key's id, see: stabilityboard keys list")],
    data_dir: _DataDir = None,
    redis_url: _RedisUrl = None,
) -> None:
    """Make a key stop working within seconds."""
    key = _with_keys(data_dir, redis_url, lambda ring: ring.revoke(key_id))
    typer.echo(f"key {key.key_id} ({key.name!r}) no longer works")


def _with_keys(
    data_dir: Path | None, redis_url: str | None, action: Callable[[KeyRing], Awaitable[_Answer]]
) -> _Answer:
    settings = Settings.from_env_and_args(os.environ, data_dir=data_dir, redis_url=redis_url)
    with contextlib.ExitStack() as stack:
        url = settings.redis_url
        if url is None:
            settings.make_data_dir()
            url = running_url(settings.data_dir)
        if url is None:
            url = stack.enter_context(EmbeddedRedis(settings.data_dir, server=settings.redis_server)).url
        return asyncio.run(_act(url, action))


async def _act(url: str, action: Callable[[KeyRing], Awaitable[_Answer]]) -> _Answer:
    redis = make_redis(url)
    try:
        await check_server(redis, url)
        return await action(KeyRing(redis))
    finally:
        await redis.aclose()


def _when(seconds: float | None) -> str:
    return "never" if seconds is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
