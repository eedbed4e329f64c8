"""``stabilityboard keys``: make, list and revoke API keys, and read the audit log.

Works on the same Redis as the server: the one given, the embedded one of a running server, or, when none runs, the
embedded one started for a moment.
"""

from __future__ import annotations

import asyncio
import getpass
import os
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from stabilitybackend.base.errors import BadRequest
from stabilitybackend.base.settings import Settings
from stabilitybackend.cli.options import AsJson, check_unasked, show_json
from stabilitybackend.cli.own_redis import own_redis

if TYPE_CHECKING:  # Redis' client takes as long to load as half of the program: only its users wait for it
    from stabilitybackend.access.audit import AuditLog
    from stabilitybackend.access.auth import ApiKey, KeyRing
    from stabilitybackend.schema.server import AuditEntry

__all__ = ["app"]

app = typer.Typer(help="Make, list and revoke API keys.", no_args_is_help=True)

_DataDir = Annotated[Path | None, typer.Option(help="The server's data folder.")]
_RedisUrl = Annotated[str | None, typer.Option(help="The server's Redis, if it does not use the embedded one.")]
_Answer = TypeVar("_Answer")
#: State of the server after the revocation of its last key.
_LOCKED = (
    "The server refuses every call without a key, also from this machine, until one is made "
    "(stabilityboard keys create NAME) or it is opened (stabilityboard keys open)."
)


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="What people call it, for example the cluster or the person.")],
    role: Annotated[
        str | None,
        typer.Option(help="viewer, operator, admin, agent or assistant: a name for some scopes, see docs/security.md."),
    ] = None,
    scope: Annotated[
        list[str] | None,
        typer.Option(
            help="agent, read, propose, command, admin; may be repeated. (default: agent, read and command; admin, "
            "which deletes runs, has to be named)"
        ),
    ] = None,
    project: Annotated[str | None, typer.Option(help="Only for the runs of this project. (default: all)")] = None,
    as_json: AsJson = False,
    data_dir: _DataDir = None,
    redis_url: _RedisUrl = None,
) -> None:
    """Make a key and show it. It is shown only now."""
    from stabilitybackend.access.auth import USUAL_SCOPES, scopes_of

    if role is not None and scope:
        raise BadRequest("--role and --scope given, expected one of them", hint="a role is a name for scopes")
    scopes = scopes_of(role) if role is not None else scope or USUAL_SCOPES

    async def make(ring: KeyRing, log: AuditLog) -> tuple[ApiKey, str]:
        made = await ring.create(name, scopes, project)
        await log.add(_person(), None, "key.create", made[0].key_id, f"{name}: {', '.join(made[0].scopes)}")
        return made

    key, text = _with_keys(data_dir, redis_url, make)
    if as_json:
        show_json({"key": text, **_shown(key)})
        return
    bound = "" if key.project is None else f", project {key.project}"
    typer.echo(text)  # alone on standard output, so that KEY=$(stabilityboard keys create ...) works
    typer.echo(
        f"key {key.key_id} ({', '.join(key.scopes)}{bound}) for {key.name!r}: keep it, it is not shown again", err=True
    )


@app.command("list")
def list_keys(as_json: AsJson = False, data_dir: _DataDir = None, redis_url: _RedisUrl = None) -> None:
    """Show all keys, without their secrets."""
    from stabilitybackend.access.auth import role_of

    keys = _with_keys(data_dir, redis_url, lambda ring, log: ring.list())
    if as_json:
        show_json({"keys": [_shown(key) for key in keys]})
        return
    if not keys:
        typer.echo("no keys; on loopback none is needed. Make one with: stabilityboard keys create NAME")
        return
    table = Table("id", "name", "role", "scopes", "project", "created", "last used", "state")
    for key in keys:
        state = "works" if key.revoked is None else f"revoked {_when(key.revoked)}"
        project = "all" if key.project is None else escape(key.project)
        table.add_row(
            key.key_id, escape(key.name), role_of(key.scopes), ", ".join(key.scopes), project, _when(key.created),
            _when(key.used), state,
        )  # fmt: skip
    Console().print(table)


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(help="The key's id, see: stabilityboard keys list")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask, also of the last key.")] = False,
    as_json: AsJson = False,
    data_dir: _DataDir = None,
    redis_url: _RedisUrl = None,
) -> None:
    """Make a key stop working within seconds. Of the last one it asks, as every call is refused then."""

    async def end(ring: KeyRing, log: AuditLog) -> tuple[ApiKey, bool]:
        last = [key.key_id for key in await ring.list() if key.revoked is None] == [key_id]
        if last and not yes:
            if as_json:
                check_unasked(yes)
            typer.confirm(f"{key_id} is the last key that works. {_LOCKED} Revoke it?", abort=True, err=True)
        ended = await ring.revoke(key_id)
        await log.add(_person(), None, "key.revoke", key_id, ended.name)
        return ended, last

    key, last = _with_keys(data_dir, redis_url, end)
    if as_json:
        show_json(_shown(key))
        return
    typer.echo(f"key {key.key_id} ({key.name!r}) no longer works")
    if last:
        typer.echo(f"no key works now. {_LOCKED}", err=True)


@app.command("open")
def open_server(as_json: AsJson = False, data_dir: _DataDir = None, redis_url: _RedisUrl = None) -> None:
    """Let every user of this machine in without a key again, once all keys are revoked."""

    async def allow(ring: KeyRing, log: AuditLog) -> None:
        await ring.open()
        await log.add(_person(), None, "key.open", "", "")

    _with_keys(data_dir, redis_url, allow)
    if as_json:
        show_json({"open": True})
        return
    typer.echo("calls from this machine need no key now, until the next one is made")


@app.command()
def audit(
    count: Annotated[int, typer.Option(help="Newest entries.", min=1, max=10_000)] = 50,
    as_json: AsJson = False,
    data_dir: _DataDir = None,
    redis_url: _RedisUrl = None,
) -> None:
    """Show who deleted runs, made or revoked keys, and logged in, newest first."""
    entries: list[AuditEntry] = _with_keys(data_dir, redis_url, lambda ring, log: log.newest(count))
    if as_json:
        show_json({"entries": entries})
        return
    table = Table("when", "who", "key", "what", "of", "more")
    for entry in entries:
        shown = (entry.who, entry.key_id or "", entry.action, entry.target, entry.detail)
        table.add_row(_when(entry.time), *map(escape, shown))
    Console().print(table)


def _shown(key: ApiKey) -> dict[str, Any]:
    """Return the public facts of a key: all but the digest of its secret."""
    from stabilitybackend.access.auth import role_of

    facts: dict[str, Any] = msgspec.to_builtins(key)
    del facts["sha256"]
    return facts | {"role": role_of(key.scopes)}


def _with_keys(
    data_dir: Path | None, redis_url: str | None, action: Callable[[KeyRing, AuditLog], Awaitable[_Answer]]
) -> _Answer:
    with own_redis(Settings.from_env_and_args(os.environ, data_dir=data_dir, redis_url=redis_url)) as url:
        return asyncio.run(_act(url, action))


async def _act(url: str, action: Callable[[KeyRing, AuditLog], Awaitable[_Answer]]) -> _Answer:
    from stabilitybackend.access.audit import AuditLog
    from stabilitybackend.access.auth import KeyRing
    from stabilitybackend.storage.redis_link import check_server, make_redis

    redis = make_redis(url)
    try:
        await check_server(redis, url)
        return await action(KeyRing(redis), AuditLog(redis))
    finally:
        await redis.aclose()


def _person() -> str:
    """Return the user at the command line; access to Redis is permission enough."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):  # a numeric user without a name, as in containers
        return f"uid {os.getuid()}@{socket.gethostname()}"


def _when(seconds: float | None) -> str:
    return "never" if seconds is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
