"""Plays trained runs of the laboratory through the client, an agent and a server, and scores what the server answers.

    python benchmarks/laboratory/detection.py --train --seeds 4711 --keep DIR
    python benchmarks/laboratory/live.py DIR [--jobs 6] [--verbose]

A job is a process a rank that logs the rows at their own times, FASTER times as fast; where a fault is in the speed, as
they were. A restart is a death and a new process that goes on with the run, with ``restored`` at every second seed.
Prints the scores of ``detection.py`` live and, of the same files, by backtest, and the alarms in which the two differ.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent))

#: How many times as fast as the log's own clock; kinds whose fault is in the speed are played as they were.
FASTER, OF_SPEED = 20.0, ("slow_loader", "slow_rank")
#: Steps between two checkpoints, and the wait until all points of an ended job are judged, seconds.
EVERY, ARRIVAL_S = 100, 60.0
#: Said of the deaths that this program makes, which the truth of a log doesn't know.
OWN = ("process_death",)


def parts_of(path: Path) -> list[list[dict[str, Any]]]:
    """Return the rows of a log, a list for each process of the job: it dies where its steps go back."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    first = [row for row in rows if not row.get("rank")]
    cuts = [rows.index(row) for before, row in pairwise(first) if row["step"] <= before["step"]]
    return [rows[begin:end] for begin, end in pairwise([0, *cuts, len(rows)])]


def play(path: Path, part: int, folder: Path, began: float, rate: float) -> None:
    """Be one rank of one process. ``began``: unix time of the log's first row; ``rate``: seconds a second of it."""
    import stabilityclient

    rank, parts = int(os.environ["RANK"]), parts_of(path)
    start, rows = parts[0][0]["t"], [row for row in parts[part] if row.get("rank", 0) == rank]
    run = stabilityclient.init(project="laboratory", name=path.stem)
    if part and "restored" in sys.argv:
        run.restored(rows[0]["step"] - 1)
    for row in rows:
        time.sleep(max(0.0, began + (row["t"] - start) * rate - time.time()))
        run.log(row["step"], {name: value for name, value in row.items() if name not in ("step", "t", "rank")})
        if row["step"] % EVERY == 0 and rank == 0:
            (folder / str(row["step"])).write_text("")
            run.checkpoint(row["step"], str(folder / str(row["step"])))
    if part + 1 < len(parts):
        time.sleep(1.0)
        os._exit(1)
    run.finish()


def follow(path: Path, server: Any, folder: Path) -> list[dict[str, Any]]:
    """Run a job to its end and return its incidents."""
    folder.mkdir(parents=True)
    run_id, parts = path.stem.replace("_", "-"), parts_of(path)
    truth = json.loads(path.with_suffix(".truth.json").read_text())
    rate = 1.0 if truth["fault"] in OF_SPEED else 1 / FASTER
    ranks = 1 + max(row.get("rank", 0) for row in parts[0])
    env = os.environ | {"STABILITY_URL": server.url, "STABILITY_RUN_ID": run_id, "STABILITY_DIR": str(folder / "spool")}
    env |= {"WORLD_SIZE": str(ranks)}
    began, how = time.time() + 2.0, ["restored"] * (truth["seed"] % 2)
    with open(folder / "job.log", "ab") as log:
        for part in range(len(parts)):
            command = [sys.executable, __file__, "--play", str(path), str(part), str(folder), str(began), str(rate)]
            jobs = [
                subprocess.Popen(
                    [*command, *how], env=env | {"RANK": str(i), "LOCAL_RANK": str(i)}, stdout=log, stderr=log
                )
                for i in range(ranks)
            ]
            for job in jobs:
                job.wait()
            began = max(began, time.time() - (parts[part][-1]["t"] - parts[0][0]["t"]) * rate)
    end = time.monotonic() + ARRIVAL_S
    while server.get(f"/runs/{run_id}")["status"] not in ("finished", "failed", "ended") and time.monotonic() < end:
        time.sleep(0.2)
    found: list[dict[str, Any]] = server.get(f"/runs/{run_id}/incidents")["incidents"]
    return found


def main() -> int:
    """Play all logs and print the scores."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", help="names of faults")
    parser.add_argument("--jobs", type=int, default=6, help="at once; they sleep nearly all the time")
    parser.add_argument("--verbose", action="store_true", help="also every alarm that is wrong or missing")
    parser.add_argument("--out", type=Path, help="the incidents as JSON, a log a line")
    options = parser.parse_args()
    from detection import logs_of, ours
    from detection_score import Alarm, judge
    from parts.server_process import ServerProcess
    from rule_pass import LOUD

    logs = [(path, log) for path, log in logs_of(options.folder) if not options.only or log.cluster in options.only]
    logs.sort(key=lambda one: one[1].cluster not in OF_SPEED)
    live, tested = [], []
    with (
        tempfile.TemporaryDirectory(prefix="laboratory-") as scratch,
        ServerProcess(Path(scratch) / "server") as server,
        ThreadPoolExecutor(options.jobs) as pool,
    ):
        told = pool.map(lambda one: follow(one[0], server, Path(scratch) / one[0].stem), logs)
        for (path, log), incidents in zip(logs, told, strict=True):
            if options.out:
                with options.out.open("a") as file:
                    file.write(json.dumps({"name": path.stem, "incidents": incidents}) + "\n")
            alarms = [
                Alarm(i["step"], i["kind"], i["recovery"], i["dataset"], i["rank"], i["severity"] in LOUD)
                for i in incidents
                if i["kind"] not in OWN
            ]
            before = ours(path)
            live.append(judge(log, alarms))
            tested.append(judge(log, before))
            for text in _differences(alarms, before):
                print(f"{path.stem}: {text}", flush=True)
    for name, scores in (("live", live), ("backtest", tested)):
        print(line_of(name, scores, options.verbose))
    return 0


def _differences(live: Sequence[Any], tested: Sequence[Any]) -> list[str]:
    seen = [sorted((one.kind, one.step) for one in alarms if one.loud) for alarms in (live, tested)]
    kinds = [[kind for kind, _ in one] for one in seen]
    return [f"live {seen[0]}, backtest {seen[1]}"] if kinds[0] != kinds[1] else []


def line_of(name: str, scores: Sequence[Any], verbose: bool) -> str:
    """Return the figures of a column."""
    from detection_score import LOSS_KINDS, total_of

    total = total_of(scores)
    head = (
        f"{name}: F1 loss {total.f1(LOSS_KINDS):.3f}, all {total.f1():.3f}, precision {total.precision():.3f}, recall "
        f"{total.recall():.3f}, {len(total.false_alarms)} false in {total.points} points, kind {total.share('kind')}, "
        f"recovery {total.share('recovery')}, data set {total.share('dataset')}, rank {total.share('rank')}"
    )
    found = {kind: f"{total.found.get(kind, 0)} of {count}" for kind, count in sorted(total.events.items())}
    more = (
        [f"    {text}" for part in (total.false_alarms, total.missed, total.wrong) for text in part] if verbose else []
    )
    return "\n".join([head, f"    {found}", *more])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--play"]:
        play(Path(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), float(sys.argv[5]), float(sys.argv[6]))
    else:
        sys.exit(main())
