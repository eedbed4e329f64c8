"""A process that was asked to end, saves and leaves in order says so: its run is no finished one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.agent.spooled import child, stored

#: What a job does at its start.
OPEN = """
import asyncio, os, signal, sys, time
import stabilityclient
run = stabilityclient.init(run_id="r", dir=sys.argv[1])
run.log(1, {"loss": 1.0})
def ask(number=signal.SIGTERM):
    os.kill(os.getpid(), number)
"""
#: Ways to be asked and to leave -> who asked, "" for a job that just finishes.
JOBS = {
    "a handler that saves and exits": (
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); ask(); time.sleep(5)", "SIGTERM",
    ),
    "a handler that finishes and exits": (
        "signal.signal(signal.SIGTERM, lambda *_: (run.finish(), sys.exit(0))); ask(); time.sleep(5)", "SIGTERM",
    ),
    "a flag that the loop sees": (
        "flag = []; signal.signal(signal.SIGTERM, lambda *_: flag.append(1)); ask(); assert flag; run.finish()",
        "SIGTERM",
    ),
    "the job's own word": ("run.preempted('the queue'); run.finish()", "the queue"),
    "nobody": ("signal.signal(signal.SIGTERM, lambda *_: None); run.finish()", ""),
    "another signal": ("signal.signal(signal.SIGUSR1, lambda *_: None); ask(signal.SIGUSR1); run.finish()", ""),
    "a forked child with the handler of its parent": (
        "signal.signal(signal.SIGTERM, lambda *_: None)\n"
        "if os.fork() == 0:\n    ask(); os._exit(0)\n"
        "os.wait(); run.finish()", "",
    ),
}  # fmt: skip


def last_event(folder: Path, code: str, **environ: str) -> tuple[str, dict[str, Any]]:
    with child(OPEN + code, str(folder), STABILITY_MODE="offline", **environ) as job:
        _, said = job.communicate(timeout=60)
    assert job.returncode == 0, said
    event = stored(folder / "r").events()[-1]
    return event.type, event.data


@pytest.mark.parametrize("way", JOBS)
def test_how_a_process_left_is_its_last_event(way: str, tmp_path: Path) -> None:
    code, by = JOBS[way]

    assert last_event(tmp_path, code) == (("preempted", {"by": by}) if by else ("finish", {}))


def test_the_warning_of_slurm_counts_below_slurm(tmp_path: Path) -> None:
    code = "signal.signal(signal.SIGUSR1, lambda *_: None); ask(signal.SIGUSR1); run.finish()"

    assert last_event(tmp_path, code, SLURM_JOB_ID="7") == ("preempted", {"by": "SIGUSR1"})


@pytest.mark.parametrize("first", ["the loop", "init()"])
def test_an_event_loop_that_handles_signals_still_does(first: str, tmp_path: Path) -> None:
    code = """
async def main():
    got = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, got.set)
    if sys.argv[2] == "the loop":
        stabilityclient.init(run_id="r", dir=sys.argv[1])
    ask()
    await asyncio.wait_for(got.wait(), 10)
    print("got it")
asyncio.run(main())
"""
    with child(OPEN + code, str(tmp_path), first, STABILITY_MODE="offline") as job:
        out, said = job.communicate(timeout=60)

    assert out == "got it\n", said
