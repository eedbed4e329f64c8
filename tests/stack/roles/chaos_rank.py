"""A rank whose servers are killed: ``python chaos_rank.py FOLDER PERIOD_S``; FOLDER/enough ends it.

Before it logs a row it writes ``<attempt> <step>`` into ``FOLDER/truth``; each rollback is another attempt. At the end
it prints what ``finish`` returned.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from chaos_values import value_of

import stabilityclient

#: More metrics a row: chunks of the spool are full within seconds, and removed while the servers are killed.
MORE = {f"more/{n}": 0.0 for n in range(int(os.environ.get("CHAOS_METRICS", "0")))}


def main() -> None:
    folder, period_s, run_id = Path(sys.argv[1]), float(sys.argv[2]), os.environ["STABILITY_RUN_ID"]
    run = stabilityclient.init(project="chaos", name=run_id)
    truth = os.open(folder / "truth", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    attempt = 0

    @run.on_rollback
    def back(rollback: stabilityclient.Rollback) -> None:
        nonlocal attempt
        attempt += 1
        os.write(truth, f"back {rollback.command_id} {rollback.to_step}\n".encode())

    for step in run.steps(1):
        os.write(truth, f"{attempt} {step}\n".encode())
        run.log(step, {"loss": value_of(run_id, attempt, step)} | MORE)
        if step % 50 == 0:
            saved = folder / f"checkpoint-{attempt}-{step}"
            saved.write_text(str(step))
            run.checkpoint(step, saved)
        time.sleep(period_s)
        if (folder / "enough").exists():
            break
    print(run.finish(timeout_s=180), flush=True)


main()
