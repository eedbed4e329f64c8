"""A check of ``stabilityboard doctor``: the processes that work on the Redis, and their versions."""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from typing import Any

from stabilitybackend.base.errors import RedisStartError
from stabilitybackend.base.settings import Settings
from stabilitybackend.cli.checkup import ask
from stabilitybackend.hooks import CheckResult
from stabilitybackend.storage.redis_link import check_server
from stabilityplugins.scale.members import Member, Members
from stabilityplugins.scale.versions import allowed, taking_no_part


def processes(settings: Settings) -> CheckResult | None:
    """Return the processes on the Redis, and whether this version may work with them."""
    if settings.redis_url is None:
        return None
    us = Member("doctor", (), "", version("stabilityboard"))

    async def seen(redis: Any, url: str) -> Members:
        await check_server(redis, url)
        members = Members(redis, us)
        await members.refresh()
        return members

    try:
        members = asyncio.run(ask(settings.redis_url, seen))
    except RedisStartError:  # which a check of the core explains
        return None
    there = members.in_order()
    if not there:
        return CheckResult("processes", "ok", "none with a role works on this Redis")
    if (why := members.trouble(0.0)) is not None:
        return CheckResult("processes", "note", why.problem, why.hint)
    versions = sorted({one.version for one in there})
    work = f"{len(there)} with roles work on this Redis, of version {' and '.join(versions)}"
    if us in taking_no_part([*there, us], lambda one: one.version):
        return CheckResult(
            "processes", "fail", f"{work}; here is {us.version}, which would take no part",
            f"install version {allowed(versions)}: upgrade by one minor version at a time",
        )  # fmt: skip
    return CheckResult("processes", "ok", work)
