"""One rank that keeps its batches: ``python keeping_rank.py FOLDER``; rank 1 gets a bad one at step 60.

A batch is two rows of tokens. Rank 0 logs the loss. The ranks go step by step together, as those of a job do, and after
the bad batch slowly until FOLDER/seen is there. The file FOLDER/enough ends it.
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


def together(folder: Path, step: int) -> None:
    """Wait until all ranks are at a step, or one of them has ended."""
    (folder / f"at-{step}-{RANK}").touch()
    others = [folder / f"at-{step}-{rank}" for rank in range(int(os.environ["WORLD_SIZE"]))]
    while not (all(one.exists() for one in others) or (folder / "enough").exists()):
        time.sleep(0.002)


def main() -> None:
    folder = Path(sys.argv[1])
    run = stabilityclient.init(project="tests", name="keeper")
    run.keep_batches(explain, last=40, on_spike=True)
    for step in run.steps(1):
        bad = step == 60 and RANK == 1
        run.keep_batch(step, (step, bad))
        if RANK == 0:
            run.log(step, {"loss": float("nan") if step == 60 else 2.0 + (step % 7) / 100})
        time.sleep(0.02 if step < 60 or (folder / "seen").exists() else 0.5)
        together(folder, step)
        if (folder / "enough").exists():
            break
    run.finish()


main()
