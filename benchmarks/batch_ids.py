"""Measures what the id of a batch costs: the training thread, the thread that hashes, the server, and bytes.

    python benchmarks/batch_ids.py [--repeats 9] [--calls 300] [--batches 200000] [--server] [--json]

``run.data(step, ids=...)`` gets a batch of 1 M tokens (512 rows of 2,048, int64) as an array and as a tensor, and the
numbers of its 512 samples as a list; each call gets another of several batches, so that it is not in the cache of the
core. Beside it stand what a hash of all of it costs: ``zlib.crc32`` and ``hashlib.blake2b`` over the same bytes. The
call is measured in the training thread; ``hashing`` is what the other thread does with it afterwards. Ratios are taken
within a repeat: on a shared machine times wander, ratios stay.

The server's share: so many batches of one run in frames as an agent makes them, of a step each (a slow job, live) and
of 64 (a quick job, a backlog), beside the same steps with rows only; bytes of the index in memory and of the snapshot,
for a million batches.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import statistics
import struct
import sys
import tempfile
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stabilityclient.wire import Frame

ROWS, COLUMNS = 512, 2_048
#: Batches taken in turn: 8 MiB each, more than the caches of a core.
TURNS = 8
#: Steps of a frame.
FRAME_STEPS = (1, 64)
#: Longest call in the training thread with 1 M tokens, microseconds (median).
AIM_US = 50.0

Figures = dict[str, list[float]]


def timed(call: Callable[[int], object], calls: int) -> list[float]:
    """Return the microseconds of each call."""
    found = []
    for at in range(calls):
        begin = time.perf_counter()
        call(at)
        found.append(1e6 * (time.perf_counter() - begin))
    return found


def client(calls: int, figures: Figures) -> None:
    """One repeat of what the job pays."""
    import numpy as np

    import stabilityclient
    from stabilityclient.data.samples import event_data, taken

    rng = np.random.default_rng(1)
    batches: dict[str, list[Any]] = {"array": [rng.integers(0, 50_000, (ROWS, COLUMNS)) for _ in range(TURNS)]}
    try:
        import torch

        batches["tensor"] = [torch.from_numpy(one) for one in batches["array"]]
    except ImportError:
        pass
    batches["list of ids"] = [list(range(at * ROWS, (at + 1) * ROWS)) for at in range(TURNS)]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["STABILITY_MODE"] = "offline"
        run = stabilityclient.init(project="bench", name="batch ids", dir=folder)
        for name, turns in batches.items():

            def call(at: int, turns: list[Any] = turns) -> None:
                run.data(at, ids=turns[at % TURNS])
                if at % 16 == 15:  # a step takes longer than hashing; here nothing may wait for room
                    run._drain()

            timed(call, 20)
            figures[f"call, {name}"].append(statistics.median(timed(call, calls)))
            hashing = timed(lambda at, turns=turns: event_data(taken(turns[at % TURNS])), calls)  # type: ignore[misc]
            figures[f"call and hashing, {name}"].append(statistics.median(hashing))
        run.finish(0)
    plain = [one.tobytes() for one in batches["array"]]
    figures["crc32 of all"].append(statistics.median(timed(lambda at: zlib.crc32(plain[at % TURNS]), 20)))
    figures["blake2b of all"].append(
        statistics.median(timed(lambda at: hashlib.blake2b(plain[at % TURNS]).digest(), 20))
    )


def frames(batches: int, steps: int, what: str) -> Iterator[Frame]:
    """Yield the frames that an agent makes of a job of ``batches`` steps, so many steps in each."""
    from stabilityclient.agent.upload.framing import frame_of
    from stabilityclient.agent.upload.records import Record, SpooledEvent, SpooledRow
    from stabilityclient.data.samples import event_data, taken
    from stabilityclient.wire import SourceInfo

    rng, info, seq, names = random.Random(1), SourceInfo("r0-1", 0, 1, 0, "n0", 1, 1_000.0), 0, ("loss",)
    for first in range(0, batches, steps):
        records: list[Record] = []
        for step in range(first, first + steps):
            when = 1_000.0 + 0.1 * step
            if what != "rows":
                data = event_data(taken([rng.getrandbits(40) for _ in range(16)]))
                seq += 1
                records.append(SpooledEvent(seq, "batch", when, step, data))
            seq += 1
            records.append(SpooledRow(seq, names, struct.pack("<qdd", step, when + 0.05, 2.0 + 1e-3 * rng.random())))
        yield frame_of(info, records)


def server(batches: int) -> dict[str, float]:
    """Return microseconds a step and bytes a million batches."""
    from stabilitybackend.base.saving import pack
    from stabilitybackend.runs.state import RunState
    from stabilityclient.data.samples import event_data, taken

    figures: dict[str, float] = {}
    for steps in FRAME_STEPS:
        for what in ("rows", "rows and batches"):
            state, spent = RunState("bench", lambda: 1e9), 0.0
            for frame in frames(batches, steps, what):
                begin = time.process_time()
                state.apply(frame, replayed=False)
                spent += time.process_time() - begin
            figures[f"us a step, {what}, {steps} in a frame"] = 1e6 * spent / batches
    fold = state.batches
    return figures | {
        "MiB of ids in memory, a million batches": fold.ids.nbytes() / batches * 1e6 / 2**20,
        "MiB of ids in a snapshot, a million batches": len(pack(fold.ids)) / batches * 1e6 / 2**20,
        "MiB of samples in a snapshot, any run": len(pack(fold.samples)) / 2**20,
        "bytes of an event": len(json.dumps(event_data(taken(list(range(ROWS)))))),
    }


def show(figures: Figures) -> list[str]:
    """Print what the job pays; return the calls that miss their aim."""
    crc = figures["crc32 of all"]
    print(f"{'1 M tokens':32} {'median us':>10} {'least':>8} {'most':>8} {'x crc32':>9}")
    for name, values in figures.items():
        ratio = statistics.median(value / floor for value, floor in zip(values, crc, strict=True))
        print(f"{name:32} {statistics.median(values):10.1f} {min(values):8.1f} {max(values):8.1f} {ratio:9.4f}")
    missed = [name for name in ("call, array", "call, tensor") if statistics.median(figures.get(name, [0])) > AIM_US]
    print(f"aim: a call of at most {AIM_US:g} us{': missed by ' + ' and '.join(missed) if missed else ''}")
    return missed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--batches", type=int, default=200_000)
    parser.add_argument("--server", action="store_true", help="the server's share alone")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    figures: Figures = {}
    for _ in range(0 if arguments.server else arguments.repeats):
        repeat: Figures = defaultdict(list)
        client(arguments.calls, repeat)
        for name, values in repeat.items():
            figures.setdefault(name, []).append(values[0])
    of_server = server(arguments.batches)
    if arguments.json:
        print(json.dumps({"client": figures, "server": of_server}))
        return
    missed = [] if arguments.server else show(figures)
    for name, value in of_server.items():
        print(f"{name:45} {value:10.1f}")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
