"""Gives memory that the server no longer needs back to the system, instead of keeping it for each thread apart.

glibc gives every thread that allocates a pool of its own (eight for each core), and memory freed in one serves no
other. The server's threads take and free many MiB at a time, on whichever of them is free: parts, aggregates, restart
files. And each large block that is freed makes glibc keep larger ones in the pool, up to 32 MiB, where one small object
above it holds it whole. With one pool, and with large blocks always outside, the server took 626 MiB instead
of 835 during 10 M points, and 477 instead of 754 afterwards, for the same CPU time within the spread of two runs
(benchmarks/timeline.py, 2026-11). The interpreter's lock lets hardly two threads allocate at the same time anyhow.
"""

from __future__ import annotations

import ctypes

__all__ = ["give_memory_back"]

#: Parameters of mallopt(3), by their names in malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
#: Bytes: blocks from here on are mapped one by one and go back when they are freed. With 128 KiB, and nothing kept, the
#: page faults of the many cost a tenth more CPU.
MAPPED_FROM = 256 * 2**10
#: Bytes free at the pool's end that are kept for the next blocks.
KEPT = 4 * 2**20


def give_memory_back() -> bool:
    """Set the C library's allocator for the whole process; call it before there are threads.

    Returns:
        Whether it could be set: other C libraries than glibc have no such settings, and need none.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    settings = ((_M_ARENA_MAX, 1), (_M_MMAP_THRESHOLD, MAPPED_FROM), (_M_TRIM_THRESHOLD, KEPT))
    return mallopt is not None and all(mallopt(name, value) for name, value in settings)
