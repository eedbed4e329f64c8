"""``import --follow``: what another job writes reaches the server once, while it is written, whatever happens."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from stabilitybackend.schema.runs import FOLLOWED_KEY, Followed
from stabilityplugins.importers.detect import find_plans
from stabilityplugins.importers.job import ImportJob, Options
from support.followed_log import Follower, Writer
from support.installed import needs
from support.server_stack import RunningServer
from support.waiting import wait_until


def row(step: int) -> str:
    return json.dumps({"step": step, "t": 1e9 + step, "loss": step / 3}) + "\n"


def append(path: Path, *texts: str) -> None:
    with path.open("a") as file:
        file.write("".join(texts))


def curve(server: RunningServer, run: str, metric: str = "loss") -> dict[int, Any]:
    every = server.get(f"/runs/{run}/series", metric=metric)["series"]
    points = [point for one in every for point in zip(one["steps"], one["values"], strict=True)]
    assert len(dict(points)) == len(points), "each step once"
    return dict(points)


def last_step(server: RunningServer, run: str, step: int) -> Any:
    return server.wait_for(f"/runs/{run}", lambda r: r["last_step"] == step, f"step {step}", 20)


class Door:
    """A port before the server that can be shut."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._serve)

    def _start(self, work: Any, *arguments: Any) -> None:
        self._threads.append(threading.Thread(target=work, args=arguments))
        self._threads[-1].start()

    def _serve(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._port))
            self._open += [near, far]
            self._start(self._copy, near, far)
            self._start(self._copy, far, near)

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def shut(self) -> None:
        """Let nobody in any more, and throw out who is there."""
        if not self._threads:
            return
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()  # who was just let in is among the open ones now
        for one in self._open:
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        for thread in self._threads[1:]:
            thread.join()
        for one in (*self._open, self._listener):
            one.close()
        self._open, self._threads = [], []

    def open_again(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._start(self._serve)


@pytest.mark.soak
def test_a_growing_log_is_sent_once_over_kills_half_lines_and_a_server_that_is_away(
    server: RunningServer, tmp_path: Path
) -> None:
    log, out = tmp_path / "log.jsonl", tmp_path / "out"
    log.write_text("")
    door = Door(server.port)
    asked = (f"http://127.0.0.1:{door.port}", out, log, "--run-id", "r")
    try:
        with Follower(*asked) as follower:
            follower.wait_for("waits for something to follow")
            append(log, *map(row, range(10)), row(10)[:-7])
            last_step(server, "r", 9)
            blind = "Only its log log.jsonl is followed: hangs and deaths can't be detected from there."
            server.wait_for("/runs/r", lambda r: (r["status"], r["note"]) == ("running", blind), "it says so")
            append(log, row(10)[-7:], row(11))
            last_step(server, "r", 11)
            follower.kill()
        append(log, *map(row, range(12, 40)))
        with Follower(*asked) as follower:
            last_step(server, "r", 39)
            door.shut()
            follower.wait_for("trying again")
            append(log, *map(row, range(40, 60)), *map(row, range(50, 70)))
            door.open_again()
            last_step(server, "r", 69)
            assert follower.interrupt() == 0
            assert "r: finished" in follower.said
    finally:
        door.shut()

    run = server.wait_for("/runs/r", lambda r: r["status"] == "finished", "it is over")
    assert curve(server, "r") == {step: pytest.approx(step / 3) for step in range(70)}
    assert (run["effective_points"], run["dead_points"], run["rollbacks"]) == (70, 10, 1)
    kinds = {incident["kind"] for incident in server.get("/runs/r/incidents")["incidents"]}
    assert not kinds & {"hang", "process_death", "quiet_log"}


def test_a_log_that_goes_quiet_is_no_hang_and_does_not_look_healthy(server: RunningServer, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text("".join(map(row, range(10))))
    with Follower(server.url, tmp_path / "out", log, "--run-id", "r", "--quiet-after", "2") as follower:
        run = server.wait_for("/runs/r", lambda r: r["status"] == "unreachable" and r["note_incident"], "quiet", 20)
        assert run["note"].startswith("Nothing new in log.jsonl for ")
        [incident] = server.get("/runs/r/incidents")["incidents"]
        assert (incident["kind"], incident["severity"], incident["state"]) == ("quiet_log", "warning", "open")
        assert "The last values are of step 9." in incident["text"]
        assert incident["actions"] == ["acknowledge"]
        assert server.get("/runs/r")["agents"] == 0
        follower.wait_for("nothing new in log.jsonl for 2 s")
        order = {"kind": "rollback", "to_step": 5, "reason": "nobody is there to obey"}
        assert server.client.post("/api/v1/runs/r/commands", json=order).status_code == 409
        append(log, row(10))
        server.wait_for("/runs/r", lambda r: r["status"] == "running" and r["last_step"] == 10, "it goes on", 20)
        found = server.wait_for(
            "/runs/r/incidents", lambda i: i["incidents"][0]["state"] == "resolved" and i["incidents"], "over", 20
        )
        assert [i["kind"] for i in found["incidents"]] == ["quiet_log"]
    with Follower(server.url, tmp_path / "out", log, "--run-id", "r", "--until-quiet", "1") as follower:
        assert follower.wait() == 0
    server.wait_for("/runs/r", lambda r: r["status"] == "finished", "it is over")


@pytest.mark.soak
def test_a_file_that_is_put_aside_goes_on_and_one_that_is_rewritten_is_refused(
    server: RunningServer, tmp_path: Path
) -> None:
    log, out = tmp_path / "log.jsonl", tmp_path / "out"
    log.write_text("".join(map(row, range(10))))
    with Follower(server.url, out, log, "--run-id", "r") as follower:
        last_step(server, "r", 9)
        log.rename(tmp_path / "log.jsonl.1")
        append(tmp_path / "log.jsonl.1", row(10))
        log.write_text("".join(map(row, range(11, 20))))
        last_step(server, "r", 19)
        assert curve(server, "r") == {step: pytest.approx(step / 3) for step in range(20)}
        log.write_text("".join(map(row, range(11, 15))))
        follower.wait_for("has less than was sent of it")
        append(log, *(row(step).replace("1", "2") for step in range(15, 30)))
        assert follower.wait() == 1
        assert "was rewritten: its first 9 records are not those that were imported" in follower.said


def test_a_job_that_its_log_says_failed_has_crashed(server: RunningServer, tmp_path: Path) -> None:
    run = tmp_path / "mlruns" / "1" / "a1b2"
    (run / "metrics").mkdir(parents=True)
    meta = "run_id: a1b2\nrun_name: named\nexperiment_id: '1'\nlifecycle_stage: active\nstart_time: 1700000000000\n"
    (run / "meta.yaml").write_text(meta + "status: 1\n")
    (run / "metrics" / "loss").write_text("".join(f"{1700000000000 + step} {step / 3} {step}\n" for step in range(10)))
    with Follower(server.url, tmp_path / "out", run.parents[1]) as follower:
        follower.wait_for("follows")
        (run / "meta.yaml").write_text(meta + "status: 4\n")
        assert follower.wait() == 0
        assert "crashed with exit code 1" in follower.said
    [there] = server.get("/runs")["runs"]
    ended = server.wait_for(f"/runs/{there['run_id']}", lambda r: r["status"] == "crashed", "it has crashed")
    assert "Rank 0 ended with exit code 1 at step 9" in ended["note"]


def test_who_follows_again_knows_the_longest_pause_before(server: RunningServer, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text("".join(map(row, range(10))))
    [plan] = find_plans([log], run_id="r")
    plan.config[FOLLOWED_KEY] = Followed(since=None, longest_pause_s=100.0).as_config()
    job = ImportJob(plan, Options())
    job.sniff()
    asyncio.run(job.send(server.agent_url, None))
    with Follower(server.url, tmp_path / "out", log, "--run-id", "r"):

        def limit(health: Any) -> Any:
            logs = [agent["agent_state"].get("log") for agent in health["agents"]]
            return [log["limit_s"] for log in logs if log] == [500.0]

        server.wait_for("/runs/r/health", limit, "five times that pause", 20)
        left = server.get("/runs/r")["config"][FOLLOWED_KEY]
        assert left["longest_pause_s"] == 100.0


@pytest.mark.soak
def test_of_the_runs_in_a_folder_an_old_one_is_over_and_a_further_one_is_found(
    server: RunningServer, tmp_path: Path
) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    for name in ("old", "live"):
        (folder / f"{name}.jsonl").write_text("".join(map(row, range(10))))
    os.utime(folder / "old.jsonl", (1e9, 1e9))

    def states() -> dict[str, tuple[str, int]]:
        return {run["name"]: (run["status"], run["last_step"]) for run in server.get("/runs")["runs"]}

    with Follower(server.url, tmp_path / "out", folder) as follower:
        there = {"runs/old": ("finished", 9), "runs/live": ("running", 9)}
        wait_until(lambda: states() == there, 20, "one is over, one goes on")
        (folder / "late.jsonl").write_text("".join(map(row, range(5))))
        wait_until(lambda: states() == there | {"runs/late": ("running", 4)}, 20, "the new one is followed")
        assert follower.interrupt() == 0
    wait_until(lambda: {status for status, _ in states().values()} == {"finished"}, 20, "all are over")


WANDB = """
import wandb
run = wandb.init(project="p", id="w", name="named", settings=wandb.Settings(console="off", x_disable_stats=True))
def log(step): run.log({"loss": step / 3, "global_step": 10 * step})
def end(): run.finish(exit_code=3)
"""
TENSORBOARD = """
from torch.utils.tensorboard import SummaryWriter
writer = SummaryWriter("log")
def log(step):
    writer.add_scalar("loss", step / 3, 10 * step)
    writer.flush()
    writer.add_scalar("lr", 0.5, 10 * step)
    writer.flush()
"""
MLFLOW = """
import mlflow
mlflow.set_tracking_uri("file:log")
mlflow.set_experiment("p")
run = mlflow.start_run(run_name="named")
def log(step): mlflow.log_metrics({"loss": step / 3, "lr": 0.5}, step=10 * step)
def end(): mlflow.end_run()
"""
TRAINER = """
import json, pathlib
from transformers import TrainerState
state = TrainerState()
def log(step):
    state.log_history.append({"loss": step / 3, "step": 10 * step})
    folder = pathlib.Path(f"log/checkpoint-{10 * step}")
    folder.mkdir(parents=True)
    state.save_to_json(folder / "trainer_state.json")
"""
CSV = """
import csv
rows = []
def log(step):
    rows.append({"step": 10 * step, "loss": step / 3, **({"val": 1.0} if step > 3 else {})})
    names = list(dict.fromkeys(name for row in rows for name in row))
    with open("log/metrics.csv", "w", newline="") as file:
        table = csv.DictWriter(file, names)
        table.writeheader()
        table.writerows(rows)
"""


class Kind(NamedTuple):
    """What writes a log, and whether the log itself says when it is over."""

    script: str
    says_end: bool = False


def of(writer: str, kind: Kind) -> Any:
    """Return the case of a writer whose import takes seconds: ``make integrations`` runs it."""
    return pytest.param(kind, marks=(needs(writer, f"{writer} writes its own files"), pytest.mark.integrations))


KINDS = {
    "wandb": of("wandb", Kind(WANDB, says_end=True)),
    "tensorboard": of("torch", Kind(TENSORBOARD)),
    "mlflow": of("mlflow", Kind(MLFLOW, says_end=True)),
    "trainer": of("transformers", Kind(TRAINER)),
    "csv that gets a column": pytest.param(Kind(CSV), marks=pytest.mark.soak),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_each_format_is_followed_while_its_own_writer_writes(server: RunningServer, tmp_path: Path, kind: Kind) -> None:
    folder = tmp_path / ("wandb" if kind.script is WANDB else "log")
    folder.mkdir()
    asked = (server.url, tmp_path / "out", folder)

    def run_id() -> Any:
        return next((run["run_id"] for run in server.get("/runs")["runs"]), None)

    with Writer(kind.script, tmp_path) as writer:
        writer.log(1)
        with Follower(*asked) as follower:
            run = str(wait_until(run_id, 60, "the run is there"))
            writer.log(2, 3)
            last_step(server, run, 30)
            follower.kill()
        writer.log(4)
        with Follower(*asked) as follower:
            last_step(server, run, 40)
            writer.log(5)
            last_step(server, run, 50)
            writer.end()
            assert (follower.wait() if kind.says_end else follower.interrupt()) == 0
    ended = server.wait_for(f"/runs/{run}", lambda r: r["status"] in ("finished", "crashed"), "it is over")
    assert ended["status"] == ("crashed" if kind.script is WANDB else "finished")
    assert curve(server, run) == {10 * step: pytest.approx(step / 3) for step in range(1, 6)}
    assert (ended["rollbacks"], ended["dead_points"]) == (0, 0)
