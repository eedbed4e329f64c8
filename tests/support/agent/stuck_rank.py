"""A rank that gets into one state and stays there: ``python stuck_rank.py STATE FOLDER``. Says ``in`` when it is there.

The heartbeat comes ten times as fast as in a job, so that the tests see many beats soon.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import queue
import signal
import sys
import time
from pathlib import Path
from statistics import mode

import stabilityclient
from stabilityclient.rank_state import heartbeat

heartbeat.BEAT_S = 0.1
#: Microseconds of one sleep in C: longer than any test.
_LONG_US = 600_000_000


def healthy(run: stabilityclient.Run) -> None:
    for _ in run.steps(0):
        time.sleep(0.01)


def livelock(run: stabilityclient.Run) -> None:
    for number in itertools.count():
        number * number


def queue_get(run: stabilityclient.Run) -> None:
    queue.Queue().get()


def c_sleep(run: stabilityclient.Run) -> None:
    while True:  # a signal ends usleep early
        ctypes.CDLL(None).usleep(_LONG_US)


def gil_held(run: stabilityclient.Run) -> None:
    usleep = ctypes.PyDLL(None).usleep  # PyDLL: the call keeps the interpreter's lock
    while True:
        usleep(_LONG_US)


def stopped(run: stabilityclient.Run) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)
    healthy(run)


STATES = {each.__name__: each for each in (healthy, livelock, queue_get, c_sleep, gil_held, stopped)}


def usual_state(pid: int) -> str:
    """Return the state in /proc that a process is most often seen in.

    Who spins sleeps for an instant while its heartbeat thread has the interpreter's lock: seen in 14 of 7,100 looks.
    """
    states = []
    for _ in range(9):
        states.append(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0])
        time.sleep(0.002)
    return mode(states)


def main(state: str, folder: str) -> None:
    run = stabilityclient.init(run_id=state, dir=folder)
    for _ in run.steps(0, 3):
        pass
    assert run._components is not None
    while not run._components.slot.pending:  # until the heartbeat thread has asked the main thread once
        time.sleep(0.001)
    print("in", flush=True)
    STATES[state](run)


if __name__ == "__main__":
    main(*sys.argv[1:])
