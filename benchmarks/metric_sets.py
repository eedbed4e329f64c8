"""What metric sets that take turns cost: a loop that logs its losses and then its timings, beside one call for both.

    python benchmarks/metric_sets.py [--steps 20000] [--repeats 5] [--json]

The same 12 values a step, in one ``log()`` call or in two. No server and no Redis: the agent's reading and framing and
the server's fold with its detectors, alone on one core, in CPU seconds; bytes are those on the wire. Ratios are taken
within a repeat; the aim is that two sets cost at most 1.3 times one. The agent reads twice as many records then: of it
the cost of a record is held to the aim.
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
from stabilityclient.agent.framing import MAX_FRAME_RECORDS, READ_BYTES, encoded_frame
from stabilityclient.agent.reader import SpoolReader
from stabilityclient.spool import SpoolWriter
from stabilityclient.wire import Frame, SourceInfo, decode_message

TRAIN = ("loss", "grad_norm", "lr", *(f"loss/set_{i}" for i in range(3)), *(f"layer/{i}/norm" for i in range(3)))
TIMES = ("step_time_s", "data_time_s", "tokens_per_s")
INFO = SourceInfo("r0-1-1", 0, 1, 0, "node", 1, 1_000.0)
#: Most that two sets may cost, as a ratio to one set.
AIM = 1.3


def spooled(folder: str, steps: int, *, in_turn: bool) -> None:
    """Write into a spool what a rank logs: one row a step, or one of each set in turn."""
    rng = random.Random(0)
    spool = SpoolWriter(folder, 2**40, print)
    sets = (TRAIN, TIMES) if in_turn else ((*TRAIN, *TIMES),)
    for step in range(1, steps + 1):
        values = [2.5 * rng.gauss(1.0, 0.01) for _ in (*TRAIN, *TIMES)]
        for names in sets:
            part = values[: len(names)] if names[0] == "loss" else values[-len(names) :]
            spool.append_row(names, step, 1_000.0 + 0.1 * step + 0.001 * (names is TIMES), part)
    spool.close()


def framed(folder: str) -> list[bytes]:
    """Return the frames of a spool, read and made as the agent does."""
    reader, messages = SpoolReader(folder, patience_s=0.0), []
    while found := reader.read(MAX_FRAME_RECORDS, READ_BYTES):
        messages.append(encoded_frame(INFO, found)[1])
    reader.close()
    return messages


def measure(steps: int, *, in_turn: bool) -> dict[str, float]:
    """Return CPU seconds of the agent and of the server, and bytes on the wire."""
    with tempfile.TemporaryDirectory() as folder:
        spooled(folder, steps, in_turn=in_turn)
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
        "agent, us a row": agent_s / (steps * (2 if in_turn else 1)) * 1e6,
        "server, CPU s": server_s,
        "bytes": float(sum(map(len, messages))),
    }


def main() -> int:
    """Measure, print, and return 0 when two sets stay within the aim, else 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    pairs = [
        (measure(options.steps, in_turn=False), measure(options.steps, in_turn=True)) for _ in range(options.repeats)
    ]
    ratios = {name: [two[name] / one[name] for one, two in pairs] for name in pairs[0][0]}
    if options.json:
        print(json.dumps({"pairs": pairs, "ratios": ratios}))
    else:
        print(f"{options.steps:,} steps of 12 values, median of {options.repeats} [lowest..highest of the ratio]")
        print(f"{'':<16}{'one set':>12}{'two in turn':>14}{'ratio':>8}")
        for name, ratio in ratios.items():
            one, two = (statistics.median(pair[at][name] for pair in pairs) for at in (0, 1))
            spread = f"[{min(ratio):.2f}..{max(ratio):.2f}]"
            print(f"{name:<16}{one:>12,.3f}{two:>14,.3f}{statistics.median(ratio):>7.2f}x {spread}")
    held = [statistics.median(ratio) <= AIM for name, ratio in ratios.items() if name != "agent, CPU s"]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
