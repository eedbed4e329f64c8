"""What `stabilityboard drill` names when one thing is not restored, on four real jobs.

    python benchmarks/resume_drill.py [--jobs plain torchrun demo lightning trainer] [--steps 10] [--json]

Each job is run straight and stopped once; then it is resumed as it should be, and with each of six things forgotten
(examples/drill/), from a copy of the stopped run's folder. What is compared and how is what the command does. Jobs
whose packages are missing are left out. `--python` names a Python that has transformers and accelerate. Returns 1
unless the right resume is clean and each fault is the first thing named.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stabilityplugins.drill.alignment import align, saves
from stabilityplugins.drill.comparisons import Legs
from stabilityplugins.drill.job import run_leg
from stabilityplugins.drill.result import Result, judge
from stabilityplugins.drill.series import same_training
from stabilityplugins.drill.trace import LegReader, LegTrace

DRILL = Path(__file__).resolve().parents[1] / "examples" / "drill"
#: What is forgotten -> what has to be named first.
FAULTS = {
    "": None,
    "optimizer": "optimizer state",
    "schedule": "learning rate",
    "rng": "random numbers",
    "data": "data",
    "step": "step counter",
    "weights": "weights",
}
TIMEOUT_S = 240.0


def commands(python: str, cache: Path, ranks: int) -> dict[str, list[str]]:
    """Return the command of each job; ``{dir}`` is its folder."""
    torchrun = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    folder = ["--folder", "{dir}"]
    demo = ["--checkpoint-every", "5", "--rows", "2", "--checkpoint-dir", "{dir}", "--data-cache", str(cache)]
    return {
        "plain": [python, str(DRILL / "plain.py"), *folder],
        "torchrun": [*torchrun, str(DRILL / "plain.py"), *folder],
        "demo": [*torchrun, str(DRILL / "multimodal.py"), *demo],
        "lightning": [python, str(DRILL / "lightning_job.py"), *folder],
        "trainer": [python, str(DRILL / "trainer_job.py"), *folder],
    }


def rounds(trace: LegTrace) -> int:
    """Return the steps that all ranks have done."""
    return min((len(one.rounds) for one in trace.ranks.values()), default=0)


class Stage:
    """A job's legs below one folder."""

    def __init__(self, name: str, folder: Path, python: str, steps: int) -> None:
        self._name, self._folder, self._python = name, folder, python
        self.stopped = self._run("stopped", 2, f"saved:{steps}", lambda trace: [0, *saves(trace)][-1] >= steps)
        if not saves(self.stopped):
            raise SystemExit(f"{name}: no checkpoint was seen\n{self.stopped.output}")
        self.saved = saves(self.stopped)[-1]
        enough = 2 * self.saved
        self.straight = self._run("straight", 2, f"rounds:{enough}", lambda trace: rounds(trace) >= enough)
        self.again = self.stopped
        if not same_training(self.straight, self.stopped):
            self.again = self._run("again", 2, f"rounds:{enough}", lambda trace: rounds(trace) >= enough)

    def resumed(self, forget: str, ranks: int = 2) -> Result:
        """Return what a drill finds when the job resumes without ``forget``."""
        name = f"resumed-{forget}-{ranks}"
        if not (self._folder / name / "done").exists():
            shutil.rmtree(self._folder / name, ignore_errors=True)
            shutil.copytree(self._folder / "stopped" / "job", self._folder / name / "job")
        extra = ["--resume"] if self._name == "demo" else []
        extra += ["--forget", forget] if forget else []
        found = self._run(name, ranks, f"rounds:{self.saved}", lambda trace: rounds(trace) >= self.saved, *extra)
        if not rounds(found):
            raise SystemExit(f"{self._name}, {forget or 'clean'}: it made no step\n{found.output}")
        at = align(self.stopped, found)
        return judge(Legs(self.straight, self.again, self.stopped, found, at))

    def _run(self, name: str, ranks: int, wait: str, enough: Callable[[LegTrace], bool], *more: str) -> LegTrace:
        job = self._folder / name / "job"
        job.mkdir(parents=True, exist_ok=True)
        if (self._folder / name / "done").exists():
            reader = LegReader(self._folder / name / "spool", self._folder / name / "probe")
            trace = reader.read()
            reader.close()
            return trace
        shutil.rmtree(self._folder / name / "probe", ignore_errors=True)
        command = [part.replace("{dir}", str(job)) for part in commands(self._python, self._cache, ranks)[self._name]]
        trace = run_leg(
            [*command, *more], self._folder / name, job_dir=job, cwd=Path.cwd(), environ=os.environ,
            timeout_s=TIMEOUT_S, enough=enough, wait_after=wait,
        )  # fmt: skip
        (self._folder / name / "done").touch()
        return trace

    @property
    def _cache(self) -> Path:
        return self._folder.parent / "tokens"


def has(python: str, package: str) -> bool:
    """Return whether a Python can import a package."""
    return subprocess.run([python, "-c", f"import {package}"], capture_output=True, check=False).returncode == 0


def main() -> int:
    """Print the table; return 1 when a fault is not named, or a right resume is not clean."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", nargs="+", default=[*commands("", Path(), 2)])
    parser.add_argument("--faults", nargs="+", default=[*FAULTS], help='"" is the right resume')
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--ranks", type=int, default=2, help="of the resumed run, where the job has ranks")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--folder", type=Path, help="keep the runs there, and take those that are there already")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found: list[dict[str, Any]] = []
    needed = {"lightning": "lightning", "trainer": "transformers"}
    with tempfile.TemporaryDirectory(prefix="resume-drill-") as temporary:
        folder = args.folder or temporary
        for job in args.jobs:
            if job in needed and not has(args.python, needed[job]):
                print(f"{job}: left out, {needed[job]} is not installed", file=sys.stderr)
                continue
            stage = Stage(job, Path(folder) / job, args.python, args.steps)
            for fault in args.faults:
                begun = time.monotonic()
                result = stage.resumed(fault, args.ranks)
                right = result.first == FAULTS[fault]
                found.append(
                    {"job": job, "forgotten": fault or "nothing", "first": result.first, "right": right,
                     "text": result.text, "cost": result.cost, "seconds": round(time.monotonic() - begun, 1)}
                )  # fmt: skip
                print(f"{job:10} {fault or 'nothing':10} {'ok ' if right else 'NOT'} {result.text}", file=sys.stderr)
    if args.json:
        print(json.dumps(found, indent=2))
    else:
        print("| job | forgotten | first thing named | right | verdict |\n|---|---|---|---|---|")
        for one in found:
            named = one["first"] or "nothing: clean"
            print(
                f"| {one['job']} | {one['forgotten']} | {named} | {'yes' if one['right'] else 'NO'} | {one['text']} |"
            )
    return 0 if all(one["right"] for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
