"""Starts a job and ends it when it hangs, but not while it goes back on order::

    export STABILITY_PROGRESS_FILE=/tmp/my-run.json
    python watchdog.py --stuck-after 900 -- torchrun --nproc-per-node 8 train.py

Once a second it asks the file that the node's agent writes. What nobody knows (exit code 2 of ``python -m
stabilityclient.progress``) ends no job. All processes of a job that is stuck get SIGTERM, and SIGKILL ``--grace``
seconds later; the exit code is then 75 (sysexits: try again), else that of the job.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time

from stabilityclient.progress import read, verdict_of

#: Exit code of a job that was ended here.
STUCK_CODE = 75
CHECK_EVERY_S = 1.0


def end(job: subprocess.Popen[bytes], grace_s: float) -> None:
    """End all processes of a job that was started in a group of its own."""
    os.killpg(job.pid, signal.SIGTERM)
    try:
        job.wait(grace_s)
    except subprocess.TimeoutExpired:
        pass
    try:
        os.killpg(job.pid, signal.SIGKILL)  # ranks may outlive their launcher
    except ProcessLookupError:
        pass
    job.wait()


def main() -> int:
    """Run the job to its end or to the moment when it hangs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--stuck-after", type=float, default=900.0, metavar="SECONDS")
    parser.add_argument("--grace", type=float, default=30.0, metavar="SECONDS")
    parser.add_argument("command", nargs="+", help="behind --")
    options = parser.parse_args()
    file = os.environ.get("STABILITY_PROGRESS_FILE")
    if not file:
        parser.error("STABILITY_PROGRESS_FILE is not set: name a file on this node's disk, for the job and for this")
    if os.path.exists(file):
        os.remove(file)  # of the job before
    job = subprocess.Popen(options.command, start_new_session=True)
    for number in (signal.SIGTERM, signal.SIGINT):  # who ends this one ends the job
        signal.signal(number, lambda number, _: os.killpg(job.pid, number))
    said = ""
    while job.poll() is None:
        verdict, why = verdict_of(read(file), time.time(), options.stuck_after)
        if verdict != said:
            said = verdict
            print(f"watchdog: {verdict}: {why}", file=sys.stderr, flush=True)
        if verdict == "stuck":
            end(job, options.grace)
            return STUCK_CODE
        try:
            job.wait(CHECK_EVERY_S)
        except subprocess.TimeoutExpired:
            pass
    code = job.returncode
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
