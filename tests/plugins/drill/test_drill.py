"""``stabilityboard drill`` from the outside, on a job without torch: verdict, exit code, and what it leaves alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.cli_program import Program, program_in
from support.waiting import wait_until

JOB = Path(__file__).with_name("logging_job.py")


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Program:
    monkeypatch.delenv("PYTEST_CURRENT_TEST", raising=False)
    return program_in(tmp_path, monkeypatch, capsys)


def drilled(program: Program, *job: str, options: tuple[str, ...] = ()) -> tuple[int, dict[str, Any]]:
    """Return exit code and result of a drill of the job, which gets ``job`` besides its folder."""
    command = (sys.executable, str(JOB), "{dir}", *job)
    code, out, _ = program("drill", "--json", "--steps", "10", *options, "--", *command)
    return code, json.loads(out)


def test_a_job_that_goes_on_where_it_was_is_clean(program: Program) -> None:
    code, found = drilled(program)

    assert (code, found["verdict"], found["first"]) == (0, "clean", None)
    assert {one["name"]: one["verdict"] for one in found["series"]} == {"loss": "identical", "lr": "identical"}
    assert "weights, optimizer and random numbers were not seen" in found["not_seen"][0]


def test_a_rate_that_starts_over_is_named_first(program: Program) -> None:
    code, found = drilled(program, options=("--resume-args=--forget rate",))

    assert (code, found["verdict"], found["first"]) == (1, "not_restored", "learning rate")


def test_a_step_number_that_is_one_off_is_named_first(program: Program) -> None:
    code, found = drilled(program, options=("--resume-args=--forget step",))

    assert (code, found["first"]) == (1, "step counter")


def test_the_first_line_for_people_is_the_verdict(program: Program) -> None:
    code, out, _ = program("drill", "--steps", "5", "--", sys.executable, JOB, "{dir}")

    assert (code, out.startswith("CLEAN")) == (0, True)


def test_a_job_without_a_checkpoint_can_not_be_drilled_and_the_reason_is_given(program: Program) -> None:
    code, found = drilled(program, "--silent", "--steps", "200")

    assert (code, found["verdict"]) == (2, "not_run")
    assert "no checkpoint at or after step 10 in 200 steps" in found["text"]


def test_a_job_that_dies_shows_its_last_lines(program: Program) -> None:
    code, found = drilled(program, "--steps", "many")

    assert (code, found["verdict"]) == (2, "not_run")
    assert "invalid int value: 'many'" in found["text"]


def test_a_command_that_could_write_over_real_checkpoints_is_not_started(program: Program, tmp_path: Path) -> None:
    code, _, error = program("drill", "--", sys.executable, JOB, tmp_path, "--pid", tmp_path / "pid")

    assert (code, "{dir}" in error, (tmp_path / "pid").exists()) == (2, True, False)


def test_a_job_that_saves_outside_of_its_folder_is_ended(program: Program, tmp_path: Path) -> None:
    code, found = drilled(program, "--elsewhere", str(tmp_path), "--pid", str(tmp_path / "pid"), "--steps", "1000000")
    pid = int((tmp_path / "pid").read_text())

    assert (code, f"saved to {tmp_path / 'state.json'}" in found["text"]) == (2, True)
    assert not os.path.exists(f"/proc/{pid}")


def test_a_drill_that_is_ended_ends_its_job(tmp_path: Path) -> None:
    job = [sys.executable, str(JOB), "{dir}", "--silent", "--steps", "1000000", "--pid", str(tmp_path / "pid")]
    command = [sys.executable, "-m", "stabilitybackend.cli", "drill", "--work", str(tmp_path), "--", *job]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        pid = wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), 60.0, "the job runs")
        process.terminate()
        code = process.wait(120.0)

    assert (code, os.path.exists(f"/proc/{pid}")) == (143, False)
    assert [path.name for path in tmp_path.glob("drill-*")] == []


def test_a_copy_of_the_working_folder_takes_what_the_job_writes(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    code, _, _ = program("drill", "--copy", "--steps", "5", "--", sys.executable, JOB, ".")

    assert (code, list((tmp_path / "here").iterdir())) == (0, [])
