"""How long a chart of 2,000 points takes from a run of 1, 10 and 100 million points, and whether it hides anything.

    python benchmarks/timeline.py [--steps 83000 830000 8300000] [--repeats 5] [--keep FOLDER] [--json]

Each run (12 metrics, 50 rollbacks of which 3 nested, single-step spikes, NaN and infinities at known steps: see
big_run.py) goes through the agents' door of a real server, is folded and archived. Then every metric is asked for,
over the whole range and in windows down to 2,000 steps:

warm    the same server, everything asked for once before
cold    a new server process for each window width; the files are dropped from the page cache before each request
shown   every planted value must stand in the answer at its step, in every window around it; around every fork and in
        60 other places the raw points are compared with what was sent; anything else makes the exit code 1

Peers read the loss of the same run (the second one of --steps, or the first): Polars a plain scan of the archived
points, TensorBoard its server and its EventAccumulator, trackio its own reader.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from big_run import METRICS, Story, feed, tell_story
from parts.peer_readers import peer_times
from parts.server_process import ServerProcess, usage
from parts.timeline_figures import Figures, growth, quantile, table, together

RUN_ID = "big"
POINTS = 2_000
#: Windows as parts of the run; the last one is as wide as there are points.
PARTS = (1, 4, 16, 64, 256)
#: The aims of the product, ms and ratio; the cold one is for runs of up to so many points (it is shown for all).
AIM_WARM_MS, AIM_COLD_MS, AIM_GROWTH = 30.0, 200.0, 2.0
AIM_COLD_POINTS = 12_000_000
#: What the server may use of memory with the default window and cache, MiB.
AIM_PEAK_MIB = 768.0
SETTLE_S = 900.0
#: Windows that are compared value by value besides those around forks, and their width: narrow enough to come raw.
RAW_WINDOWS, RAW_STEPS = 60, 1_500


def windows(steps: int) -> dict[str, int]:
    """Return name -> width in steps."""
    found = {("whole run" if part == 1 else f"1/{part}"): steps // part for part in PARTS if steps // part > POINTS}
    return found | {f"{POINTS:,} steps": POINTS}


def ask(
    server: ServerProcess, metrics: tuple[str, ...], start: int, stop: int, view: str = "effective"
) -> tuple[float, bytes]:
    """Return the ms until the answer was here, and its bytes."""
    begin = time.perf_counter()
    response = server.ask(
        f"/runs/{RUN_ID}/series", metric=list(metrics), view=view, points=POINTS, start=max(0, start), stop=stop
    )
    return (time.perf_counter() - begin) * 1e3, response.content


def place(random: np.random.Generator, steps: int, width: int) -> tuple[int, int]:
    """Return first and last step of a window of ``width`` somewhere in the run."""
    first = 1 if width >= steps else int(random.integers(1, steps - width))
    return first, min(steps, first + width - 1)


# --- one run ------------------------------------------------------------------------------------------------------


def prepare(server: ServerProcess, story: Story, figures: Figures) -> None:
    """Send the run and wait until it is folded and archived."""
    figures.feed_s = feed(story, "127.0.0.1", server.port, RUN_ID)
    begin = time.perf_counter()
    end = begin + SETTLE_S
    while (server.get(f"/runs/{RUN_ID}")["last_step"] or 0) < story.steps:
        if time.perf_counter() > end:
            raise SystemExit(f"the last step was not folded within {SETTLE_S:.0f} s")
        time.sleep(0.2)
    while True:
        answer = server.try_ask(f"/runs/{RUN_ID}/storage")
        figures.storage = answer.json() if answer is not None else {}
        hot = figures.storage.get("hot", {"bytes": 0, "limit_bytes": 1})
        if figures.storage.get("state", "ok") == "ok" and hot["bytes"] <= hot["limit_bytes"]:
            break
        if time.perf_counter() > end:
            raise SystemExit(f"the run was not archived within {SETTLE_S:.0f} s: {figures.storage}")
        time.sleep(0.2)
    figures.settle_s = time.perf_counter() - begin


def check_lineage(server: ServerProcess, story: Story, figures: Figures) -> None:
    """Compare the segments with what was sent: a fast answer of the wrong curve is worth nothing."""
    found = server.get(f"/runs/{RUN_ID}/segments")["segments"]
    expected = [None, *(stretch.first - 1 for stretch in story.stretches[1:])]
    forks = [segment["fork_step"] for segment in found]
    if forks != expected:
        figures.wrong.append(f"fork steps are {forks[:8]}..., expected {expected[:8]}...")
    effective = sum(last - first + 1 for _, first, last in story.effective())
    answer = server.get(f"/runs/{RUN_ID}")
    if answer["effective_points"] != effective:
        figures.wrong.append(f"effective points are {answer['effective_points']}, expected {effective}")


def check_exact(server: ServerProcess, story: Story, figures: Figures) -> None:
    """Compare raw windows with what was sent, value by value: around every fork, and anywhere (so also at seams)."""
    random = np.random.default_rng(4)
    width = min(RAW_STEPS, story.steps)
    middles = [stretch.first for stretch in story.stretches]
    middles += random.integers(1, story.steps, RAW_WINDOWS).tolist()
    for middle in middles:
        metric = METRICS[int(random.integers(len(METRICS)))]
        first = min(max(1, middle - width // 2), story.steps - width + 1)
        answer = json.loads(ask(server, (metric,), first, first + width - 1)[1])
        found = {
            step: float(value)
            for entry in answer["series"]
            for step, value in zip(entry["steps"], entry["values"], strict=True)
        }
        expected = story.effective_values(metric, first, first + width - 1)
        figures.compared += len(expected)
        if [(s, str(v)) for s, v in sorted(found.items())] != [(s, str(v)) for s, v in expected]:
            figures.wrong.append(f"{metric} in steps {first}..{first + width - 1} is not what was sent")


def check_shown(server: ServerProcess, story: Story, figures: Figures) -> None:
    """Ask for every planted value in windows of every width, and note those that are not in the answer."""
    random = np.random.default_rng(1)
    for plant in story.plants:
        for name, width in windows(story.steps).items():
            for view in ("effective", "all"):
                first = max(1, plant.step - int(random.integers(0, width)))
                first = 1 if width >= story.steps else min(first, story.steps - width + 1)
                answer = json.loads(ask(server, (plant.metric,), first, first + width - 1, view)[1])
                values = [
                    float(value)
                    for entry in answer["series"]
                    for step, value in zip(entry["steps"], entry["values"], strict=True)
                    if step == plant.step
                ]
                if any(_same(value, plant.value) for value in values):
                    figures.shown += 1
                else:
                    figures.hidden.append(f"{plant.metric} = {plant.value} at step {plant.step} in {name}, view {view}")


def _same(value: float, expected: float) -> bool:
    """Compare as what was stored: metrics from tensors are float32."""
    if math.isnan(expected) or math.isinf(expected):
        return str(value) == str(expected)
    return math.isclose(value, expected, rel_tol=1e-6)


def measure_warm(server: ServerProcess, story: Story, figures: Figures, repeats: int) -> None:
    """Ask for every metric in windows of every width, each once before it counts."""
    random = np.random.default_rng(2)
    for name, width in windows(story.steps).items():
        times = figures.warm.setdefault(name, [])
        for metric in METRICS:
            for _ in range(repeats):
                first, last = place(random, story.steps, width)
                ask(server, (metric,), first, last)
                figures.floor.append(server.ping_ms())
                took_ms, body = ask(server, (metric,), first, last)
                times.append(took_ms)
                if name == "whole run":
                    figures.answer_kib = max(figures.answer_kib, len(body) / 1024)
    for _ in range(repeats):
        figures.all_at_once_ms.append(ask(server, METRICS, 1, story.steps)[0])


def measure_cold(server: ServerProcess, story: Story, figures: Figures) -> None:
    """Ask for every metric for the first time after a restart, from the disk; a restart for each width."""
    random = np.random.default_rng(3)
    for name, width in windows(story.steps).items():
        server.stop()
        drop_from_cache(server.data_dir)
        begin = time.perf_counter()
        server.start()
        up = time.perf_counter()
        server.get(f"/runs/{RUN_ID}")
        figures.up_s.append(up - begin)
        figures.restored_s.append(time.perf_counter() - up)
        times = figures.cold.setdefault(name, [])
        for metric in METRICS:
            drop_from_cache(server.data_dir)
            first, last = place(random, story.steps, width)
            times.append(ask(server, (metric,), first, last)[0])


def files_mib(folder: Path) -> dict[str, float]:
    """Return MiB on disk by what the files hold."""
    sizes: dict[str, float] = {}
    for path in folder.glob("*"):
        kind = path.name.removesuffix(".parquet").rpartition(".")[2]
        sizes[kind] = sizes.get(kind, 0.0) + path.stat().st_size / 2**20
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def drop_from_cache(folder: Path) -> None:
    """Take the files of a folder out of the page cache, as far as they are on disk; needs no rights beyond ours."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def measure(steps: int, folder: Path, repeats: int, settings: dict[str, str], *, peers: bool) -> Figures:
    """Return the figures of one run; a folder that holds it already is used as it is."""
    story = tell_story(steps)
    figures = Figures(story.points, story.steps)
    data = folder / f"steps-{steps}"
    with ServerProcess(data, settings) as server:
        if server.try_ask(f"/runs/{RUN_ID}") is None:
            prepare(server, story, figures)
            figures.rss_mib["after feeding"] = usage(server.pid).rss_mib
            figures.rss_mib["peak of feeding"] = usage(server.pid).peak_mib
        answer = server.try_ask(f"/runs/{RUN_ID}/storage")
        figures.storage = answer.json() if answer is not None else {}
        figures.files_mib = files_mib(data / "archive" / RUN_ID)
        check_lineage(server, story, figures)
        check_exact(server, story, figures)
        check_shown(server, story, figures)
        measure_warm(server, story, figures, repeats)
        figures.rss_mib["peak with warm reads"] = usage(server.pid).peak_mib
        measure_cold(server, story, figures)
        figures.rss_mib["restarted, after cold reads"] = usage(server.pid).rss_mib
        if peers:
            name = "whole run"
            ours = quantile(figures.warm[name], 0.5)
            figures.peers = {"ours": ours} | peer_times(story, data)
    return figures


# --- the verdict ---------------------------------------------------------------------------------------------------


def verdicts(every: list[Figures]) -> dict[str, bool]:
    """Return which aims are held."""
    held = {"nothing hidden": not any(one.hidden for one in every), "lineage": not any(one.wrong for one in every)}
    for one in every:
        name = f"{one.points / 1e6:.0f} M"
        held[f"{name} warm p95 <= {AIM_WARM_MS:.0f} ms"] = quantile(together(one.warm), 0.95) <= AIM_WARM_MS
        held[f"{name} memory <= {AIM_PEAK_MIB:.0f} MiB"] = max(one.rss_mib.values()) <= AIM_PEAK_MIB
        if one.points <= AIM_COLD_POINTS:
            held[f"{name} cold p95 <= {AIM_COLD_MS:.0f} ms"] = quantile(together(one.cold), 0.95) <= AIM_COLD_MS
    if len(every) > 1:
        held[f"growth < {AIM_GROWTH:.0f}x"] = max(map(max, growth([one.warm for one in every]).values())) < AIM_GROWTH
    return held


def main() -> int:
    """Measure, print, and return 0 when nothing is hidden and all aims are held."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, nargs="+", default=[83_000, 830_000], help="8300000 makes 100 M points")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--keep", type=Path, help="folder for the data; what is there from before is used again")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="settings of the server")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    settings = dict(pair.split("=", 1) for pair in options.set)
    every: list[Figures] = []
    with tempfile.TemporaryDirectory(prefix="timeline-") as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        with_peers = -1 if options.no_peers else options.steps[min(1, len(options.steps) - 1)]
        for steps in options.steps:
            print(f"{steps:,} steps          ", end="\r", file=sys.stderr)
            every.append(measure(steps, folder, options.repeats, settings, peers=steps == with_peers))
            if not options.json:
                print(table(every[-1]), flush=True)
    held = verdicts(every)
    if options.json:
        print(json.dumps({"figures": [vars(one) for one in every], "held": held}))
    else:
        if len(every) > 1:
            sizes = ", ".join(f"{one.points / 1e6:.0f} M" for one in every)
            print(f"\nmedian time beside that of the smallest run, at {sizes} points:")
            for kind, times in (("warm", [one.warm for one in every]), ("cold", [one.cold for one in every])):
                for name, factors in growth(times).items():
                    print(f"  {f'{name}, {kind}':<30}" + "".join(f"{factor:>8.2f}x" for factor in factors))
        print("aims: " + ", ".join(f"{name} {'held' if ok else 'MISSED'}" for name, ok in held.items()))
    return 0 if all(held.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
