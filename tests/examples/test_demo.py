"""``stabilityboard demo`` as people and CI start it: the real server, the real job, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.installed import needs
from support.waiting import wait_until

TORCH = needs("torch", "the demo trains with PyTorch")
_PROGRAM = [sys.executable, "-m", "stabilitybackend.cli", "demo"]
REPOSITORY = Path(__file__).resolve().parents[2]
#: A training script that starts at once, under the real torchrun.
_QUICK = str(Path(__file__).with_name("quick"))
#: The real one, with fewer rows a step.
_SMALL = str(Path(__file__).with_name("small"))


def processes_of(folder: Path) -> dict[int, str]:
    """Return pid -> command of every living process that was started with ``folder`` in its command or environment."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
            about = command + (process / "environ").read_bytes()
        except OSError:
            continue  # it has just ended, or belongs to somebody else
        if command and str(folder).encode() in about and int(process.name) != os.getpid():
            found[int(process.name)] = command.replace(b"\0", b" ").decode(errors="replace")[:120]
    return found


@pytest.mark.torch
@TORCH
def test_the_headless_demo_rolls_back_what_broke_and_proves_it(tmp_path: Path, free_port: int, tokens: Path) -> None:
    arguments = ["--headless", "--json", "--fault-step", "60", "--example-dir", _SMALL]
    where = ["--data-dir", str(tmp_path / "demo"), "--port", str(free_port)]

    env = {**os.environ, "SMALL_JOB_TOKENS": str(tokens)}
    command = [*_PROGRAM, *arguments, *where]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240, check=False)

    assert done.stdout.count("\n") == 1, done.stdout
    result = json.loads(done.stdout)
    assert (done.returncode, result["problems"], result["ok"]) == (0, [], True), done.stderr[-3000:]
    assert result["incident"]["kind"] == "spike"
    assert abs(result["incident"]["onset_step"] - 60) <= 2
    assert result["incident"]["delay_steps"] <= 5
    assert result["rollback"]["to_step"] == 50
    assert sorted(result["rollback"]["ranks"]) == ["0", "1"]
    assert len(set(result["rollback"]["ranks"].values())) == 1
    lineage = result["lineage"]
    assert lineage["effective_points"] == result["steps"] >= 110
    assert lineage["dead_points"] == next(iter(result["rollback"]["ranks"].values())) - 1 - 50
    assert lineage["effective_points"] + lineage["dead_points"] == result["log_call_us"]["count"]
    wait_until(lambda: not processes_of(tmp_path), 10, "all processes of the demo are gone")


@pytest.mark.torch
@TORCH
@pytest.mark.soak
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_demo_that_is_ended_leaves_no_process_behind(number: int, tmp_path: Path, free_port: int) -> None:
    where = ["--data-dir", str(tmp_path / "demo"), "--port", str(free_port), "--example-dir", _QUICK]
    where += ["--root-path", "/user/jo/proxy"]
    with (tmp_path / "out").open("wb") as out:
        demo = subprocess.Popen([*_PROGRAM, *where], stdout=out, stderr=out)
    try:
        agents = (tmp_path / "demo" / "spool").glob
        wait_until(lambda: list(agents("*/agent/agent.json")), 90, "the job and its agent run")
        wait_until(lambda: len(processes_of(tmp_path)) >= 7, 30, "demo, server, guard, Redis, torchrun, ranks, agent")
        demo.send_signal(number)
        demo.wait(60)
        wait_until(lambda: not processes_of(tmp_path), 60, "every process is gone")
    finally:
        demo.kill()
        for pid in processes_of(tmp_path):
            os.kill(pid, signal.SIGKILL)

    assert demo.returncode == (-signal.SIGKILL if number == signal.SIGKILL else 0)
    assert f"http://127.0.0.1:{free_port}/user/jo/proxy/runs/" in (tmp_path / "out").read_text()


@pytest.mark.torch
@TORCH
@pytest.mark.soak
def test_ranks_whose_launcher_was_killed_are_ended_by_the_demo(tmp_path: Path, free_port: int) -> None:
    where = ["--data-dir", str(tmp_path / "demo"), "--port", str(free_port), "--example-dir", _QUICK]
    with (tmp_path / "out").open("wb") as out:
        demo = subprocess.Popen([*_PROGRAM, *where], stdout=out, stderr=out)
    try:
        agents = (tmp_path / "demo" / "spool").glob
        wait_until(lambda: list(agents("*/agent/agent.json")), 90, "the job and its agent run")
        (launcher,) = [pid for pid, command in processes_of(tmp_path).items() if "torch.distributed.run" in command]
        os.kill(launcher, signal.SIGKILL)
        wait_until(
            lambda: not any("train.py" in command for command in processes_of(tmp_path).values()), 30, "the ranks end"
        )
        demo.send_signal(signal.SIGINT)
        demo.wait(60)
        wait_until(lambda: not processes_of(tmp_path), 60, "every process is gone")
    finally:
        demo.kill()
        for pid in processes_of(tmp_path):
            os.kill(pid, signal.SIGKILL)


def test_a_missing_example_is_a_clear_error(tmp_path: Path) -> None:
    done = subprocess.run(
        [*_PROGRAM, "--headless", "--json", "--example-dir", str(tmp_path), "--data-dir", str(tmp_path / "demo")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 1
    assert json.loads(done.stdout)["ok"] is False
    assert "--example-dir or STABILITY_EXAMPLE_DIR" in done.stderr


def test_a_missing_package_is_named_with_what_to_install() -> None:
    from stabilitybackend.base.errors import StartError
    from stabilityplugins.demo.options import check_packages

    with pytest.raises(StartError, match="needs no_such_torch,") as caught:
        check_packages(["json", "no_such_torch"])

    assert "stabilityboard[demo]" in caught.value.hint


def test_the_minimal_example_runs_without_a_server(tmp_path: Path) -> None:
    env = {**os.environ, "STABILITY_MODE": "offline", "STABILITY_DIR": str(tmp_path), "STABILITY_RUN_ID": "tiny"}
    script = (REPOSITORY / "examples" / "minimal.py").read_text().replace("1001", "21").replace("% 100", "% 10")

    subprocess.run([sys.executable, "-W", "error", "-c", f"__file__ = 'x'\n{script}"], env=env, check=True, timeout=60)

    assert (tmp_path / "tiny" / "run.json").is_file()
