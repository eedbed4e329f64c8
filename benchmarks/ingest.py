"""Points per second that the server takes in, folds, judges and archives, beside what Redis alone does with the bytes.

    python benchmarks/ingest.py [--seconds 60] [--repeats 3] [--rows 512 10] [--node] [--json]

Eight agents (the ranks of one run; 12 metrics a row) send as fast as the server confirms, or with ``--node`` one agent
that has eight ranks and puts ``--rows`` of each into one message. "Sustained" counts all of
it: the clock runs from the first frame until every point is folded and what does not fit into the window of recent
frames is archived. The floors are redis-benchmark's XADD, pipelined, on a Redis of the same settings (append-only file,
fsync each second), measured just before each repeat, with nobody reading: once with a message for each row of 12
metrics (the bytes of a row; what a tracker that puts rows into Redis could reach at best), once with whole frames of
the same bytes (what Redis and the disk allow). Aims: half of the first floor, and 2.5 M points/s. Returns 1 when one is
missed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from big_run import METRICS, row_values
from parts.feeding import feed, reports_of
from parts.redis_floor import floor
from parts.server_process import ServerProcess, usage

from stabilitybackend.base.keys import RunKeys
from stabilityclient.node_frames import frames_in
from stabilityclient.wire import Frame, PointsBlock, SourceInfo, encode_message

AGENTS = 8
#: Processes that feed: each has half of the agents, in a thread each.
FEEDERS = 2
RUN_ID = "ingest"
#: The aims of the product.
AIM_RATIO, AIM_POINTS_S = 0.5, 2.5e6
#: Longest wait after the last frame until everything is folded and archived, seconds.
SETTLE_S = 120.0


# --- the server ---------------------------------------------------------------------------------------------------


def measure(rows: int, seconds: float, settings: dict[str, str], profile: Path | None, *, node: bool) -> dict[str, Any]:
    """Return the figures of one run of the server."""
    feeders_wanted = 1 if node else FEEDERS
    with (
        tempfile.TemporaryDirectory(prefix="ingest-") as folder,
        ServerProcess(Path(folder) / "data", settings) as server,
    ):
        redis_pid = server.redis_pid()
        spy = None
        if profile is not None:
            command = ["py-spy", "record", "-p", str(server.pid), "-o", str(profile), "-f", "raw", "-r", "200"]
            spy = subprocess.Popen([*command, "-d", str(int(seconds))], stdout=subprocess.DEVNULL)
        begin = time.time() + 1.5
        idle = usage(server.pid), usage(redis_pid)
        feeders = []
        for number in range(feeders_wanted):
            ranks = list(range(number, AGENTS, feeders_wanted))
            agents = [ranks] if node else [[rank] for rank in ranks]
            feeders.append(feed([(server.port, RUN_ID, some) for some in agents], AGENTS, rows, begin, seconds))
        window = Window(server)
        window.start()
        reports = reports_of(feeders)
        acked = max(each["ended"] for each in reports)
        ranks = [rank for each in reports for rank in each["ranks"]]
        last = min(int(rank["rows"]) for rank in ranks)
        folded = wait_folded(server, max(int(rank["rows"]) for rank in ranks))
        archived, storage = wait_archived(server)
        window.stop()
        if spy is not None:
            spy.wait(60)
        points = sum(rank["rows"] for rank in ranks) * len(METRICS)
        now = usage(server.pid), usage(redis_pid)
        hot = redis_bytes(server)
        assert last > 0
        return {
            "points": points,
            "frames": sum(rank["frames"] for rank in ranks),
            "busy": sum(rank["busy"] for rank in ranks),
            "acked_points_s": points / (acked - begin),
            "points_s": points / (max(folded, archived) - begin),
            "behind_s": max(folded, archived) - acked,
            "cpu_s": sum(after.cpu_s - before.cpu_s for before, after in zip(idle, now, strict=True)) / points * 1e6,
            "server_cpu_s": (now[0].cpu_s - idle[0].cpu_s) / points * 1e6,
            "redis_cpu_s": (now[1].cpu_s - idle[1].cpu_s) / points * 1e6,
            "feeder_cpu_s": sum(each["cpu_s"] for each in reports) / points * 1e6,
            "server_peak_mib": now[0].peak_mib,
            "redis_peak_mib": now[1].peak_mib,
            "window_max_mib": window.stream / 2**20,
            "redis_max_mib": window.all / 2**20,
            "window_limit_mib": storage.get("hot", {}).get("limit_bytes", 0) / 2**20,
            "redis_bytes_point": hot["bytes"] / max(1, hot["values"]),
            "disk_bytes_point": storage.get("cold", {}).get("bytes", 0)
            / max(1, storage.get("cold", {}).get("rows", 0)),
            "parts": storage.get("cold", {}).get("parts", 0),
            "frame_bytes": hot["frame_bytes"],
        }


class Window(threading.Thread):
    """Samples what Redis holds, ten times a second: the run's stream, and everything."""

    def __init__(self, server: ServerProcess) -> None:
        super().__init__(daemon=True)
        self._redis, self._over = server.redis(), threading.Event()
        #: Greatest number of bytes seen of the stream, and of all that Redis uses (buffers of clients and of its file).
        self.stream = self.all = 0

    def run(self) -> None:
        while not self._over.wait(0.1):
            size: Any = self._redis.memory_usage(RunKeys(RUN_ID).frames)
            info: Any = self._redis.info("memory")
            self.stream, self.all = max(self.stream, size or 0), max(self.all, int(info["used_memory"]))

    def stop(self) -> None:
        self._over.set()
        self.join()
        self._redis.close()


def wait_folded(server: ServerProcess, last_step: int) -> float:
    """Return the unix time at which the newest step was in the answers."""
    end = time.time() + SETTLE_S
    while time.time() < end:
        if (server.get(f"/runs/{RUN_ID}")["last_step"] or 0) >= last_step:
            return time.time()
        time.sleep(0.1)
    raise SystemExit(f"step {last_step} was not folded within {SETTLE_S:.0f} s")


def wait_archived(server: ServerProcess) -> tuple[float, dict[str, Any]]:
    """Return the unix time at which the window was within its limit, and the storage facts (an older server: now)."""
    end = time.time() + SETTLE_S
    while time.time() < end:
        response = server.try_ask(f"/runs/{RUN_ID}/storage")
        if response is None:
            return time.time(), {}
        facts: dict[str, Any] = response.json()
        if facts["state"] == "ok" and facts["hot"]["bytes"] <= facts["hot"]["limit_bytes"]:
            return time.time(), facts
        time.sleep(0.1)
    raise SystemExit(f"the window was not within its limit {SETTLE_S:.0f} s after the last frame: {facts}")


def redis_bytes(server: ServerProcess) -> dict[str, float]:
    """Return what the run's stream takes in Redis, all of it counted, and how many values it holds."""
    key = RunKeys(RUN_ID).frames
    with server.redis() as redis:
        entries: Any = redis.xrange(key, count=64)
        length: Any = redis.xlen(key)
        size: Any = redis.memory_usage(key, samples=0)
    messages = [fields[b"b"] for _, fields in entries]
    rows = [sum(one.last_seq - one.first_seq + 1 for one in frames_in(message)) for message in messages]
    mean = statistics.median(map(len, messages)) if messages else 0
    return {
        "bytes": size or 0,
        "values": statistics.median(rows) * len(METRICS) * length if rows else 0,
        "frame_bytes": mean,
    }


# --- the table ----------------------------------------------------------------------------------------------------


def table(rows: int, figures: list[dict[str, Any]], floors: list[dict[str, float] | str]) -> str:
    """Return the figures of one frame size as text: median over repeats [lowest..highest]."""

    def spread(key: str, scale: float = 1.0, digits: int = 2) -> str:
        values = [one[key] * scale for one in figures]
        return f"{statistics.median(values):.{digits}f} [{min(values):.{digits}f}..{max(values):.{digits}f}]"

    lines = [
        f"\n{rows} rows of {len(METRICS)} metrics a frame ({figures[0]['frame_bytes'] / 1024:.1f} KiB), "
        f"{AGENTS} agents, median of {len(figures)} [lowest..highest]",
        f"  sustained (folded and archived)  {spread('points_s', 1e-6)} M points/s",
        f"  confirmed to the agents          {spread('acked_points_s', 1e-6)} M points/s; "
        f"the rest took {spread('behind_s', 1, 1)} s",
    ]
    ratios = floor_ratios(figures, floors)
    if ratios:
        known = [one for one in floors if not isinstance(one, str)]
        for key, what in (("rows", "XADD of rows, -P 100"), ("frames", "XADD of frames, -P 16")):
            values = [one[key] / 1e6 for one in known]
            text = f"{statistics.median(values):.2f} [{min(values):.2f}..{max(values):.2f}]"
            lines.append(f"  floor: {what:<26}{text} M points/s; ours is {ratios[key]:.2f} of it")
    else:
        lines.append(f"  floor: left out, {floors[0]}")
    lines += [
        f"  CPU s per 1 M points             server {spread('server_cpu_s')}, Redis {spread('redis_cpu_s')}, "
        f"feeders {spread('feeder_cpu_s')}",
        f"  peak memory, MiB                 server {spread('server_peak_mib', 1, 0)}, "
        f"Redis {spread('redis_peak_mib', 1, 0)}",
        f"  window in Redis, MiB             at most {spread('window_max_mib', 1, 0)}, "
        f"limit {figures[0]['window_limit_mib']:.0f}; all that Redis uses at most {spread('redis_max_mib', 1, 0)}",
        f"  bytes per point                  Redis {spread('redis_bytes_point', 1, 1)}, "
        f"archive {spread('disk_bytes_point', 1, 1)} in {figures[-1]['parts']} parts",
    ]
    busy = sum(one["busy"] for one in figures)
    if busy:
        lines.append(f"  the server asked agents to wait {busy:.0f} times")
    return "\n".join(lines)


def floor_ratios(figures: list[dict[str, Any]], floors: list[dict[str, float] | str]) -> dict[str, float]:
    """Return the median over repeats of ours divided by each floor in the same repeat; nothing where there is none."""
    pairs = [(one, base) for one, base in zip(figures, floors, strict=True) if not isinstance(base, str)]
    if not pairs:
        return {}
    return {key: statistics.median(one["points_s"] / base[key] for one, base in pairs) for key in ("rows", "frames")}


def main() -> int:
    """Measure, print, and return 0 when all aims are held at the first frame size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the agents send")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows", type=int, nargs="+", default=[512, 10], help="rows a frame; 512 is a backlog's")
    parser.add_argument("--node", action="store_true", help="one agent sends the rows of all ranks in one message")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="settings of the server")
    parser.add_argument("--no-floor", action="store_true")
    parser.add_argument("--profile", type=Path, help="write what py-spy saw in the server to this file")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    settings = dict(pair.split("=", 1) for pair in options.set)
    facts: dict[str, Any] = {}
    aims: dict[str, bool] = {}
    for rows in options.rows:
        size = len(sample_frame(rows))
        figures: list[dict[str, Any]] = []
        floors: list[dict[str, float] | str] = []
        for repeat in range(options.repeats):
            print(f"{rows} rows a frame, repeat {repeat + 1}/{options.repeats}          ", end="\r", file=sys.stderr)
            floors.append("not asked for" if options.no_floor else floor(size, rows))
            figures.append(measure(rows, options.seconds, settings, options.profile, node=options.node))
        ratios = floor_ratios(figures, floors)
        rate = statistics.median(one["points_s"] for one in figures)
        facts[str(rows)] = {"figures": figures, "floors": floors, "ratios": ratios}
        if rows == options.rows[0]:
            aims[f"{AIM_POINTS_S / 1e6} M points/s"] = rate >= AIM_POINTS_S
            aims |= {f"{AIM_RATIO:.0%} of the floor, {name}": ratio >= AIM_RATIO for name, ratio in ratios.items()}
        if not options.json:
            print(table(rows, figures, floors), flush=True)
    if options.json:
        print(json.dumps(facts))
    else:
        results = ", ".join(f"{aim} {'held' if held else 'MISSED'}" for aim, held in aims.items())
        print(f"aims at {options.rows[0]} rows a frame: {results}")
    return 0 if all(aims.values()) else 1


def sample_frame(rows: int) -> bytes:
    """Return a frame as the feeders send it."""
    steps = np.arange(1, rows + 1)
    values = row_values(np.random.default_rng(0), steps)
    block = PointsBlock(list(METRICS), steps.tobytes(), (steps * 0.01).tobytes(), values.tobytes())
    return encode_message(Frame(SourceInfo("r0-0-1", 0, AGENTS, 0, "n0", 1, 1.0, 0), 1, rows, [block]))


if __name__ == "__main__":
    sys.exit(main())
