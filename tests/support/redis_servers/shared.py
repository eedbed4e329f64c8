"""One cluster for all servers of a process of tests, where ``STABILITY_TEST_REDIS=cluster`` asks for it.

    STABILITY_TEST_REDIS=cluster python -m pytest tests/stack -n 2 --dist loadfile

runs the tests of the whole stack, those of several processes too, on three masters with three replicas in place of the
embedded server, or the one of their own.
"""

from __future__ import annotations

import atexit
import functools
import os
import tempfile
from pathlib import Path

from support.redis_servers.cluster import RedisNodes

__all__ = ["shared_cluster"]


def shared_cluster() -> RedisNodes | None:
    """Return the cluster, None where the tests use the embedded server."""
    asked = os.environ.get("STABILITY_TEST_REDIS", "")
    assert asked in ("", "cluster"), f"STABILITY_TEST_REDIS is {asked!r}, expected cluster"
    return _started() if asked else None


@functools.cache
def _started() -> RedisNodes:
    folder = tempfile.TemporaryDirectory(prefix="cluster-")
    nodes = RedisNodes(Path(folder.name)).__enter__()
    atexit.register(folder.cleanup)
    atexit.register(nodes.__exit__, None, None, None)
    return nodes
