"""What Redis alone takes in: redis-benchmark's XADD, pipelined, on a server of the product's own settings."""

from __future__ import annotations

import random
import shutil
import string
import subprocess
import tempfile
from pathlib import Path

from big_run import METRICS

from stabilitybackend.storage.redis_server.embedded import EmbeddedRedis

__all__ = ["floor"]

#: redis-benchmark: connections, and requests on their way on each: an agent may have 16 frames on its way; rows as many
#: as still make it faster.
FLOOR_CLIENTS, FLOOR_PIPELINE, FLOOR_PIPELINE_ROWS = 8, 16, 100
#: Bytes sent for each floor.
FLOOR_FRAMES_BYTES, FLOOR_ROWS_BYTES = 3 * 2**30, 512 * 2**20
#: The floor's stream is bounded as ours is.
FLOOR_WINDOW_BYTES = 64 * 2**20


def floor(frame_bytes: int, rows: int) -> dict[str, float] | str:
    """Return points/s of redis-benchmark's XADD, a row a message and a frame a message; or why it can't be run."""
    program = shutil.which("redis-benchmark")
    if program is None:
        return "redis-benchmark is not installed"
    row_bytes = 8 * (2 + len(METRICS))  # step, time and the values
    with tempfile.TemporaryDirectory(prefix="floor-") as folder, EmbeddedRedis(Path(folder)) as redis:
        base = [program, "-s", redis.url.removeprefix("unix://"), "-c", str(FLOOR_CLIENTS), "-q", "--csv"]
        return {
            "rows": _messages_s(base, FLOOR_PIPELINE_ROWS, row_bytes, FLOOR_ROWS_BYTES) * len(METRICS),
            "frames": _messages_s(base, FLOOR_PIPELINE, frame_bytes, min(FLOOR_FRAMES_BYTES, 1_000_000 * frame_bytes))
            * rows
            * len(METRICS),
        }


def _messages_s(base: list[str], pipeline: int, size: int, total: int) -> float:
    """Return XADDs per second of messages of ``size`` bytes, to a stream that is bounded as ours is."""
    text = "".join(random.Random(1).choices(string.ascii_letters + string.digits, k=size))
    count, keep = total // size, max(64, FLOOR_WINDOW_BYTES // size)
    command = [
        *base,
        "-n",
        str(count),
        "-P",
        str(pipeline),
        "-x",
        "XADD",
        "{bench}:frames",
        "MAXLEN",
        "~",
        str(keep),
        "*",
    ]
    command += ["s", "r0-18b2f0c5a1-1000", "a", "1000000", "z", "1000511", "b"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    return float(done.stdout.strip().splitlines()[-1].split(",")[1].strip('"'))
