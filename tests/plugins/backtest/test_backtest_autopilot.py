"""``backtest --autopilot``: what it would have done in a past run, at which step, and what that is worth."""

from __future__ import annotations

import json
from pathlib import Path

from support.cli_program import Program
from support.jobs.piloted_job import falling, stuck


def log_of(path: Path, spike: object, steps: int = 740) -> str:
    rows = [{"step": step, "loss": spike(step)} for step in range(1, steps + 1)]  # type: ignore[operator]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return str(path)


def policy(tmp_path: Path) -> str:
    path = tmp_path / "night.yaml"
    path.write_text("wait_steps: 40\n")
    return str(path)


def test_what_stays_is_won_from_the_rollback_to_when_a_person_comes(program: Program, tmp_path: Path) -> None:
    log = log_of(tmp_path / "a.jsonl", stuck(400))
    options = ("--gpus", "36", "--checkpoint-every", "100", "--reaction-min", "5", "--json")
    code, out, err = program("backtest", "--autopilot", policy(tmp_path), log, *options)
    assert code == 0
    (line,) = [json.loads(one) for one in out.splitlines()]
    assert (line["action"], line["kind"], line["to_step"], line["skip_range"][0]) == ("roll_back", "spike", 300, 400)
    assert 440 <= line["step"] <= 460
    assert line["person_step"] == line["seen_step"] + 300
    assert line["steps_won"] == line["person_step"] - line["step"]
    assert abs(line["gpu_hours_won"] - line["steps_won"] / 100) < 1e-9
    assert "a verified checkpoint each 100 steps assumed" in err


def test_what_comes_back_by_itself_is_lost(program: Program, tmp_path: Path) -> None:
    log = log_of(tmp_path / "a.jsonl", lambda s: falling(s) + 2.5 * (400 <= s < 500))
    code, out, _ = program("backtest", "--autopilot", policy(tmp_path), log, "--checkpoint-every", "100", "--json")
    assert code == 0
    (line,) = [json.loads(one) for one in out.splitlines()]
    assert "came back by itself" in line["end"]
    assert line["steps_won"] == 300 - line["step"]


def test_a_table_says_it_for_people_and_a_wrong_policy_stops_before_anything_is_read(
    program: Program, tmp_path: Path
) -> None:
    log = log_of(tmp_path / "a.jsonl", stuck(200), steps=400)
    code, out, _ = program("backtest", "--autopilot", policy(tmp_path), log, "--checkpoint-every", "100")
    assert code == 0
    assert "rolled back to 100" in " ".join(out.split())
    bad = tmp_path / "bad.yaml"
    bad.write_text("act_on: spike\n")
    code, out, err = program("backtest", "--autopilot", str(bad), log)
    assert (code, out) == (1, "")
    assert "bad.yaml, line 1: act_on is 'spike', expected a list of spike, divergence, nonfinite" in " ".join(
        err.split()
    )
