"""Real trainings unlike the demo, live: the client, an agent, a server, and the incidents of each job.

    python benchmarks/odd_jobs.py [--healthy] [--clouds] [--broken] [--only NAME ...] [--seeds 3] [--jobs 2]

``--healthy``: nothing is wrong, so that each warning is false. ``--clouds``: a loss of two clouds, one of which is
shifted. ``--broken``: mechanisms of faults; the first alarm's kind, delay, severity and advice.
Without a choice all three. Seeds are drawn anew. Returns 1 where a healthy job has a warning.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

#: Seconds that a job may take, and that its points may take to the server.
JOB_S, ARRIVAL_S = 400.0, 30.0
LOUD = ("warning", "critical")


def train(name: str, seed: int, attempt: int, folder: Path) -> None:
    """Be the job."""
    from odd import broken, healthy

    import stabilityclient

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if ranks > 1:
        import torch.distributed

        torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/ranks", rank=rank, world_size=ranks)
    run = stabilityclient.init(project="odd jobs", name=f"{name} {seed}")
    plain = (healthy.HEALTHY | healthy.CLOUDS).get(name)
    if plain is None and not broken.train(broken.BROKEN[name], run, seed, attempt, rank, folder):
        os._exit(1)  # as a job that its node takes away
    for step, row in plain(seed) if plain is not None else ():
        run.log(step, row)
    run.finish()


@dataclass(frozen=True)
class Told:
    """A job, its incidents and its resumes, as the API has them."""

    name: str
    seed: int
    incidents: list[dict[str, Any]]
    resumes: list[dict[str, Any]]


def follow(name: str, seed: int, server: Any, folder: Path) -> Told:
    """Run a job to its end, and return its incidents."""
    from odd import broken

    folder.mkdir(parents=True)
    fault = broken.BROKEN.get(name)
    run_id = f"{name}-{seed}".replace("_", "-")
    for attempt in range(2 if fault is not None and fault.resumed else 1):
        ranks = fault.ranks if fault is not None else 1
        jobs = [_start(name, seed, attempt, folder, run_id, server.url, (rank, ranks)) for rank in range(ranks)]
        for job in jobs:
            job.wait(JOB_S)
    end = time.monotonic() + ARRIVAL_S
    while server.get(f"/runs/{run_id}")["status"] not in ("finished", "failed", "ended") and time.monotonic() < end:
        time.sleep(0.2)
    resumes = server.get(f"/runs/{run_id}/resumes")["resumes"]
    return Told(name, seed, server.get(f"/runs/{run_id}/incidents")["incidents"], resumes)


def _start(
    name: str, seed: int, attempt: int, folder: Path, run_id: str, url: str, place: tuple[int, int]
) -> subprocess.Popen[bytes]:
    env = os.environ | {"STABILITY_URL": url, "STABILITY_RUN_ID": run_id, "STABILITY_DIR": str(folder / "spool")}
    env |= {"RANK": str(place[0]), "WORLD_SIZE": str(place[1]), "LOCAL_RANK": str(place[0]), "OMP_NUM_THREADS": "1"}
    with open(folder / "job.log", "ab") as log:
        command = [sys.executable, __file__, "--train", name, str(seed), str(attempt), str(folder)]
        return subprocess.Popen(command, env=env, stdout=log, stderr=log)


def line_of(one: dict[str, Any]) -> str:
    """Return an incident in one line."""
    advice = one["suggestion"]["action"] if one["suggestion"] else "-"
    what = one["dataset"] or one["metric"] or ""
    return (
        f"{one['severity']} {one['kind']}({what}) onset {one['onset_step']} seen {one['step']} {one['state']}"
        f"/{one['recovery']} {advice}: {one['title']}"
    )


def report(told: Told) -> str:
    """Return the lines of a job."""
    from odd import broken, healthy

    loud = [one for one in told.incidents if one["severity"] in LOUD]
    notes = len(told.incidents) - len(loud)
    lines = [line_of(one) for one in sorted(told.incidents, key=lambda one: int(one["step"]))]
    lines += [f"resume at {one['fork_step']}: {one['verdict']}, {one['grade']}: {one['text']}" for one in told.resumes]
    head = f"{told.name} {told.seed}: {len(loud)} alarms, {notes} notes"
    if told.name not in healthy.HEALTHY:
        fault = broken.BROKEN.get(told.name)
        at = broken.AT if fault is not None else healthy.SHIFT
        kinds = fault.kinds if fault is not None else ("spike", "level_shift", "divergence")
        after = [one for one in told.incidents if one["step"] >= at and one["kind"] in kinds]
        found = next((one for one in after if fault is None or fault.severity == "info" or one in loud), None)
        late = f"{found['step'] - at} steps late" if found is not None else "told as a note" if after else "MISSED"
        head += f" | {late} | before it {sum(one['step'] < at for one in loud)} false"
    return "\n".join([head, *(f"    {line}" for line in lines)])


def main() -> int:
    """Run the jobs and print what came of each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for part in ("healthy", "clouds", "broken"):
        parser.add_argument(f"--{part}", action="store_true")
    parser.add_argument("--only", nargs="+", help="names of jobs")
    parser.add_argument("--seeds", type=int, default=3, help="a job")
    parser.add_argument("--first", type=int, help="the first seed, else drawn")
    parser.add_argument("--jobs", type=int, default=2, help="at once")
    parser.add_argument("--out", type=Path, help="also as JSON, a job a line")
    options = parser.parse_args()
    from odd import broken, healthy
    from parts.server_process import ServerProcess

    chosen = [part for part in ("healthy", "clouds", "broken") if getattr(options, part)]
    parts = {"healthy": healthy.HEALTHY, "clouds": healthy.CLOUDS, "broken": broken.BROKEN}
    names = [name for part in chosen or parts for name in parts[part] if not options.only or name in options.only]
    first = options.first or random.SystemRandom().randrange(1_000, 10**6)
    cases = [(name, first + number) for number in range(options.seeds) for name in names]
    false = 0
    with (
        tempfile.TemporaryDirectory(prefix="odd-jobs-") as scratch,
        ServerProcess(Path(scratch) / "server") as server,
        ThreadPoolExecutor(options.jobs) as pool,
    ):
        for told in pool.map(lambda case: follow(*case, server, Path(scratch) / f"{case[0]}-{case[1]}"), cases):
            print(report(told), flush=True)
            false += sum(one["severity"] in LOUD for one in told.incidents) * (told.name in healthy.HEALTHY)
            if options.out:
                with options.out.open("a") as file:
                    file.write(json.dumps(asdict(told)) + "\n")
    print(f"{len(cases)} jobs; false alarms in healthy ones: {false}")
    return 1 if false else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        train(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5]))
    else:
        sys.exit(main())
