"""What a rollback looks like in each tracker: the same training, really run, read back with the tracker's own reader.

    python benchmarks/rollback_peers.py [--peers-python PATH] [--json]

A job trains to step 120, goes back to step 80 and trains on to 150. The loss says which attempt it belongs to: the
first attempt logs ``10 + step / 1000``, the second ``5 + step / 1000``. So what a reader answers at a step tells
whether it shows what the model in memory learned (first attempt up to 80, second after), whether the thrown-away
points are kept, and whether they are told apart.

Each tracker works in a process of its own, in a fresh folder. ``--peers-python`` is the interpreter of an environment
with ``requirements/peers.txt`` (default: STABILITY_PEERS_PYTHON, else the one that runs this). A tracker that
can't be run is named with the reason. Returns 0 when ours is right at every step, whatever the others do.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

REACHED, FORK, END = 120, 80, 150
#: Steps that the table shows: well below the fork, at it, just above it, the last one thrown away, past all of that.
SHOWN = (40, FORK, FORK + 1, 100, REACHED, 140)
ATTEMPTS = {1: 10.0, 2: 5.0}
TIMEOUT_S = 180.0
#: A value of the reader, and what the reader itself says about it ("" where it says nothing).
Answer = list[tuple[float, str]]
Found = dict[int, Answer]


def loss(step: int, attempt: int) -> float:
    """Return what ``attempt`` logs at ``step``."""
    return ATTEMPTS[attempt] + step / 1000


def walk() -> Iterator[tuple[int, int]]:
    """Yield (step, attempt) in the order in which the job trains."""
    yield from ((step, 1) for step in range(1, REACHED + 1))
    yield from ((step, 2) for step in range(FORK + 1, END + 1))


def found(pairs: Iterator[tuple[int, float]] | list[tuple[int, float]], label: str = "") -> Found:
    """Return (step, value) pairs by step."""
    answers: Found = {}
    for step, value in pairs:
        answers.setdefault(int(step), []).append((float(value), label))
    return answers


# --- ours ---------------------------------------------------------------------------------------------------------


def ours(folder: Path, *, declared: bool) -> Found:
    """Log through the client, its agent and a real server; read with the HTTP API."""
    from parts.server_process import ServerProcess

    with ServerProcess(folder / "data") as server:
        env = os.environ | {
            "STABILITY_URL": server.url,
            "STABILITY_DIR": str(folder / "spool"),
            "STABILITY_RUN_ID": "peers",
        }
        parts = ("both",) if declared else ("first", "second")
        for part in parts:
            subprocess.run([sys.executable, __file__, "--train-ours", part], env=env, check=True)
        return _read_ours(server)


def train_ours(part: str) -> None:
    """Train as a job does: in one process that says that it went back, or in two of which the second says nothing."""
    import stabilityclient

    run = stabilityclient.init(project="bench", name="rollback")
    for step, attempt in walk():
        if part == "both" and (step, attempt) == (FORK + 1, 2):
            run.rolled_back(to_step=FORK, reason="loss spike")
        if part == "both" or attempt == {"first": 1, "second": 2}[part]:
            run.log(step, {"loss": loss(step, attempt)})
    if run.finish() != "delivered":
        raise SystemExit("the points were not delivered")


def _read_ours(server: Any) -> Found:
    effective: Found = {}
    end = time.monotonic() + 20
    while END not in effective and time.monotonic() < end:
        time.sleep(0.1)
        answer = server.get("/runs/peers/series", metric="loss", view="effective")
        effective = {}
        for entry in answer["series"]:
            for step, value in zip(entry["steps"], entry["values"], strict=True):
                effective.setdefault(step, []).append((value, f"effective, segment {entry['segment']}"))
    for entry in server.get("/runs/peers/series", metric="loss", view="all")["series"]:
        for step, value in zip(entry["steps"], entry["values"], strict=True):
            if entry["dead"]:
                effective.setdefault(step, []).append((value, f"dead, segment {entry['segment']}"))
    return effective


# --- TensorBoard --------------------------------------------------------------------------------------------------


def tensorboard(folder: Path, *, restart: bool, purge: bool, server: bool) -> Found:
    """Log with PyTorch's SummaryWriter; read with EventAccumulator, or from TensorBoard's own server."""
    from torch.utils.tensorboard import SummaryWriter

    logs = folder / "logs" / "run"
    writer = SummaryWriter(logs)
    for step, attempt in walk():
        if restart and (step, attempt) == (FORK + 1, 2):
            writer.close()
            time.sleep(1.1)  # the event file's name has the second in it; a restart takes longer than that anyway
            writer = SummaryWriter(logs, purge_step=FORK + 1 if purge else None)
        writer.add_scalar("loss", loss(step, attempt), step)
    writer.close()
    return _tensorboard_server(folder / "logs") if server else _tensorboard_reader(logs)


def _tensorboard_reader(logs: Path) -> Found:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(logs), size_guidance={"scalars": 0})
    events.Reload()
    return found([(event.step, event.value) for event in events.Scalars("loss")])


def _tensorboard_server(logs: Path) -> Found:
    import httpx
    from parts.server_process import free_port

    port = free_port()
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(logs), "--port", str(port)]
    command += ["--samples_per_plugin", "scalars=100000"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            time.sleep(0.5)
            try:
                url = f"http://127.0.0.1:{port}/data/plugin/scalars/scalars"
                answer = httpx.get(url, params={"run": "run", "tag": "loss"}, timeout=5)
            except httpx.HTTPError:
                continue
            rows = answer.json() if answer.status_code == 200 else []
            if rows and rows[-1][1] == END:
                return found([(step, value) for _, step, value in rows])
    finally:
        process.terminate()
        process.wait(10)
    raise SystemExit("TensorBoard's server did not show the last step within 60 s")


# --- the others ---------------------------------------------------------------------------------------------------


def mlflow(folder: Path) -> Found:
    """Log with MLflow into SQLite; read with MlflowClient.get_metric_history."""
    import mlflow as peer

    peer.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
    with peer.start_run() as run:
        for step, attempt in walk():
            if (step, attempt) == (FORK + 1, 2):
                peer.set_tag("rolled_back_to", str(FORK))  # all that its API offers for saying so
            peer.log_metric("loss", loss(step, attempt), step=step)
    history = peer.MlflowClient().get_metric_history(run.info.run_id, "loss")
    return found([(metric.step, metric.value) for metric in history])


def aim(folder: Path) -> Found:
    """Log with aim.Run into a local repository; read with its Metric."""
    import aim as peer
    from aim.storage.context import Context

    run = peer.Run(repo=str(folder), system_tracking_interval=None, capture_terminal_logs=False)
    for step, attempt in walk():
        run.track(loss(step, attempt), name="loss", step=step)
    frame = run.get_metric("loss", Context({})).dataframe()
    run.close()
    return found(list(zip(frame["step"], frame["value"], strict=True)))


def wandb(folder: Path, *, restart: bool) -> Found:
    """Log with W&B offline; read the history records of its file with its own protobuf schema."""
    import wandb as peer

    options = {"mode": "offline", "dir": str(folder), "project": "bench", "id": "peers", "resume": "allow"}
    run = peer.init(**options)
    for step, attempt in walk():
        if restart and (step, attempt) == (FORK + 1, 2):
            run.finish()
            run = peer.init(**options)
        run.log({"loss": loss(step, attempt)}, step=step)
    run.finish()
    files = sorted((folder / "wandb").glob("offline-run-*/run-*.wandb"))
    answers: Found = {}
    for number, path in enumerate(files, 1):
        label = f"file {number}" if len(files) > 1 else ""
        for step, answer in found(list(_wandb_history(path)), label).items():
            answers.setdefault(step, []).extend(answer)
    return answers


def _wandb_history(path: Path) -> Iterator[tuple[int, float]]:
    from wandb.proto import wandb_internal_pb2

    for data in _leveldb_records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            if "loss" in items:
                yield items.get("_step", record.history.step.num), items["loss"]


def _leveldb_records(data: bytes) -> Iterator[bytes]:
    """Yield the records of a LevelDB log after W&B's 7 header bytes: 32 KiB blocks of checksum, length, kind, data."""
    at, parts = 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield parts
            parts = b""


def trackio(folder: Path) -> Found:
    """Log with trackio into its SQLite file; read with its own storage class."""
    os.environ["TRACKIO_DIR"] = str(folder)
    import trackio as peer
    from trackio.sqlite_storage import SQLiteStorage

    peer.init(project="bench", name="peers", embed=False)
    for step, attempt in walk():
        peer.log({"loss": loss(step, attempt)}, step=step)
    peer.finish()
    return found([(row["step"], row["loss"]) for row in SQLiteStorage.get_logs("bench", "peers") if "loss" in row])


#: name -> (what runs it, whether it needs the peers' environment)
CONTENDERS: dict[str, tuple[Callable[[Path], Found], bool]] = {
    "ours, rolled_back()": (lambda f: ours(f, declared=True), False),
    "ours, silent restart": (lambda f: ours(f, declared=False), False),
    "TensorBoard, one writer": (lambda f: tensorboard(f, restart=False, purge=False, server=False), False),
    "TensorBoard, restart": (lambda f: tensorboard(f, restart=True, purge=False, server=False), False),
    "TensorBoard, purge_step": (lambda f: tensorboard(f, restart=True, purge=True, server=False), False),
    "its server, one writer": (lambda f: tensorboard(f, restart=False, purge=False, server=True), False),
    "its server, restart": (lambda f: tensorboard(f, restart=True, purge=False, server=True), False),
    "its server, purge_step": (lambda f: tensorboard(f, restart=True, purge=True, server=True), False),
    "MLflow": (mlflow, True),
    "Aim": (aim, True),
    "W&B offline, one process": (lambda f: wandb(f, restart=False), True),
    "W&B offline, resume": (lambda f: wandb(f, restart=True), True),
    "trackio": (trackio, False),
}


# --- the table ----------------------------------------------------------------------------------------------------


def cell(step: int, answer: Answer) -> str:
    """Return what a reader shows at a step, in words: which attempt's value, in the reader's order."""
    if not answer:
        return "nothing"
    words = []
    for value, label in answer:
        attempt = next((f"{n}." for n in ATTEMPTS if abs(value - loss(step, n)) < 1e-4), f"{value:g}?")
        words.append(attempt + (" dead" if label.startswith("dead") else ""))
    return " + ".join(words)


def verdict(answers: Found) -> dict[str, bool]:
    """Return whether the curve is what the model learned, the dead points are kept, and both are told apart."""
    learned, kept, apart = True, True, True
    for step in range(1, END + 1):
        answer = answers.get(step, [])
        attempts = [(n, label) for value, label in answer for n in ATTEMPTS if abs(value - loss(step, n)) < 1e-4]
        shown = [n for n, label in attempts if not label.startswith("dead")]
        learned &= shown == [1 if step <= FORK else 2]
        if FORK < step <= REACHED:
            kept &= 1 in [n for n, _ in attempts]
            apart &= len({label for _, label in attempts}) == len(attempts) == 2
    return {"learned": learned, "kept": kept, "apart": kept and apart}


def table(results: dict[str, Found | str]) -> str:
    """Return the results as text."""
    lines = [
        f"loss logged to step {REACHED} (1. attempt), back to {FORK}, on to {END} (2. attempt); right is: 1. up to "
        f"{FORK}, 2. after it, and the 1. after {FORK} kept as dead",
        f"{'':<26}" + "".join(f"{f'step {step}':>14}" for step in SHOWN) + f"{'curve':>8}{'kept':>6}{'apart':>7}",
    ]
    for name, answers in results.items():
        if isinstance(answers, str):
            lines.append(f"{name:<26}  left out: {answers}")
            continue
        said = {key: "yes" if held else "NO" for key, held in verdict(answers).items()}
        cells = "".join(f"{cell(step, answers.get(step, [])):>14}" for step in SHOWN)
        lines.append(f"{name:<26}{cells}{said['learned']:>8}{said['kept']:>6}{said['apart']:>7}")
    lines += [
        "curve: the reader's curve is what the model learned, each step once; kept: the thrown-away points are still",
        "there; apart: the reader says which is which. W&B: its offline files, for its server could not be asked; two",
        "files after a resume, and nothing in the second one says which part of the first it replaces.",
    ]
    return "\n".join(lines)


def run_one(name: str, python: str) -> Found | str:
    """Return what one contender shows, or why it can't be run."""
    with tempfile.TemporaryDirectory() as folder:
        env = os.environ | {"WANDB_SILENT": "true", "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "1"}
        command = [python, __file__, "--one", name, "--folder", folder]
        try:
            done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=TIMEOUT_S, cwd=folder)
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["no message"])[-1][:150]
    answers: dict[str, list[list[Any]]] = json.loads(done.stdout.splitlines()[-1])
    return {int(step): [(value, label) for value, label in answer] for step, answer in answers.items()}


def main() -> int:
    """Run all, print, and return 0 when ours is right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given = os.environ.get("STABILITY_PEERS_PYTHON", sys.executable)
    parser.add_argument("--peers-python", default=given, help="interpreter that has requirements/peers.txt")
    parser.add_argument("--only", help="contenders whose name contains this")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", choices=CONTENDERS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--train-ours", choices=("both", "first", "second"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train_ours:
        train_ours(options.train_ours)
        return 0
    if options.one:
        print(json.dumps(CONTENDERS[options.one][0](options.folder)))
        return 0
    results: dict[str, Found | str] = {}
    for name, (_, of_peers) in CONTENDERS.items():
        if options.only is None or options.only in name:
            print(f"{name}          ", end="\r", file=sys.stderr)
            results[name] = run_one(name, options.peers_python if of_peers else sys.executable)
    if options.json:
        facts = {n: r if isinstance(r, str) else {"answers": r, **verdict(r)} for n, r in results.items()}
        print(json.dumps(facts))
    else:
        print(table(results))
    right = [isinstance(r, dict) and all(verdict(r).values()) for n, r in results.items() if n.startswith("ours")]
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
