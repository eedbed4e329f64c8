"""A vertical: the free space of the server's disk, measured in the background, with a call, a command and a check."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Coroutine
from typing import Any

import typer
from fastapi import APIRouter

from stabilitybackend.base.settings import Settings
from stabilitybackend.cli.options import DataDir, Url, connect
from stabilitybackend.hooks import CheckResult, hook
from stabilitybackend.server.api.access import Reader
from stabilitybackend.server.stage import Stage
from stabilitybackend.server.stages import Options

EVERY_S = 60.0


def free_gib(settings: Settings) -> float:
    return shutil.disk_usage(settings.data_dir).free / 1024**3


class FreeDisk(Stage):
    """The free space of the data folder, measured once a minute."""

    def __init__(self, options: Options) -> None:
        self._settings = options.settings
        self._newest = 0.0

    def work(self) -> dict[str, Coroutine[Any, Any, object]]:
        return {"free-disk": self._measure()}

    async def _measure(self) -> None:
        while True:
            self._newest = await asyncio.to_thread(free_gib, self._settings)
            await asyncio.sleep(EVERY_S)

    def routes(self) -> list[APIRouter]:
        router = APIRouter(prefix="/api/v1", tags=["storage"])

        @router.get("/free_disk")
        async def free_disk(reader: Reader) -> dict[str, float]:
            return {"gib": self._newest}

        return [router]


@hook
def stages() -> list[type[Stage]]:
    return [FreeDisk]


@hook
def commands_of_the_program(cli: typer.Typer) -> None:
    @cli.command()
    def disk(url: Url = None, data_dir: DataDir = None) -> None:
        """Show the free space of the server's disk."""
        with connect(url, None, data_dir) as client:
            typer.echo(f"{client.get('/api/v1/free_disk')['gib']:.1f} GiB")


def disk_is_large(settings: Settings) -> CheckResult:
    free = free_gib(settings)
    return CheckResult("disk", "ok" if free > 1 else "note", f"{free:.1f} GiB free")


@hook
def checks() -> list[object]:
    return [disk_is_large]
