"""Gives memory that the server no longer needs back to the system, instead of keeping it for each thread apart.

glibc gives every thread that allocates a pool of its own (eight for each core), and what is freed in one serves no
other. The server's threads take and free many MiB at a time, on whichever of them is free: parts, aggregates, restart
files. So there is one pool; the interpreter's lock lets hardly two threads allocate at once anyhow. What is freed in it
serves again at once, and what is free every now and then goes back (``trim``): blocks mapped one by one go back by
themselves, but their pages are new each time, and with all from 256 KiB on mapped the server took a quarter more CPU
while points came as fast as it took them (benchmarks/ingest.py, 2026-11).
"""

from __future__ import annotations

import ctypes

__all__ = ["give_memory_back", "trim"]

#: Parameters of mallopt(3), by their names in malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
#: Bytes: blocks from here on are mapped one by one and go back when they are freed.
MAPPED_FROM = 8 * 2**20
#: Bytes free at the pool's end that are kept for the next blocks.
KEPT = 32 * 2**20


def give_memory_back() -> bool:
    """Set the C library's allocator for the whole process; call it before there are threads.

    Returns:
        Whether it could be set: other C libraries than glibc have no such settings, and need none.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    settings = ((_M_ARENA_MAX, 1), (_M_MMAP_THRESHOLD, MAPPED_FROM), (_M_TRIM_THRESHOLD, KEPT))
    return mallopt is not None and all(mallopt(name, value) for name, value in settings)


def trim() -> None:
    """Give back all pages that nothing is in: some ms, for which no thread can allocate. Call it in a thread."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
