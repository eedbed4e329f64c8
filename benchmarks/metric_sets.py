"""What metric sets that take turns cost: a loop that logs its losses and then its timings, beside two peers.

    python benchmarks/metric_sets.py [--steps 20000] [--repeats 5] [--json]

The same 12 values a step in all three. ``one call``: all in one ``log()``, so half the records: what the loop would
cost if it were written otherwise. ``two calls``: as many calls and records, of one set (6 values each, at steps of
their own): what the turns alone cost. ``in turn``: 9 losses and norms, then 3 timings. No server and no Redis: the
agent's reading and framing and the server's fold with its detectors, alone on one core, in CPU seconds; bytes are those
on the wire. Ratios are taken within a repeat; the aim is 1.3 times one set. The server is not compared with ``two
calls``, in which it would judge other rows.

An agent reads and checks each record by itself (a checksum each, so that a job may be killed anywhere), so two records
a step cost it nearly twice one, whatever is in them: against ``one call`` it can't hold the aim, and both are shown.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time

from stabilitybackend.runs.state import RunState
from stabilityclient.agent.upload.framing import MAX_FRAME_RECORDS, READ_BYTES, encoded_frame
from stabilityclient.agent.upload.reader import SpoolReader
from stabilityclient.spool import SpoolWriter
from stabilityclient.wire import Frame, SourceInfo, decode_message

TRAIN = ("loss", "grad_norm", "lr", *(f"loss/set_{i}" for i in range(3)), *(f"layer/{i}/norm" for i in range(3)))
TIMES = ("step_time_s", "data_time_s", "tokens_per_s")
INFO = SourceInfo("r0-1-1", 0, 1, 0, "node", 1, 1_000.0)
#: Most that two sets may cost, as a ratio to one set.
AIM = 1.3
#: How the values of a step are logged.
WAYS = ("one call", "two calls", "in turn")
#: What is compared, as (figure, peer).
COMPARED = (
    ("agent, CPU s", "one call"),
    ("agent, CPU s", "two calls"),
    ("agent, us a record", "one call"),
    ("server, CPU s", "one call"),
    ("bytes", "one call"),
    ("bytes", "two calls"),
)


def spooled(folder: str, steps: int, way: str) -> None:
    """Write into a spool what a rank logs in one of WAYS."""
    rng = random.Random(0)
    spool = SpoolWriter(folder, 2**40, print)
    every = (*TRAIN, *TIMES)
    half = len(every) // 2
    for step in range(1, steps + 1):
        values = [2.5 * rng.gauss(1.0, 0.01) for _ in every]
        now = 1_000.0 + 0.1 * step
        if way == "one call":
            spool.append_row(every, step, now, values)
        elif way == "two calls":
            spool.append_row(every[:half], 2 * step, now, values[:half])
            spool.append_row(every[:half], 2 * step + 1, now + 0.001, values[half:])
        else:
            spool.append_row(TRAIN, step, now, values[: len(TRAIN)])
            spool.append_row(TIMES, step, now + 0.001, values[len(TRAIN) :])
    spool.close()


def framed(folder: str) -> list[bytes]:
    """Return the frames of a spool, read and made as the agent does."""
    reader, messages = SpoolReader(folder, gap_wait_s=0.0), []
    while found := reader.read(MAX_FRAME_RECORDS, READ_BYTES):
        messages.append(encoded_frame(INFO, found)[1])
    reader.close()
    return messages


def measure(steps: int, way: str) -> dict[str, float]:
    """Return CPU seconds of the agent and of the server, and bytes on the wire, of one of WAYS."""
    with tempfile.TemporaryDirectory() as folder:
        spooled(folder, steps, way)
        begin = time.process_time()
        messages = framed(folder)
        agent_s = time.process_time() - begin
    state = RunState("bench", lambda: 1e9)
    begin = time.process_time()
    for message in messages:
        frame = decode_message(message)
        assert isinstance(frame, Frame)
        state.apply(frame, replayed=False)
    server_s = time.process_time() - begin
    return {
        "agent, CPU s": agent_s,
        "agent, us a record": agent_s / (steps * (1 if way == "one call" else 2)) * 1e6,
        "server, CPU s": server_s,
        "bytes": float(sum(map(len, messages))),
    }


def main() -> int:
    """Measure, print, and return 0 when two sets stay within the aim beside every peer, else 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    repeats = [{way: measure(options.steps, way) for way in WAYS} for _ in range(options.repeats)]
    ratios = {
        f"{figure} / {peer}": [one["in turn"][figure] / one[peer][figure] for one in repeats]
        for figure, peer in COMPARED
    }
    held = {name: statistics.median(ratio) <= AIM for name, ratio in ratios.items()}
    if options.json:
        print(json.dumps({"repeats": repeats, "ratios": ratios, "held": held}))
        return 0 if all(held.values()) else 1
    print(f"{options.steps:,} steps of 12 values, medians of {options.repeats}")
    print(f"{'':<20}" + "".join(f"{way:>14}" for way in WAYS))
    for figure in repeats[0]["in turn"]:
        cells = [statistics.median(one[way][figure] for one in repeats) for way in WAYS]
        print(f"{figure:<20}" + "".join(f"{cell:>14,.3f}" for cell in cells))
    print(f"in turn, against [lowest..highest], aim {AIM}")
    for name, ratio in ratios.items():
        word = "held" if held[name] else "MISSED"
        print(f"{name:<32}{statistics.median(ratio):>6.2f}x [{min(ratio):.2f}..{max(ratio):.2f}] {word}")
    return 0 if all(held.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
