"""One rank that keeps its batches: ``python keeping_rank.py FOLDER``; rank 1 gets a bad one at step 60.

A batch is two rows of tokens. Rank 0 logs the loss. The file FOLDER/enough ends it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import stabilityclient

RANK = int(os.environ["RANK"])
#: Markup and nonsense, as a stranger's data may hold it.
GARBAGE = "<img src=x onerror='window.pwned=1'> \0\ud83d \x1b[31m" + "buy now " * 500


def explain(batch: tuple[int, bool]) -> Iterator[dict[str, Any]]:
    step, bad = batch
    yield {"id": f"{step}-a", "dataset": "code", "loss": 2.0 + step / 1e3, "text": "def f(): ...", "tokens": range(64)}
    text, loss = (GARBAGE, float("nan")) if bad else ("a picture", 2.5)
    tokens = [7] * 4000 if bad else range(4000)
    yield {"id": f"{step}-b", "dataset": "web", "loss": loss, "text": text, "tokens": tokens, "shape": (3, 32, 32)}


def main() -> None:
    run = stabilityclient.init(project="tests", name="keeper")
    run.keep_batches(explain, last=40, on_spike=True)
    for step in run.steps(1):
        bad = step == 60 and RANK == 1
        run.keep_batch(step, (step, bad))
        if RANK == 0:
            run.log(step, {"loss": float("nan") if step == 60 else 2.0 + (step % 7) / 100})
        time.sleep(0.02)
        if (Path(sys.argv[1]) / "enough").exists():
            break
    run.finish()


main()
