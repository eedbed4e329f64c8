"""Measures what comparing resumes costs: the looks at a resume in the server, the reports in the training thread.

    python benchmarks/resume_reports.py [--json]

A look reads both branches of a run of 20,000 steps that went back, 18 times from the first loss to the 512th. The
reports are the digests of the random states that go with a checkpoint (python, numpy, torch if it is there, no GPU),
and what a process says once of its environment. CPU time, so that other work of the machine does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import numpy.random

from stabilitybackend.judging.resumes.book import ResumeBook
from stabilitybackend.runs.state import RunState
from stabilityclient.environment import environment, git_commit
from stabilityclient.rank_state.random_states import random_states
from stabilityclient.wire import Frame

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.job_frames import Job

#: Longest look, milliseconds of CPU: the event loop serves nobody meanwhile.
AIM_MS = 10.0
STEPS, FRAME_STEPS = 20_000, 100


def frames_of(metrics: int, back: int) -> list[Frame]:
    """Return the frames of a run with so many metrics that goes ``back`` steps back at its end, and on for 700."""
    rng, job = np.random.default_rng(1), Job()
    noise, frames = rng.normal(0, 0.05, 2 * STEPS), []
    for first, last, numerics in ((1, STEPS, 0.0), (STEPS - back + 1, STEPS - back + 701, 0.003)):
        if first > 1:
            frames.append(job.rolled_back(STEPS - back, "d-1"))
        for begin in range(first, last, FRAME_STEPS):
            steps = np.arange(begin, min(last, begin + FRAME_STEPS))
            loss = 2 + np.exp(-steps / 200) + noise[steps] + rng.normal(0, numerics, len(steps))
            columns = {"loss": loss.tolist()} | {f"m{at}": (loss * at).tolist() for at in range(1, metrics)}
            frames.append(job.rows(steps.tolist(), columns))
    return frames


def looks_ms(metrics: int, back: int) -> list[float]:
    """Return the CPU milliseconds of each look."""
    taken, compare = [], ResumeBook._compare_now

    def timed(self: ResumeBook, *args: object, **options: object) -> object:
        begin = time.process_time()
        found = compare(self, *args, **options)  # type: ignore[arg-type]
        taken.append(1e3 * (time.process_time() - begin))
        return found

    ResumeBook._compare_now = timed  # type: ignore[method-assign, assignment]
    try:
        state = RunState("r", lambda: 5_000.0)
        for frame in frames_of(metrics, back):
            state.apply(frame, replayed=False)
    finally:
        ResumeBook._compare_now = compare  # type: ignore[method-assign]
    return taken


def main() -> int:
    """Print a table, or JSON; return 1 where a look takes longer than AIM_MS."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    try:
        import torch  # noqa: F401 # its generator is read where it is there
    except ImportError:
        pass
    rows: dict[str, tuple[float, float]] = {}
    for metrics, back in ((12, 600), (48, 600), (12, 9_000)):
        taken = looks_ms(metrics, back)
        rows[f"look: {metrics} metrics, {back} steps back, ms"] = statistics.median(taken), max(taken)
    for name, call in (
        ("random states of a checkpoint, us", random_states),
        ("environment, us", lambda: environment(os.environ, 1, "")),
        ("git commit, us", lambda: git_commit(__file__)),
    ):
        taken = []
        for _ in range(200):
            begin = time.process_time()
            call()
            taken.append(1e6 * (time.process_time() - begin))
        rows[name] = statistics.median(taken), max(taken)
    if as_json:
        print(json.dumps(rows))
    else:
        print(f"{'':44}{'median':>10}{'longest':>10}")
        for name, (middle, longest) in rows.items():
            print(f"{name:44}{middle:10.1f}{longest:10.1f}")
    return int(any(longest > AIM_MS for name, (_, longest) in rows.items() if name.startswith("look")))


if __name__ == "__main__":
    raise SystemExit(main())
