"""Measures what a ring of batches costs a job while nobody asks, and what an answer costs.

    python benchmarks/kept_batches.py [--repeats 9] [--calls 20000] [--json]

``keep_batch`` is called with a batch of 8 rows of 2,048 tokens, whatever that is: only a reference is taken. Beside it
stand ``run.log`` of one loss, and the share of repeated tokens of one such row, which is computed when somebody asks.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable

#: Longest call while nobody asks, microseconds (median over the repeats).
AIM_US = 5.0
ROWS, COLUMNS = 8, 2_048


def per_call_us(call: Callable[[int], object], calls: int) -> float:
    """Return the mean microseconds of a call, the loop's own time taken off."""
    begin = time.perf_counter()
    for at in range(calls):
        call(at)
    middle = time.perf_counter()
    for _ in range(calls):
        pass
    return 1e6 * (2 * middle - begin - time.perf_counter()) / calls


def main() -> int:
    """Print a table, or JSON; return 1 where the call costs more than AIM_US."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    figures: dict[str, list[float]] = {"keep_batch": [], "log": [], "repeated share of a row": []}
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"STABILITY_MODE": "offline", "STABILITY_DIR": folder}
        import stabilityclient
        from stabilityclient.data.explained import repeated_share

        run = stabilityclient.init(project="benchmark", name="kept batches")
        run.keep_batches(lambda batch: [], last=8)
        draw = random.Random(1)
        rows = [[draw.randrange(50_000) for _ in range(COLUMNS)] for _ in range(ROWS)]
        for _ in range(args.repeats):
            figures["keep_batch"].append(per_call_us(lambda at: run.keep_batch(at, rows), args.calls))
            figures["log"].append(per_call_us(lambda at: run.log(at, {"loss": 1.0}), args.calls))
            figures["repeated share of a row"].append(per_call_us(lambda at: repeated_share(rows[at % ROWS]), 50))
        run.finish()
    found = {name: statistics.median(times) for name, times in figures.items()}
    if args.json:
        print(json.dumps(found))
    else:
        for name, us in found.items():
            low, high = min(figures[name]), max(figures[name])
            print(f"{name:24} {us:8.2f} us   (of {args.repeats} repeats {low:.2f} to {high:.2f})")
    return int(found["keep_batch"] > AIM_US)


if __name__ == "__main__":
    raise SystemExit(main())
