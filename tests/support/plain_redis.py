"""A ``redis-server`` of the machine on a TCP port of its own, with the options that a test asks for."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ConnectionError

from support.ports import free_port
from support.redis_servers.certificates import Certificate
from support.waiting import wait_until

__all__ = ["PlainRedis", "redis_binary"]

_START_TIMEOUT_S = 10.0


class PlainRedis:
    """Runs while the context lasts; where none is installed the test is skipped at home and fails in CI.

    Args:
        folder: its working folder.
        options: further options of the command line.
        cluster: it is a node of a Redis Cluster, which has no other node.
        sentinel: it is one, and watches nothing.
        tls: it speaks nothing else, with this certificate.
    """

    def __init__(
        self, folder: Path, *options: str, cluster: bool = False, sentinel: bool = False, tls: Certificate | None = None
    ) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}"
        kind = ["--save", "", "--appendonly", "no"]
        if sentinel:
            (folder / "sentinel.conf").touch()  # it wants to write down there what it learns
            kind = [str(folder / "sentinel.conf"), "--sentinel"]
        elif cluster:
            # Its own port for the other nodes, 10,000 above, lies among those that any connection may be given.
            kind += ["--cluster-enabled", "yes", "--cluster-port", str(free_port())]
        where = ["--port", str(self.port)]
        if tls is not None:
            where = [option.format(port=self.port) for option in tls.options]
            self.url = f"rediss://127.0.0.1:{self.port}?ssl_ca_certs={tls.authority}"
        #: How the tests themselves ask it, whatever name its certificate has.
        self._own_url = self.url if tls is None else f"{self.url}&ssl_check_hostname=False"
        self._command = [*redis_binary(), *kind, *where, "--bind", "127.0.0.1", "--dir", str(folder), *options]
        self._process: subprocess.Popen[bytes]

    def __enter__(self) -> PlainRedis:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_until(self._answers, _START_TIMEOUT_S, "redis-server answers")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def info(self, section: str) -> dict[str, Any]:
        """Return a section of what it says of itself."""
        with Redis.from_url(self._own_url) as client:
            found: dict[str, Any] = client.info(section)
            return found

    def send_signal(self, number: int) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """kill -9."""
        self.__exit__(None, None, None)

    def come_back(self) -> None:
        """Start it again at the same address, with what its options let it keep."""
        self.__enter__()

    def come_back_empty(self) -> None:
        """Kill it and start it again at the same address; it keeps nothing."""
        self.kill()
        self.come_back()

    def _answers(self) -> bool:
        assert self._process.poll() is None, "redis-server ended at once"
        with Redis.from_url(self._own_url) as client:
            try:
                return bool(client.ping())
            except ConnectionError:
                return False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()


def redis_binary() -> list[str]:
    """Return the command of the machine's ``redis-server``; without one the test is skipped at home, fails in CI."""
    binary = shutil.which("redis-server")
    if binary is not None:
        return [binary]
    message = "no redis-server on the PATH: install Redis >= 7 to run the tests on it too"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)
