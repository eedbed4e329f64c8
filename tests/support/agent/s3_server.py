"""A real S3 server (moto's) on a port of its own, for what speaks to object stores."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import pytest

from support.ports import free_port
from support.waiting import wait_until

__all__ = ["KEYS", "needs", "put", "s3_server"]

#: The environment as a user sets it for a store that is not Amazon's, but for its endpoint.
KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
_START_TIMEOUT_S = 30.0


def needs(module: str) -> None:
    """Skip the test where a package is missing; in CI it fails."""
    if find_spec(module) is None:
        message = f"{module} is not installed: pip install -r requirements/test.txt"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)


@contextmanager
def s3_server() -> Iterator[str]:
    """Give its URL; it has an empty ``bucket``."""
    needs("obstore")
    needs("moto")
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        assert process.poll() is None, "the S3 server ended at once"
        try:
            return bool(urllib.request.urlopen(url, timeout=5).status)
        except urllib.error.URLError:
            return False

    try:
        wait_until(answers, _START_TIMEOUT_S, "the S3 server answers")
        urllib.request.urlopen(urllib.request.Request(f"{url}/bucket", method="PUT"), timeout=5)
        yield url
    finally:
        process.kill()
        process.wait()


def put(endpoint: str, key: str, data: bytes | None) -> None:
    """Write an object of ``bucket``, or delete it (None)."""
    from obstore.store import S3Store

    keys: Any = {name.lower(): value for name, value in KEYS.items()}
    store = S3Store("bucket", endpoint=endpoint, client_options={"allow_http": True}, **keys)
    if data is None:
        store.delete(key)
    else:
        store.put(key, data)
