"""``stabilityboard backtest`` as people and programs use it."""

from __future__ import annotations

import json
import math
import random
import re
from pathlib import Path
from typing import Any

import pytest
from plotly.offline import get_plotlyjs
from typer.testing import CliRunner

from stabilitybackend.base.errors import BadRequest
from stabilitybackend.cli.app import main, program
from stabilitybackend.cli.detectors import parse_settings
from stabilitybackend.plugins import load
from stabilityplugins.backtest.judged import Filter, judge
from stabilityplugins.backtest.page import page
from stabilityplugins.backtest.sources import read_files
from support.server_stack import RunningServer

#: What programs were promised, plugins/stabilityplugins/backtest/README.md.
PROMISED = {
    "file", "kind", "step", "onset_step", "peak_step", "recovered_step", "severity", "dataset", "rank", "segment",
    "evidence", "suggestion",
}  # fmt: skip


def spiking(path: Path, *, spike: float = 3.0) -> Path:
    rng = random.Random(1)
    with path.open("w") as file:
        for step in range(400):
            loss = 2.0 + rng.gauss(0, 0.02) + (spike if 300 <= step < 306 else 0.0)
            row = {"step": step, "loss": loss, "grad_norm": 1.0 if loss < 3 else 8.0, "lr": 3e-4}
            file.write(json.dumps(row) + "\n")
    return path


def invoke(*arguments: str | Path) -> Any:
    plugins = load({})
    return CliRunner().invoke(program(plugins), [*map(str, arguments)], obj=plugins)


def run(*arguments: str | Path) -> Any:
    return invoke("backtest", *arguments)


def test_json_is_one_object_an_incident_with_the_promised_keys(tmp_path: Path) -> None:
    done = run(spiking(tmp_path / "log.jsonl"), "--json", "--only", "spike")
    [incident] = [json.loads(line) for line in done.stdout.splitlines()]
    assert set(incident) >= PROMISED
    assert (incident["file"], incident["kind"], incident["onset_step"], incident["segment"]) == (
        str(tmp_path / "log.jsonl"), "spike", 300, 0
    )  # fmt: skip
    assert incident["recovered_step"] == 306
    assert done.exit_code == 0


def test_people_get_a_table_a_line_that_sums_up_and_what_was_watched(tmp_path: Path) -> None:
    done = run(spiking(tmp_path / "log.jsonl"), "--only", "spike")
    assert re.search(r"spike\s+│ warning\s+│\s+300 │\s+30[01] │\s+[01] │\s+306 │ fast", done.stdout)
    assert re.search(
        r"log\.jsonl: 400 rows, 1,200 points in [\d.]+ s; incidents: 1 warning$", done.stdout, re.MULTILINE
    )
    assert done.stdout.splitlines()[-1] == "  watched: grad_norm, loss, lr"


def test_what_can_not_be_read_ends_with_1_and_the_others_are_judged(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text("hello\n")
    done = run(
        tmp_path / "none.jsonl", tmp_path / "bad.jsonl", spiking(tmp_path / "log.jsonl"), "--json", "--only", "spike"
    )
    assert done.exit_code == 1
    assert [json.loads(line)["onset_step"] for line in done.stdout.splitlines()] == [300]
    assert "none.jsonl is not there" in done.stderr
    assert "bad.jsonl begins with b'hello\\n': nothing that can be imported" in done.stderr


def test_a_setting_that_is_tried_changes_the_verdict(tmp_path: Path) -> None:
    log = spiking(tmp_path / "log.jsonl")
    assert run(log, "--json", "--set", "spike.sensitivity=0").stdout.count('"kind":"spike"') == 0
    assert run(log, "--json", "--set", "spike.sensitivity=1").stdout.count('"kind":"spike"') == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("spike", "expected detector.parameter=number"),
        ("spike.sensitivity=much", "expected detector.parameter=number"),
        ("spikes.sensitivity=2", "no detector 'spikes', expected one of .*curve"),
        ("spike.height=2", "spike.height is gone: detector curve replaces spike and has no such setting"),
        ("spike.sensitivity=99", "curve.sensitivity is 99.0, expected a number from 0 to 4"),
    ],
)
def test_a_wrong_setting_is_refused_naming_what_exists(given: str, said: str) -> None:
    with pytest.raises(BadRequest, match=said) as caught:
        parse_settings([given])
    assert "--list" in caught.value.hint


def test_only_and_severity_choose_what_is_shown(tmp_path: Path) -> None:
    log = spiking(tmp_path / "log.jsonl")
    assert run(log, "--json", "--only", "nonfinite").stdout == ""
    assert run(log, "--json", "--only", "nonfinite,spike").stdout.count("\n") == 1
    assert run(log, "--json", "--only", "spike", "--severity", "critical").stdout == ""
    assert isinstance(run(log, "--only", "spikes").exception, BadRequest)


def test_the_list_names_every_parameter_with_its_range() -> None:
    assert re.search(r"curve\.sensitivity\s+│\s+1 │ 0 to 4", run("--list").stdout)
    assert {"curve", "nonfinite"} <= {each["name"] for each in json.loads(run("--list", "--json").stdout)}


@pytest.mark.soak
def test_two_processes_say_what_one_says(tmp_path: Path) -> None:
    logs = [spiking(tmp_path / f"{name}.jsonl", spike=height) for name, height in (("b", 3.0), ("a", 2.0), ("c", 0.0))]
    assert run(*logs, "--json", "--jobs", "2").stdout == run(*logs, "--json").stdout != ""


def test_the_page_stands_alone_and_draws_the_incidents_over_every_extreme(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    with log.open("w") as file:
        for step in range(20_000):
            loss = math.nan if step == 7_000 else 9.0 if step == 11_111 else 2.0 + step % 7 / 100
            file.write(json.dumps({"step": step, "loss": loss, "name</script>": 1.0}) + "\n")
    [read] = read_files([log])
    html = page([judge(read, {}, Filter(), with_curves=True)], {"spike": {"sensitivity": 2.0}})
    data = json.loads(re.search(r"^const LOGS = (.*);$", html, re.MULTILINE)[1])  # type: ignore[index]
    [curve] = [curve for curve in data[0]["curves"] if curve["metric"] == "loss"]
    assert len(curve["steps"]) < 8_000
    assert (curve["steps"][0], curve["steps"][-1]) == (0, 19_999)
    assert dict(zip(curve["steps"], curve["values"], strict=True))[11_111] == 9.0
    assert curve["values"].count(None) == 1
    assert [each["onset_step"] for each in data[0]["incidents"] if each["kind"] == "nonfinite"] == [7_000]
    assert "spike.sensitivity = 2" in html
    assert "https:" not in html.replace(get_plotlyjs(), "")


@pytest.mark.parametrize(
    "wrong", ["--plot=none/page.html", "--plot=folder.html", "--plot=log.jsonl", "--set=spike.loud=2", "--only=noise"]
)
def test_wrong_use_ends_with_2_before_anything_is_judged_or_written_over(
    wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = spiking(tmp_path / "log.jsonl")
    before = log.read_text()
    (tmp_path / "folder.html").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["stabilityboard", "backtest", wrong, "log.jsonl"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    assert (log.read_text(), capsys.readouterr().out) == (before, "")


def test_brackets_in_a_name_are_no_markup(tmp_path: Path) -> None:
    log = tmp_path / "[bold]log.jsonl"
    rng = random.Random(1)
    with log.open("w") as file:
        for step in range(400):
            a, b = (2.0 + rng.gauss(0, 0.02) for _ in "ab")
            a += 5.0 if 300 <= step < 306 else 0.0
            file.write(json.dumps({"step": step, "loss": (a + b) / 2, "loss/[/red]": a, "loss/b": b}) + "\n")
    done = run(log, "--only", "spike")
    assert (done.exit_code, "[/red]" in done.stdout, "[bold]log.jsonl" in done.stdout) == (0, True, True)


def test_a_log_that_names_its_data_has_the_batches_of_each_incident(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    rng = random.Random(1)
    with log.open("w") as file:
        for step in range(2_000):
            loss = 2.0 + rng.gauss(0, 0.02) + (3.0 if 500 <= step < 506 else 0.0)
            file.write(json.dumps({"step": step, "loss": loss, "batch_fp": f"f{step}"}) + "\n")
    [incident] = [json.loads(line) for line in run(log, "--json", "--only", "spike").stdout.splitlines()]
    assert {"step": 500, "fingerprint": "f500"} in incident["evidence"]["batches"]


def test_a_stored_run_is_judged_by_its_id(redis_url: str, tmp_path: Path) -> None:
    with RunningServer(redis_url, tmp_path) as server:
        imported = invoke("import", spiking(tmp_path / "log.jsonl"), "--run-id", "past", "--url", server.url)
        assert imported.exit_code == 0, imported.output
        done = run("past", "--json", "--only", "spike", "--url", server.url)
        [incident] = [json.loads(line) for line in done.stdout.splitlines()]
        assert (incident["file"], incident["kind"], incident["onset_step"]) == ("past", "spike", 300)
        unknown = run("no-such-run", "--url", server.url)
        assert unknown.exit_code == 1
        assert "no-such-run is neither a file or folder here nor a run at" in unknown.stderr
