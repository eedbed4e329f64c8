"""What docs/launch.md gives people to copy works as it is: real jobs and a real server under stand-ins for Slurm."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.installed import needs
from support.ports import free_port
from support.processes import Server, agent_pid
from support.waiting import wait_until

_HERE = Path(__file__).parent
_FILES = _HERE.parents[1] / "examples" / "launch"
_RANK = _HERE / "launched_rank.py"
#: As Slurm calls them.
_NODES = ("n1", "n2")
#: What Slurm tells the script of a batch job of two nodes with two tasks each.
_SLURM = {
    "SLURM_JOB_NODELIST": ",".join(_NODES),
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_NTASKS_PER_NODE": "2",
    "SLURM_SUBMIT_DIR": str(_FILES),
    "SLURMD_NODENAME": _NODES[0],
}


class Job:
    """A job that a file of ``examples/launch`` starts, without a key: the server of a test has none."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.enough = folder, folder / "enough"
        programs = folder / "programs"
        programs.mkdir()
        (programs / "srun").write_text(f'#!/bin/sh\nexec "{sys.executable}" "{_HERE / "stand_in_srun.py"}" "$@"\n')
        (programs / "scontrol").write_text(
            f"#!/bin/sh\necho \"$*\" >> '{folder}/calls'\n"
            f"case $1 in show) echo $3 | tr , '\\n' ;; requeue) kill -TERM $(cat '{folder}/srun.pid') ;; esac\n"
        )
        for program in programs.iterdir():
            program.chmod(0o755)
        other = ("PYTEST", "STABILITY_", "SLURM", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "TORCHELASTIC")
        clean = {name: value for name, value in os.environ.items() if not name.startswith(other)}
        path = f"{programs}:{Path(sys.executable).parent}:{clean['PATH']}"
        own = {"PATH": path, "KEY_FILE": str(folder / "key"), "NODE_DISK": str(folder / "disk"), "FOLDER": str(folder)}
        self.env = clean | own | {"STABILITY_URL": url, "STABILITY_DRAIN_S": "5", "OMP_NUM_THREADS": "1"}

    @contextmanager
    def start(self, script: str, *arguments: str, **env: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a script until the context ends."""
        command = ["bash", str(_FILES / script), *arguments, str(_RANK), str(self.folder)]
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(command, env=self.env | env, stdout=log, stderr=log, start_new_session=True)
        try:
            yield process
        finally:
            if process.poll() is None:
                self.enough.touch()  # torchrun's ranks are in sessions of their own
                process.wait(120)

    def end(self, *processes: subprocess.Popen[bytes]) -> None:
        """Let the ranks end by themselves."""
        self.enough.touch()
        codes = [process.wait(120) for process in processes]
        assert set(codes) == {0}, (self.folder / "log").read_text(errors="replace")[-2_000:]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("server") / "data", free_port()) as running:
        yield running


@pytest.fixture
def job(tmp_path: Path, server: Server) -> Job:
    (tmp_path / "job").mkdir()
    return Job(tmp_path / "job", server.url)


def trains(server: Server, run_id: str, step: int) -> dict[int, str]:
    """Wait until all four ranks train beyond a step; return the node of each."""
    server.wait_for(
        f"/runs/{run_id}",
        lambda run: run["ranks"] == [0, 1, 2, 3] and run["status"] == "running" and run["last_step"] > step,
        f"four ranks train beyond step {step}",
        60,
    )
    health = server.wait_for(
        f"/runs/{run_id}/health", lambda answer: sum(len(a["ranks"]) for a in answer["agents"]) >= 4, "each is known"
    )
    return {rank["rank"]: agent["node"] for agent in health["agents"] for rank in agent["ranks"]}


def each_step_is_once(server: Server, run_id: str) -> bool:
    """Whether each rank of a finished run has every step from the first one on, once, in what the model learned."""
    server.wait_for(f"/runs/{run_id}", lambda run: run["status"] == "finished", "the run is finished")
    series = server.get(f"/runs/{run_id}/series", metric="loss")["series"]
    steps = [sorted(step for one in series if one["rank"] == rank for step in one["steps"]) for rank in range(4)]
    return all(of_rank == list(range(1, len(of_rank) + 1)) and of_rank for of_rank in steps)


def was_asked_to_end(answer: Any) -> bool:
    return [(one["kind"], one["severity"]) for one in answer["incidents"]] == [("process_death", "info")]


def runs_of(server: Server, job: Job) -> list[tuple[str, int]]:
    """Return id and ranks of each run of a job."""
    runs: list[dict[str, Any]] = server.get("/runs")["runs"]
    return [(run["run_id"], run["world_size"]) for run in runs if run["project"] == job.folder.parent.name]


@pytest.mark.parametrize("script", sorted(file.name for file in _FILES.glob("*.sh")))
def test_a_script_is_one_that_bash_can_read(script: str) -> None:
    assert subprocess.run(["bash", "-n", str(_FILES / script)], check=False).returncode == 0


def test_the_key_of_a_job_comes_from_a_file_and_is_on_no_command_line(tmp_path: Path) -> None:
    job = Job(tmp_path, "http://127.0.0.1:9")
    (tmp_path / "key").write_text("the-key\n")
    rank = "import os, sys; key = os.environ['STABILITY_API_KEY']"
    rank += "; os.write(1, f'{key} {key in str(sys.orig_argv)}\\n'.encode())"  # at once: four write into one pipe

    command = ["bash", str(_FILES / "slurm.sh"), "-c", rank]
    told = subprocess.run(
        command, env=job.env | _SLURM | {"SLURM_JOB_ID": "40"}, capture_output=True, text=True, check=True
    ).stdout

    assert told.splitlines() == 4 * ["the-key False"]


def test_tasks_of_slurm_are_the_ranks_of_one_run_on_the_nodes_that_slurm_names(server: Server, job: Job) -> None:
    run_id = "llm-7b-41"
    with job.start("slurm.sh", **_SLURM, SLURM_JOB_ID="41") as batch:
        assert trains(server, run_id, 3) == {0: "n1", 1: "n1", 2: "n2", 3: "n2"}
        job.end(batch)

    assert runs_of(server, job) == [(run_id, 4)]
    assert sorted(os.listdir(job.folder / "disk" / "stability")) == [f"{run_id}@n1", f"{run_id}@n2"]


@pytest.mark.soak
def test_a_job_that_is_queued_again_before_its_time_is_over_goes_on_in_its_run(server: Server, job: Job) -> None:
    run_id = "llm-7b-42"
    with job.start("slurm_requeue.sh", **_SLURM, SLURM_JOB_ID="42") as batch:
        trains(server, run_id, 12)
        batch.send_signal(signal.SIGUSR1)  # what Slurm sends to the script, and to nobody else
        batch.wait(60)
    assert "requeue 42" in (job.folder / "calls").read_text().splitlines()
    reached = max(int(file.stem) for file in job.folder.glob("*.saved"))
    with job.start("slurm_requeue.sh", **_SLURM, SLURM_JOB_ID="42", SLURM_RESTART_COUNT="1") as batch:
        trains(server, run_id, reached + 12)
        server.wait_for(f"/runs/{run_id}/incidents", was_asked_to_end, "its end was asked for, and it runs again")
        job.end(batch)

    assert runs_of(server, job) == [(run_id, 4)]
    assert each_step_is_once(server, run_id)


@pytest.mark.soak
def test_what_was_not_delivered_before_a_requeue_is_sent_by_the_next_start_on_the_node(
    server: Server, job: Job
) -> None:
    run_id, nobody = "llm-7b-43", f"http://127.0.0.1:{free_port()}"
    job.env["STABILITY_DRAIN_S"] = "600"
    with job.start("slurm_requeue.sh", **_SLURM, SLURM_JOB_ID="43", STABILITY_URL=nobody) as batch:
        wait_until(lambda: (job.folder / "10.saved").exists(), 60, "it trains without a server")
        batch.send_signal(signal.SIGUSR1)
        batch.wait(60)
    for node in _NODES:  # Slurm ends all that the job started
        os.kill(agent_pid(job.folder / "disk" / "stability", f"{run_id}@{node}"), signal.SIGKILL)
    with job.start("slurm_requeue.sh", **_SLURM, SLURM_JOB_ID="43", SLURM_RESTART_COUNT="1") as batch:
        trains(server, run_id, 20)
        job.end(batch)

    assert each_step_is_once(server, run_id)


@needs("torch", "torchrun is torch's")
@pytest.mark.torch
@pytest.mark.soak
def test_torchrun_on_two_nodes_is_one_run_with_each_of_them(server: Server, job: Job) -> None:
    start = ("torchrun_nodes.sh", "nodes-1", "127.0.0.1", "2")
    more = {"GPUS": "2", "PORT": str(free_port())}
    with (
        job.start(*start, **more, STABILITY_NODE="n1") as one,
        job.start(*start, **more, STABILITY_NODE="n2") as two,
    ):
        nodes = trains(server, "nodes-1", 3)
        job.end(one, two)

    assert sorted(nodes.values()) == ["n1", "n1", "n2", "n2"]
    assert runs_of(server, job) == [("nodes-1", 4)]


def pod_specs(file: str) -> list[tuple[int, dict[str, Any]]]:
    """Return how many pods of which specification a file of Kubernetes makes."""
    import yaml

    spec = yaml.safe_load((_FILES / file).read_text())["spec"]
    if "replicatedJobs" in spec:
        jobs = [job["template"]["spec"] for job in spec["replicatedJobs"]]
        return [(job["completions"], job["template"]["spec"]) for job in jobs]
    return [(one["replicas"], one["template"]["spec"]) for one in spec["pytorchReplicaSpecs"].values()]


def variables(container: dict[str, Any]) -> dict[str, Any]:
    return {one["name"]: one.get("value") or one["valueFrom"] for one in container["env"]}


@pytest.fixture(params=["jobset.yaml", "pytorchjob.yaml"])
def pods(request: pytest.FixtureRequest) -> list[tuple[int, dict[str, Any]]]:
    return pod_specs(request.param)


def test_what_a_pod_sets_is_what_the_client_reads(pods: list[tuple[int, dict[str, Any]]]) -> None:
    client = _HERE.parents[1] / "client" / "stabilityclient"
    read = "".join(file.read_text() for file in (client / "settings.py", client / "agent" / "service.py"))

    names = {name for _, pod in pods for name in variables(pod["containers"][0])}

    assert names == {"STABILITY_URL", "STABILITY_API_KEY", "STABILITY_RUN_ID", "STABILITY_NODE", "STABILITY_DIR"}
    assert [name for name in names if f'"{name}"' not in read] == []


def test_a_pod_takes_its_key_from_a_secret_and_its_names_from_kubernetes(
    pods: list[tuple[int, dict[str, Any]]],
) -> None:
    for _, pod in pods:
        (container,) = pod["containers"]
        env = variables(container)
        assert env["STABILITY_API_KEY"] == {"secretKeyRef": {"name": "stabilityboard", "key": "api-key"}}
        assert env["STABILITY_NODE"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}
        assert env["STABILITY_RUN_ID"]["fieldRef"]["fieldPath"].startswith("metadata.labels[")
        mounted = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        assert mounted[env["STABILITY_DIR"]] in {volume["name"] for volume in pod["volumes"]}


def test_torchrun_waits_for_as_many_nodes_as_there_are_pods_one_on_each(
    pods: list[tuple[int, dict[str, Any]]],
) -> None:
    count = sum(replicas for replicas, _ in pods)
    for _, pod in pods:
        assert f"--nnodes {count} " in pod["containers"][0]["args"][0]
        (apart,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert apart["topologyKey"] == "kubernetes.io/hostname"
