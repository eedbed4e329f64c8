"""One rank that obeys stops and orders to save: ``python ordered_rank.py FOLDER PERIOD_S``.

Each rank writes what it saved as a line of FOLDER/saved.RANK, and at its end what it did to FOLDER/end.RANK.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import stabilityclient


def main() -> None:
    folder, period_s, rank = Path(sys.argv[1]), float(sys.argv[2]), int(os.environ["RANK"])
    run = stabilityclient.init(project="tests", name="ordered")

    @run.on_checkpoint
    def save(step: int) -> Path | None:
        with (folder / f"saved.{rank}").open("a") as file:
            file.write(f"{step}\n")
        path = folder / f"checkpoint-{step}"
        if rank == 0:
            path.write_text(str(step))
        return path if rank == 0 else None

    last = 0
    for step in run.steps(1):
        time.sleep(period_s)
        run.log(step, {"loss": 2.0 + 1.0 / step})
        last = step
    again = list(run.steps(last + 1, last + 5))
    by = None if run.stopped is None else run.stopped.issuer
    (folder / f"end.{rank}").write_text(json.dumps({"last": last, "again": again, "by": by}))
    run.finish()


main()
