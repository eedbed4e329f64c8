"""What an archive in an object store asks of it: requests, bytes and time for each part written, read and merged.

    python benchmarks/object_store.py [--windows 4 32] [--repeats 5] [--run-points 3000000]

Against moto's S3 server behind a proxy that counts, both on this machine: the counts are those of any S3 store, the
times are a floor. First the archive alone: one part of half a window, 12 metrics, one rank, ``--repeats`` times each
(median [lowest..highest]). Then the whole server takes a run of ``--run-points`` points, and all that its bucket was
asked meanwhile is divided by them: merges and the sweeping of merged files are in it. From that the last table has PUTs
an hour and a month at several rates.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from archive import curves, frames
from big_run import METRICS, row_values
from parts.feeder import WireAgent
from parts.server_process import ServerProcess

from stabilitybackend.runs.archiving.archiver import MAX_ROWS, MERGE_PARTS, compact
from stabilitybackend.runs.archiving.window import ARCHIVED_SHARE, FRAME_OVERHEAD_BYTES
from stabilitybackend.storage.archive.cache import ByteCache
from stabilitybackend.storage.archive.layout import Part
from stabilitybackend.storage.archive.location import Location, open_location
from stabilitybackend.storage.archive.part import PartReader, write_part
from stabilityclient.wire import EventBlock, Frame, PointsBlock, SourceInfo, encode_message

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.agent.s3_server import KEYS, s3_server
from support.agent.store_proxy import StoreProxy, Traffic, store_proxy

MIB = 2**20
#: Rows of a frame, as an agent sends them that has some to send.
FRAME_ROWS = 64
RATES = (8_000, 200_000, 2_100_000)
#: A fold's state of a usual run, bytes (13 to 205 KiB were measured).
STATE_BYTES = 50_000
#: Dollars of a million PUT, LIST or POST, and of a million GET or HEAD (S3 standard, list price of 2026-11).
PUT_PRICE, GET_PRICE = 5.0, 0.4
TIMEOUT_S = 600.0


def frame_of(info: SourceInfo, at: int, rows: int) -> Frame:
    """Return a frame of ``rows`` rows after step ``at``."""
    steps = np.arange(at + 1, at + rows + 1)
    values = row_values(np.random.default_rng(at), steps)
    times = info.started + steps * 0.01
    block = PointsBlock(list(METRICS), steps.tobytes(), times.tobytes(), np.ascontiguousarray(values).tobytes())
    return Frame(info, at + 2, at + 1 + rows, [block])


def point_bytes() -> float:
    """Return what a point takes of the window, bytes: of the message and of its entry."""
    message = encode_message(frame_of(SourceInfo("r-r0-1", 0, 1, 0, "n0", 1, 1.0, 0), 0, FRAME_ROWS))
    return (len(message) + FRAME_OVERHEAD_BYTES) / (FRAME_ROWS * len(METRICS))


class Figures:
    """What one kind of work asked for, each time that it was done."""

    def __init__(self, proxy: StoreProxy) -> None:
        self._proxy = proxy
        self._found: dict[str, list[tuple[Traffic, float]]] = {}

    def measure(self, what: str, action: Callable[[], object]) -> None:
        """Do it once and note what it asked for."""
        self._proxy.take()
        begin = time.perf_counter()
        action()
        self._found.setdefault(what, []).append((self._proxy.take(), time.perf_counter() - begin))

    def say(self) -> None:
        """Print a line for each kind."""
        for what, times in self._found.items():
            requests = times[0][0].requests
            asked = ", ".join(f"{count} {method}" for method, count in sorted(requests.items())) or "nothing"
            up, down = (spread([getattr(one, way) / MIB for one, _ in times]) for way in ("sent", "received"))
            print(f"  {what:<36} {asked:<24} MiB up {up}, down {down}; ms {spread([1e3 * t for _, t in times], 0)}")


def spread(values: list[float], digits: int = 2) -> str:
    """Return the median [lowest..highest]."""
    return f"{statistics.median(values):.{digits}f} [{min(values):.{digits}f}..{max(values):.{digits}f}]"


class Parts:
    """Eight parts of half a window in a row, and what is done with them.

    Args:
        steps: of each part.
    """

    def __init__(self, place: Location, run: str, steps: int) -> None:
        self.written: list[Part] = []
        self._place, self._run, self._steps = place, run, steps

    def write(self) -> None:
        number = len(self.written)
        series = curves(self._steps, number * self._steps)
        self.written.append(
            write_part(
                self._place, self._run, f"part-{number}", from_id=f"{number}-0", to_id=f"{number + 1}-0",
                series=series, frames=frames(series), state=b"s" * STATE_BYTES, created=0.0,
            )
        )  # fmt: skip

    def merge(self) -> None:
        self.written.append(compact(self._place, self._run, [self._read(part) for part in self.written], "merged", 0.0))

    def sweep(self) -> None:
        Part.delete_files(self._place, self._run, self.written.pop(0).stem)

    def chart(self) -> None:
        self._read(self.written[0]).aggregates(curves(8)[3][0], 0, self._steps, 8)

    def zoom(self) -> None:
        self._read(self.written[0]).rows(curves(8)[3][0], 100, 2_100)

    def fold_again(self) -> None:
        reader = self._read(self.written[0])
        for _ in reader.frames():
            pass
        reader.state()

    def _read(self, part: Part) -> PartReader:
        return PartReader(self._place, self._run, part, ByteCache(256 * MIB))


def archive_alone(place: Location, proxy: StoreProxy, window_mib: float, repeats: int) -> None:
    """Measure parts of half a window."""
    steps = int(ARCHIVED_SHARE * window_mib * MIB / point_bytes() / len(METRICS))
    print(f"window {window_mib:g} MiB: a part has {steps * len(METRICS):,} points; load {os.getloadavg()[0]:.1f}")
    figures = Figures(proxy)
    for turn in range(repeats):
        parts = Parts(place, f"bench-{window_mib:g}-{turn}", steps)
        for _ in range(MERGE_PARTS):
            figures.measure("write a part", parts.write)
        figures.measure("a chart of a metric, nothing cached", parts.chart)
        figures.measure("2,000 raw steps of a metric", parts.zoom)
        figures.measure("all frames, to fold them again", parts.fold_again)
        if MERGE_PARTS * steps * len(METRICS) <= MAX_ROWS:  # larger ones stay as they are
            figures.measure(f"merge {MERGE_PARTS} parts", parts.merge)
        while parts.written:
            figures.measure("sweep a part", parts.sweep)
    figures.say()


def whole_server(proxy: StoreProxy, window_mib: float, points: int) -> tuple[Traffic, int]:
    """Return what a server's bucket was asked while a run of so many points came in, and how many went there."""
    settings = {"STABILITY_WINDOW_MIB": f"{window_mib:g}", "STABILITY_ARCHIVE_URL": f"s3://bucket/run-{window_mib:g}"}
    rows = points // len(METRICS)
    with tempfile.TemporaryDirectory() as folder, ServerProcess(Path(folder), settings) as server:
        started = time.time() - 1.0
        info = SourceInfo("r-r0-1", 0, 1, 0, "n0", 1, started, 0)
        proxy.take()
        with WireAgent("127.0.0.1", server.port, "r", "a", sources=(info,)) as agent:
            agent.send(Frame(info, 1, 1, [EventBlock("start", started)]))
            for at in range(0, rows, FRAME_ROWS):
                agent.send(frame_of(info, at, min(FRAME_ROWS, rows - at)))
            agent.drain()
            end = time.monotonic() + TIMEOUT_S
            while server.get("/runs/r")["last_step"] < rows or server.get("/runs/r/storage")["state"] != "ok":
                if time.monotonic() > end:
                    raise TimeoutError(f"the run is not archived after {TIMEOUT_S:g} s")
                time.sleep(0.1)
            time.sleep(12.0)  # merged files are swept 10 s later
            cold = server.get("/runs/r/storage")["cold"]
        traffic = proxy.take()
    print(
        f"window {window_mib:g} MiB, {points:,} points through the server: {cold['rows']:,} in {cold['parts']} parts, "
        f"{cold['bytes'] / cold['rows']:.1f} bytes a point; "
        + ", ".join(f"{count} {method}" for method, count in sorted(traffic.requests.items()))
        + f"; MiB up {traffic.sent / MIB:.1f}, down {traffic.received / MIB:.1f}"
    )
    return traffic, cold["rows"]


def say_rates(window_mib: float, traffic: Traffic, points: int) -> None:
    """Print PUTs an hour and what they cost a month at some rates."""
    puts, gets = (
        sum(traffic.requests[method] for method in kinds) / points for kinds in (("PUT", "LIST"), ("GET", "HEAD"))
    )
    for rate in RATES:
        hour = rate * 3_600
        month = 720 * hour * (puts * PUT_PRICE + gets * GET_PRICE) / 1e6
        print(
            f"  {rate:>9,} points/s, window {window_mib:g} MiB: {hour * puts:>9,.0f} PUTs and LISTs, "
            f"{hour * gets:>9,.0f} GETs and HEADs an hour, ${month:,.0f} a month"
        )


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=float, nargs="+", default=[4.0, 32.0], help="MiB (default: 4 32)")
    parser.add_argument("--repeats", type=int, default=5, help="of the archive alone (default: 5)")
    parser.add_argument("--run-points", type=int, default=9_000_000, help="of the run (default: 9,000,000)")
    options = parser.parse_args()
    with s3_server() as s3, store_proxy(s3) as proxy:
        os.environ.update(KEYS, AWS_ENDPOINT_URL=proxy.url)
        print(f"a point takes {point_bytes():.2f} bytes of the window; load {os.getloadavg()[0]:.1f}", flush=True)
        for window in options.windows:
            archive_alone(open_location("s3://bucket/alone"), proxy, window, options.repeats)
        for window in options.windows:
            say_rates(window, *whole_server(proxy, window, options.run_points))


if __name__ == "__main__":
    main()
