"""Measures what one logging call costs the training thread: ours beside a plain JSONL file, TensorBoard and trackio.

    python benchmarks/client_overhead.py [--repeats 5] [--calls 400] [--json]

Each contender logs 12 metrics a call in a fresh process, paced at 5 ms (as a training loop does: caches are cold) and
flat out. Rows of CPU tensors of one element follow: what a loop logs that calls no ``.item()``. They have two peers:
``jsonl`` gets the same numbers as floats that somebody else has read (the aim is set against it), ``jsonl, reading``
reads them itself, as a file must that is handed tensors. ``reading alone`` calls ``.item()`` for each and writes
nothing: nobody who is handed tensors costs less.
One repeat measures all of them one after the other, and ratios are taken within a repeat: on a shared machine
absolute times
wander, ratios stay. Ours talks to a real server on loopback that confirms every frame, so its agent is at work
meanwhile. Of ours alone: a pair of entering and leaving `run.phase()`, which a loop does a few times a step, and the
CPU of a call with up to 20,000 names, a name.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

METRICS = 12
PACE_S = 0.005
#: Flat-out calls per paced call: they are so much faster.
FLAT_FACTOR = 50
WARM_UP_CALLS = 50
#: Aims of the product, as ratios to the JSONL file in the same repeat.
AIM_P50, AIM_P99 = 0.4, 0.5
#: ... where the values are tensors, p50.
AIM_TENSORS = 0.5
AIM_IMPORT_MS, AIM_RSS_MIB = 30.0, 5.0
#: Longest median of entering and leaving a phase, microseconds.
AIM_PHASE_US = 3.0
#: Most CPU of a call a name, microseconds, and the names of a call: none of these widths may be a cliff.
AIM_NAME_US = 0.2
WIDTHS = (12, 500, 513, 2_000, 8_000, 20_000)

#: Rows beside the first: name -> (metrics a call, how many of them are tensors).
TENSOR_ROWS = {"12 tensors": (12, 12), "12, one a tensor": (12, 1), "200 tensors": (200, 200)}
#: Who logs them.
READERS = ("ours", "jsonl", "jsonl, reading", "reading alone")

#: Contender -> its figures, one entry a repeat.
Figures = dict[str, list[dict[str, float]]]
Log = Callable[[int, dict[str, Any]], object]


def open_ours(folder: Path) -> tuple[Log, Callable[[], object]]:
    import stabilityclient

    run = stabilityclient.init(project="bench", name="overhead", dir=folder)
    return run.log, run.finish


def open_jsonl(folder: Path) -> tuple[Log, Callable[[], object]]:
    file = open(folder / "log.jsonl", "a")  # noqa: SIM115 - closed by the second function

    def log(step: int, metrics: dict[str, float]) -> None:
        file.write(json.dumps({"step": step, "t": time.time(), **metrics}) + "\n")
        file.flush()

    return log, file.close


def open_reading_jsonl(folder: Path) -> tuple[Log, Callable[[], object]]:
    log, close = open_jsonl(folder)

    def read_and_log(step: int, metrics: dict[str, Any]) -> None:
        log(step, {name: value if type(value) is float else value.item() for name, value in metrics.items()})

    return read_and_log, close


def open_reading(folder: Path) -> tuple[Log, Callable[[], object]]:
    item = import_module("torch").Tensor.item

    def read(step: int, metrics: dict[str, Any]) -> None:
        for value in metrics.values():
            if type(value) is not float:
                item(value)

    return read, lambda: None


def open_tensorboard(folder: Path) -> tuple[Log, Callable[[], object]]:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(folder)

    def log(step: int, metrics: dict[str, float]) -> None:
        for name, value in metrics.items():
            writer.add_scalar(name, value, step)

    return log, writer.close


def open_trackio(folder: Path) -> tuple[Log, Callable[[], object]]:
    os.environ["TRACKIO_DIR"] = str(folder)
    import trackio

    trackio.init(project="bench", name="overhead", embed=False)
    return lambda step, metrics: trackio.log(metrics, step=step), trackio.finish


CONTENDERS = {"ours": open_ours, "jsonl": open_jsonl, "tensorboard": open_tensorboard, "trackio": open_trackio}
OPENERS = {**CONTENDERS, "jsonl, reading": open_reading_jsonl, "reading alone": open_reading}


def row_of(name: str, row: str | None) -> dict[str, Any]:
    """Return the metrics of a call. Of a row with tensors the numbers are those of float32, as a model's are."""
    if row is None:
        return {f"train/metric_{index}": 0.1 * index for index in range(METRICS)}
    import torch

    count, tensors = TENSOR_ROWS[row]
    values = [value.clone() for value in torch.rand(count, generator=torch.Generator().manual_seed(0))]
    reads = name != "jsonl"
    return {f"train/metric_{i}": v if reads and i < tensors else v.item() for i, v in enumerate(values)}


def rss_mib() -> float:
    """Return the resident memory of this process, MiB."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def measure_one(name: str, calls: int, row: str | None) -> dict[str, float]:
    """Return the figures of one contender in this process; ``row``: one of TENSOR_ROWS, None for plain floats."""
    if name == "tensorboard":
        import torch  # noqa: F401 - a trainer has it anyway
    metrics = row_of(name, row)
    clock = time.perf_counter_ns
    with tempfile.TemporaryDirectory() as folder:
        before = rss_mib()
        begin = clock()
        if name == "ours":
            import stabilityclient  # noqa: F401
        import_ms = (clock() - begin) / 1e6
        log, close = OPENERS[name](Path(folder))
        for step in range(WARM_UP_CALLS):
            log(step, metrics)
        paced = []
        due = time.perf_counter()
        for step in range(calls):
            due += PACE_S
            time.sleep(max(0.0, due - time.perf_counter()))
            begin = clock()
            log(step, metrics)
            paced.append(clock() - begin)
        flat = []
        for step in range(calls * (2 if name in ("tensorboard", "trackio") else FLAT_FACTOR * METRICS // len(metrics))):
            begin = clock()
            log(step, metrics)
            flat.append(clock() - begin)
        after = rss_mib()
        phases = phase_pairs_ns(log, calls * FLAT_FACTOR) if name == "ours" and row is None else []
        close()
    paced.sort()
    flat.sort()
    return {
        "paced_p50_us": paced[len(paced) // 2] / 1e3,
        "paced_p99_us": paced[int(len(paced) * 0.99)] / 1e3,
        "flat_p50_us": flat[len(flat) // 2] / 1e3,
        "flat_p99_us": flat[int(len(flat) * 0.99)] / 1e3,
        "phase_p50_us": phases[len(phases) // 2] / 1e3 if phases else float("nan"),
        "phase_p99_us": phases[int(len(phases) * 0.99)] / 1e3 if phases else float("nan"),
        "import_ms": import_ms if name == "ours" else float("nan"),
        "rss_added_mib": after - before,
    }


def phase_pairs_ns(log: Log, pairs: int) -> list[int]:
    """Return the times of entering and leaving a phase, sorted; ``log`` is the method of a run of ours."""
    phase = log.__self__.phase  # type: ignore[attr-defined]
    clock = time.perf_counter_ns
    times = []
    for _ in range(pairs):
        begin = clock()
        with phase("forward"):
            pass
        times.append(clock() - begin)
    return sorted(times)


def name_us(width: int) -> float:
    """Return the CPU of one call of ours with so many names, microseconds a name: the median of blocks of calls."""
    import stabilityclient

    blocks, calls = 7, max(5, 40_000 // width)
    metrics = {f"layers.{index}.attention/grad_norm": 0.1 * index for index in range(width)}
    with tempfile.TemporaryDirectory() as folder:
        run = stabilityclient.init(project="bench", name="wide", dir=folder)
        run.log(0, metrics)
        taken = []
        for block in range(blocks):
            begin = time.thread_time()
            for step in range(block * calls, (block + 1) * calls):
                run.log(step + 1, metrics)
            taken.append(time.thread_time() - begin)
        run.finish(0)
    return statistics.median(taken) / calls / width * 1e6


def serve_acks() -> str:
    """Start a server in a thread that confirms every frame; return its URL."""
    from websockets.asyncio.server import ServerConnection, serve

    from stabilityclient.wire import Ack, Frame, Hello, NodeFrame, Welcome, decode_message, encode_message

    async def talk(connection: ServerConnection) -> None:
        async for data in connection:
            message = decode_message(data)
            if isinstance(message, Hello):
                await connection.send(encode_message(Welcome("bench", time.time(), {}, [])))
            elif isinstance(message, Frame | NodeFrame):
                for part in message.parts if isinstance(message, NodeFrame) else [message]:
                    await connection.send(encode_message(Ack(part.source.source, part.last_seq)))

    loop = asyncio.new_event_loop()

    async def start() -> int:
        server = await serve(talk, "127.0.0.1", 0, max_size=2**22, compression=None)
        return int(next(iter(server.sockets)).getsockname()[1])

    threading.Thread(target=loop.run_forever, daemon=True).start()
    port = asyncio.run_coroutine_threadsafe(start(), loop)
    return f"http://127.0.0.1:{port.result(10)}"


def measure_all(repeats: int, calls: int) -> dict[str | None, Figures]:
    """Return the figures of each row's contenders, one entry a repeat; what is not installed is left out.

    The first row, None, is that of plain floats.
    """
    env = {**os.environ, "STABILITY_URL": serve_acks(), "STABILITY_MODE": "online"}
    figures: dict[str | None, Figures] = {}
    pairs: list[tuple[str | None, str]] = [(None, name) for name in CONTENDERS]
    pairs += [(row, name) for row in TENSOR_ROWS for name in READERS]
    for repeat in range(repeats):
        for row, name in pairs:
            print(f"repeat {repeat + 1}/{repeats}: {row or 'floats'}, {name}          ", end="\r", file=sys.stderr)
            command = [sys.executable, __file__, "--one", name, "--calls", str(calls)]
            command += ["--row", row] if row else []
            done = subprocess.run(command, env=env, capture_output=True, text=True)
            if done.returncode == 0:
                figures.setdefault(row, {}).setdefault(name, []).append(json.loads(done.stdout.splitlines()[-1]))
            elif repeat == 0:
                last = done.stderr.strip().splitlines()[-1:] or ["no message"]
                print(f"{name} is left out: {last[0]}", file=sys.stderr)
    return figures


def import_alone_ms(repeats: int) -> float:
    """Return the median time of ``import stabilityclient`` in a fresh interpreter with nothing imported before."""
    code = "import time; t = time.perf_counter(); import stabilityclient; print((time.perf_counter() - t) * 1e3)"
    root = Path(__file__).resolve().parent.parent / "client"
    command = [sys.executable, "-S", "-c", code]
    env = {**os.environ, "PYTHONPATH": str(root)}
    return statistics.median(
        float(subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout)
        for _ in range(repeats)
    )


def table(every: dict[str | None, Figures], import_ms: float) -> str:
    """Return the figures as text: median over repeats, [lowest..highest], ratio to JSONL within a repeat."""
    figures = every[None]
    lines = [
        "microseconds on the training thread: "
        f"median of {len(figures['ours'])} repeats [lowest..highest], ratio to JSONL"
    ]
    for row, figures_of_row in every.items():
        lines.append(f"\n{row or f'{METRICS} floats'} a call")
        lines += rows_of(figures_of_row)
    lines.append(f"\nimport stabilityclient, nothing imported before: {import_ms:.1f} ms (aim {AIM_IMPORT_MS:.0f})")
    phase_us = [statistics.median(one[f"phase_{p}_us"] for one in figures["ours"]) for p in ("p50", "p99")]
    lines.append(
        f"entering and leaving a phase, us: p50 {phase_us[0]:.2f} (aim {AIM_PHASE_US:.0f}), p99 {phase_us[1]:.2f}"
    )
    added = ", ".join(
        f"{name} {statistics.median(one['rss_added_mib'] for one in repeats):.1f}" for name, repeats in figures.items()
    )
    lines.append(f"memory added to the process, MiB: {added} (aim for ours {AIM_RSS_MIB:.0f})")
    return "\n".join(lines)


def rows_of(figures: Figures) -> list[str]:
    """Return the lines of one row's contenders, paced and flat out."""
    lines = []
    for title, part in (("paced at 5 ms", "paced"), ("flat out", "flat")):
        lines.append(f"{title:<14}{'p50':>26}{'ratio':>8}{'p99':>28}{'ratio':>8}")
        for name, repeats in figures.items():
            cells = f"{name:<14}"
            for key, width in ((f"{part}_p50_us", 26), (f"{part}_p99_us", 28)):
                values = [one[key] for one in repeats]
                spread = f"{statistics.median(values):.1f} [{min(values):.1f}..{max(values):.1f}]"
                cells += f"{spread:>{width}}{ratio(figures, name, key):>7.2f}x"
            lines.append(cells)
    if "jsonl, reading" in figures:
        parts = (f"{p} {ratio(figures, 'ours', f'{p}_p50_us', 'jsonl, reading'):.2f}x" for p in ("paced", "flat"))
        lines.append("ours, ratio to the file that reads the tensors itself, p50: " + ", ".join(parts))
    return lines


def ratio(figures: Figures, name: str, key: str, peer: str = "jsonl") -> float:
    """Return the median over repeats of a contender's figure divided by a peer's in the same repeat."""
    pairs = zip(figures[name], figures[peer], strict=False)
    return statistics.median(one[key] / base[key] for one, base in pairs)


def width_line(widths: dict[int, float]) -> str:
    """Return the CPU a name of calls of each width, as text."""
    parts = (f"{width:,}: {taken:.3f}" for width, taken in widths.items())
    return f"CPU of a call a name, us, by its names (aim {AIM_NAME_US}): " + ", ".join(parts)


def main() -> int:
    """Measure, print, and return 0 when ours is within the aims, else 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--calls", type=int, default=400, help="paced calls per repeat")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", choices=OPENERS, help=argparse.SUPPRESS)
    parser.add_argument("--row", choices=TENSOR_ROWS, help=argparse.SUPPRESS)
    parser.add_argument("--widths", action="store_true", help="only the CPU a name of wide calls")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure_one(options.one, options.calls, options.row)))
        return 0
    widths = {width: name_us(width) for width in WIDTHS}
    if options.widths:
        print(width_line(widths))
        return 0 if max(widths.values()) <= AIM_NAME_US else 1
    every = measure_all(options.repeats, options.calls)
    figures = every[None]
    import_ms = import_alone_ms(options.repeats)
    ratios = {
        f"{part}_{p}": ratio(figures, "ours", f"{part}_{p}_us") for part in ("paced", "flat") for p in ("p50", "p99")
    }
    tensors = {
        f"{row} {part}": ratio(every[row], "ours", f"{part}_p50_us")
        for row in TENSOR_ROWS if row in every
        for part in ("paced", "flat")
    }  # fmt: skip
    held = {
        "paced_p50": ratios["paced_p50"] <= AIM_P50,
        "paced_p99": ratios["paced_p99"] <= AIM_P99,
        "flat_p50": ratios["flat_p50"] <= AIM_P50,
        "phase": statistics.median(one["phase_p50_us"] for one in figures["ours"]) <= AIM_PHASE_US,
        "widths": max(widths.values()) <= AIM_NAME_US,
        "import": import_ms <= AIM_IMPORT_MS,
        **{name: value <= AIM_TENSORS for name, value in tensors.items()},
        "rss": statistics.median(one["rss_added_mib"] for one in figures["ours"]) <= AIM_RSS_MIB,
    }
    if options.json:
        facts: dict[str, Any] = {
            "figures": {row or "floats": one for row, one in every.items()},
            "ratios": ratios | tensors,
            "import_ms": import_ms,
            "name_us": widths,
            "held": held,
        }
        print(json.dumps(facts))
    else:
        print(table(every, import_ms))
        print(width_line(widths))
        print("aims: " + ", ".join(f"{name} {'held' if ok else 'MISSED'}" for name, ok in held.items()))
    return 0 if all(held.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
