"""``import`` and ``export`` against the whole server, over real sockets; the network between them may break."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from stabilitybackend.runs.state import RunState
from stabilityclient.wire import Frame
from stabilityplugins.importers.detect import find_plans
from stabilityplugins.importers.formats import FORMATS
from stabilityplugins.importers.job import ImportJob, Options
from support.cli_program import Program
from support.gateway_stack import RawAgent
from support.imported_run import ImportedRun
from support.job_frames import Job
from support.server_stack import RunningServer


def write_log(path: Path, steps: int = 40) -> Path:
    """Two ranks; back from 40 to 20 and on to 60; a NaN, an infinity."""
    rows: list[dict[str, Any]] = []
    for at, step in enumerate([*range(steps), *range(steps // 2, steps * 3 // 2)]):
        loss: object = {5: "NaN", 6: "Infinity"}.get(at, at / 2)
        rows += [{"step": step, "t": 1e9 + at, "rank": rank, "loss": loss, "lr": 0.1} for rank in (0, 1)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("timed", [True, False])
def test_a_log_without_times_has_no_speed_and_no_goodput(
    timed: bool, server: RunningServer, program: Program, tmp_path: Path
) -> None:
    log = tmp_path / "log.jsonl"
    rows = [{"step": step, "loss": 2.0} | ({"t": 1.7e9 + step} if timed else {}) for step in range(40)]
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert program("import", log, "--run-id", "one", "--url", server.url)[0] == 0
    server.wait_for("/runs/one", lambda run: run["status"] == "finished", "the run is over")
    assert (server.get("/runs/one/rollback_costs")["totals"]["goodput"] is not None) == timed
    table = server.wait_for("/run_table", lambda table: any(row["curve"] for row in table["rows"]), "the digest")
    (row,) = table["rows"]
    assert (row["speed"], row["goodput"] is not None) == (1.0 if timed else None, timed)
    assert row["goodput_why"] == ("" if timed else "its log has no times")


def test_how_the_steps_of_an_import_were_read_is_a_line_of_its_output(
    server: RunningServer, program: Program, tmp_path: Path
) -> None:
    log = tmp_path / "log.jsonl"
    rows = [{"step": step, "loss": 2.0 + batch} for step in range(50) for batch in range(4)]
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    _, out, _ = program("import", log, "--run-id", "one", "--url", server.url)
    notes = server.get("/runs/one")["log_notes"]
    assert notes
    assert [line for line in out.splitlines() if notes[0] in line] == [f"  note: {notes[0]}"]


def test_a_run_is_the_same_after_export_and_import(server: RunningServer, program: Program, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.jsonl")
    at = ("--url", server.url)
    code, out, err = program("import", log, "--run-id", "one", "--name", "First", "--project", "p", *at)
    assert (code, err.strip()) == (0, "")
    assert out.splitlines() == [
        "one: 160 rows (320 points) of JSONL sent, 0 rows were there already",
        "  note: 1 rollback or restart was inferred from steps that go back, to step 19; not so? import it again with "
        "--no-rollbacks --run-id NEW",
    ]
    run = server.wait_for("/runs/one", lambda r: r["status"] == "finished", "the run is over")
    assert (run["last_step"], run["rollbacks"], run["name"], run["project"]) == (59, 1, "First", "p")
    assert program("import", log, "--run-id", "one", *at)[1].startswith("one: 0 rows (0 points) of JSONL sent, 160 ")

    for name in ("run.parquet", "run.jsonl"):
        code, out, err = program("export", "one", "--to", tmp_path / name, *at)
        assert (code, err.strip()) == (0, "")
        assert out.startswith("one: ")
        assert program("import", tmp_path / name, "--run-id", name, *at)[0] == 0
        server.wait_for(f"/runs/{name}", lambda r: r["status"] == "finished", "the copy is over")
        for view in ("effective", "all"):
            asked = {"metric": ["loss", "lr"], "view": view}
            assert (
                server.get(f"/runs/{name}/series", **asked)["series"]
                == server.get("/runs/one/series", **asked)["series"]
            )
    lines = program("export", "one", "--to", "-", *at)[1].splitlines()
    assert lines[1:] == (tmp_path / "run.jsonl").read_text().splitlines()[1:]
    kinds = {i["kind"] for i in server.get("/runs/one/incidents")["incidents"]}
    assert not kinds & {"hang", "agent_lost", "process_death"}


@pytest.mark.parametrize("file", ["log.jsonl", "run.jsonl"], ids=["a log", "its own export"])
def test_nothing_is_imported_into_a_run_that_a_job_logged(
    server: RunningServer, program: Program, tmp_path: Path, file: str
) -> None:
    async def train() -> None:
        job = Job()
        async with RawAgent(server.agent_url) as agent:
            await agent.hello("live", sources=[job.info])
            await agent.send(job.rows(range(20)))
            await asyncio.to_thread(server.wait_for, "/runs/live", lambda r: r["last_step"] == 19, "step 19")

    asyncio.run(train())
    write_log(tmp_path / "log.jsonl")
    assert program("export", "live", "--to", tmp_path / "run.jsonl", "--url", server.url)[0] == 0

    code, _, err = program("import", tmp_path / file, "--run-id", "live", "--url", server.url)

    assert (code, "did not come from such an import" in err) == (1, True)
    run = server.get("/runs/live")
    assert (run["name"], run["config"], run["last_step"]) == ("n", {}, 19)


def test_the_formats_are_listed_and_the_documentation_names_each(program: Program) -> None:
    page = (Path(__file__).resolve().parents[3] / "plugins/stabilityplugins/importers/README.md").read_text()

    code, out, _ = program("import", "--formats")

    assert (code, out.splitlines()) == (0, [f"{one.label}: {one.known}" for one in FORMATS])
    assert [one.label for one in FORMATS if one.label.split()[-1] not in page] == []


def test_an_export_of_an_imported_run_is_not_imported_into_it(
    server: RunningServer, program: Program, tmp_path: Path
) -> None:
    at = ("--url", server.url)
    assert program("import", write_log(tmp_path / "log.jsonl"), "--run-id", "run", *at)[0] == 0
    server.wait_for("/runs/run", lambda r: r["status"] == "finished", "all of it is read")
    assert program("export", "run", "--to", tmp_path / "run.parquet", *at)[0] == 0
    before = server.get("/runs/run/segments")
    assert program("import", tmp_path / "run.parquet", *at)[0] == 1
    assert server.get("/runs/run/segments") == before


def test_what_could_not_be_read_is_named_and_makes_the_exit_code_1(
    server: RunningServer, program: Program, tmp_path: Path
) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('{"step": 0, "t": 1, "train/loss": 1}\nnonsense\n{"step": 1, "t": 2, "train/loss": 2}\n')

    code, out, err = program("import", log, tmp_path / "log.jsonl", "--run-id", "r", "--url", server.url)

    assert code == 1
    assert "train/loss is stored as loss" in out
    assert f"  {log}, line 2: no JSON: 'nonsense'\n" in err
    server.wait_for("/runs/r", lambda run: run["last_step"] == 1, "the rest is there")


def test_a_server_that_wants_a_key_says_so(redis_url: str, program: Program, tmp_path: Path) -> None:
    from redis import Redis

    log = write_log(tmp_path / "log.jsonl", 4)
    with Redis.from_url(redis_url):
        code, _, err = program("keys", "create", "x", "--scope", "read", "--redis-url", redis_url)
    assert code == 0, err
    with RunningServer(redis_url, tmp_path / "server", host="0.0.0.0") as server:
        code, _, err = program("import", log, "--run-id", "r", "--url", server.url)
    assert code == 1
    assert "needs an API key (HTTP 401)" in err
    assert "--api-key" in err


class _Cutting:
    """Stands between an import and the server, and cuts the first connections after some bytes."""

    def __init__(self, port: int, cuts: list[int]) -> None:
        self._port = port
        self._cuts = cuts
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        self._thread = threading.Thread(target=self._serve, name="cutting")
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            far = socket.create_connection(("127.0.0.1", self._port))
            back = threading.Thread(target=self._copy, args=(far, near, None))
            back.start()
            head = near.recv(65536, socket.MSG_PEEK)
            agent = b"/api/v1/agent" in head
            self._copy(near, far, self._cuts.pop(0) if agent and self._cuts else None)
            back.join()
            near.close()
            far.close()

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket, most: int | None) -> None:
        sent = 0
        try:
            while data := source.recv(65536):
                sent += len(data)
                if most is not None and sent > most:
                    break
                target.sendall(data)
        except OSError:
            pass
        for end in (source, target):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


@pytest.mark.soak
def test_an_import_over_a_network_that_breaks_stores_everything_once(
    server: RunningServer, program: Program, tmp_path: Path
) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps({"step": s, "t": s, "loss": s / 3}) + "\n" for s in range(40_000)))
    network = _Cutting(server.port, cuts=[100_000, 500_000])
    try:
        code, out, err = program("import", log, "--run-id", "r", "--url", network.url)
    finally:
        network.close()

    assert network.connections >= 6, "health, the run's config, and the agents' door: cut twice, whole, and a last word"
    assert (code, err.strip()) == (0, "")
    assert out == "r: 40000 rows (40000 points) of JSONL sent, 0 rows were there already\n"
    server.wait_for("/runs/r", lambda run: run["last_step"] == 39_999, "all is there")
    [series] = server.get("/runs/r/series", metric="loss")["series"]
    assert len(series["steps"]) == 40_000
    assert server.get("/runs/r")["effective_points"] == 40_000


class _BadServer(BaseHTTPRequestHandler):
    """Breaks off an export, or says afterwards that something could not be read."""

    protocol_version = "HTTP/1.1"
    breaks: ClassVar[bool] = True

    def do_GET(self) -> None:
        if self.path.startswith("/api/v1/runs/r/export?"):
            self.send_response(200)
            self.send_header("X-Export-Id", "e1")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"4\r\n{}\n\n\r\n")
            if not self.breaks:
                self.wfile.write(b"0\r\n\r\n")
            self.close_connection = True
            return
        facts = {"run_id": "r", "done": True, "rows": 1, "points": 1, "total": 1, "problems": ["part p7 is truncated"]}
        body = json.dumps(facts).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture(params=[True, False], ids=["breaks", "lacks"])
def bad_server(request: pytest.FixtureRequest) -> Iterator[str]:
    handler = type("Handler", (_BadServer,), {"breaks": request.param})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_an_export_that_breaks_off_leaves_no_file_and_one_that_lacks_something_says_what(
    bad_server: str, program: Program, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    (tmp_path / "out").mkdir()
    code, _, err = program("export", "r", "--to", tmp_path / "out" / "r.jsonl", "--url", bad_server)

    assert code == 1
    said = {
        "breaks": ("the export broke off after 4 bytes", []),
        "lacks": ("part p7 is truncated", ["r.jsonl"]),
    }[request.node.callspec.id]
    assert said[0] in err
    assert sorted(os.listdir(tmp_path / "out")) == said[1]


def test_an_export_is_written_into_a_pipe_and_through_a_link_and_replaces_neither(
    server: RunningServer, program: Program, tmp_path: Path
) -> None:
    assert program("import", write_log(tmp_path / "log.jsonl"), "--run-id", "run", "--url", server.url)[0] == 0
    server.wait_for("/runs/run", lambda r: r["status"] == "finished", "all of it is read")
    pipe, link, file = tmp_path / "pipe", tmp_path / "link.jsonl", tmp_path / "file.jsonl"
    os.mkfifo(pipe)
    link.symlink_to(file)
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(pipe.read_text().splitlines()), daemon=True)
    reader.start()

    assert program("export", "run", "--to", pipe, "--format", "jsonl", "--url", server.url)[0] == 0
    assert program("export", "run", "--to", link, "--url", server.url)[0] == 0
    reader.join(10)

    assert pipe.is_fifo()
    assert link.is_symlink()
    assert len(lines) == len(file.read_text().splitlines()) == 160


def test_standard_output_on_a_full_disk_is_one_line_of_trouble(
    server: RunningServer, program: Program, tmp_path: Path
) -> None:
    assert program("import", write_log(tmp_path / "log.jsonl"), "--run-id", "run", "--url", server.url)[0] == 0
    server.wait_for("/runs/run", lambda r: r["status"] == "finished", "all of it is read")
    command = [sys.executable, "-m", "stabilitybackend.cli", "export", "run", "--to", "-", "--url", server.url]
    with Path("/dev/full").open("wb") as full:
        left = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (left.returncode, left.stderr.strip()) == (
        1, "error: standard output can't be written: No space left on device"
    )  # fmt: skip


def test_export_says_what_it_can_write(program: Program, tmp_path: Path) -> None:
    code, _, err = program("export", "r", "--to", tmp_path / "r.xlsx")
    assert code == 1
    assert "expected FILE.parquet or FILE.jsonl" in err


def test_long_after_an_import_nothing_hangs_and_no_agent_is_missed(tmp_path: Path) -> None:
    now = [1e9 + 100.0]
    state = RunState("r", lambda: now[0])
    job = ImportJob(find_plans([write_log(tmp_path / "log.jsonl")], run_id="r")[0], Options())
    job.sniff()
    state.liveness.agent_connected("import-r", now[0])
    kinds: set[str] = set()
    for frame in job.frames({}):
        kinds |= {i.kind for i in state.apply(frame, replayed=False).incidents.values()}
    state.liveness.agent_disconnected("import-r", now[0])

    for later in (1.0, 20.0, 10_000.0):
        now[0] += later
        kinds |= {i.kind for i in state.tick().incidents.values()}

    assert not kinds & {"hang", "agent_lost", "process_death", "straggler"}
    assert state.view().status == "finished"


def test_frames_of_an_import_follow_from_the_file_alone(tmp_path: Path) -> None:
    def frames() -> list[Frame]:
        job = ImportJob(find_plans([write_log(tmp_path / "log.jsonl")], run_id="r")[0], Options())
        job.sniff()
        return list(job.frames({}))

    assert frames() == frames()
    ImportedRun().take(tmp_path / "log.jsonl")


def test_an_import_shows_no_secret_of_the_folder_that_it_came_from(
    server: RunningServer, program: Program, tmp_path: Path
) -> None:
    run = tmp_path / "mlruns" / "1" / "8da8e35ccb6c47c5a9630e856eb43fd2"
    for name, text in {
        "../meta.yaml": "artifact_location: file:///a\nexperiment_id: '1'\nname: llm\n",
        "meta.yaml": "artifact_uri: file:///a\nend_time: 3\nrun_id: x\nrun_name: mine\nstatus: 3\n",
        "metrics/loss": "1700000000000 2.5 1\n1700000001000 2.4 2\n",
        "params/hf_token": "Zqplanted1",
        "params/command": "train.py --password Zqplanted2",
    }.items():
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text(text)

    code, _, err = program("import", tmp_path / "mlruns", "--run-id", "kept", "--url", server.url)

    assert (code, err.strip()) == (0, "")
    shown = server.client.get("/api/v1/runs/kept").text
    assert "planted" not in shown
    assert "train.py --password (hidden)" in shown
