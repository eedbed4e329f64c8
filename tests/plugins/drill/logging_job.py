"""A job without torch: ``logging_job.py FOLDER [--forget rate|step] [--silent] [--elsewhere PATH] [--pid PATH]``.

Its loss follows from a number that it saves; it goes on from ``FOLDER/state.json`` where that is there.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import stabilityclient

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("--forget", default="")
parser.add_argument("--silent", action="store_true", help="save, and report no checkpoint")
parser.add_argument("--elsewhere", type=Path, help="save there in place of FOLDER")
parser.add_argument("--pid", type=Path)
parser.add_argument("--steps", type=int, default=10_000)
args = parser.parse_args()
if args.pid:
    args.pid.write_text(str(os.getpid()))
run = stabilityclient.init(project="tests", name="drill")
folder = args.elsewhere or args.folder
state = {"step": 0, "begun": 0, "weight": 1.0}
file = folder / "state.json"
if file.exists():
    state = json.loads(file.read_text())
    state["begun"] = state["step"] if args.forget == "rate" else 0
    state["step"] += args.forget == "step"
for step in range(state["step"] + 1, args.steps + 1):
    rate = 0.1 / (step - state["begun"])
    state["weight"] *= 1.0 - rate
    run.log(step, {"loss": state["weight"], "lr": rate})
    time.sleep(0.002)  # the training: a job that does nothing is far ahead of whoever stops it
    if step % 5 == 0:
        state["step"] = step
        part = file.with_suffix(".part")  # whole or not there: the job is killed at any moment
        part.write_text(json.dumps(state))
        part.replace(file)
        if not args.silent:
            run.checkpoint(step, file)
run.finish()
