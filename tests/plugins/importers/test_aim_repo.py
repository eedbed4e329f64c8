"""A run of an Aim repository becomes the run that Aim has, value by value."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stabilitybackend.base.errors import StabilityBoardError
from stabilityplugins.importers.detect import find_plans
from support.imported_run import ImportedRun
from support.installed import needs

WRITER = """
import aim
run = aim.Run(repo=".", experiment="llm", system_tracking_interval=None, log_system_params=True,
              capture_terminal_logs=False)
run.name = "small"
run["hparams"] = {"lr": 0.1, "layers": [1, 2]}
for step in range(0, 300, 3):
    run.track(float("nan") if step == 30 else 1 / (step + 1), name="loss", step=step, context={"subset": "train"})
    if step % 30 == 0:
        run.track(float("inf") if step == 60 else step * 2.0, name="loss", step=step, context={"subset": "val"})
    run.track(step, name="tokens", step=step)
run.close()
print(run.hash)
"""


@pytest.mark.integrations
@pytest.mark.filterwarnings("ignore")  # of the packages that Aim needs
@needs("aim", "Aim writes and reads its own repository")
def test_a_run_of_an_aim_repository_has_each_value(tmp_path: Path) -> None:
    written = subprocess.run(
        [sys.executable, "-c", WRITER], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120
    )
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    run = ImportedRun()

    [plan] = find_plans([tmp_path])
    result = run.take(tmp_path)

    assert (plan.run_id, plan.name, plan.project) == (written.stdout.strip(), "small", "llm")
    assert plan.config == {"hparams": {"lr": 0.1, "layers": [1, 2]}}
    steps = range(0, 300, 3)
    wanted = {step: "nan" if step == 30 else str(1 / (step + 1)) for step in steps}
    assert {step: str(value) for step, value in run.line("loss").items()} == wanted
    assert result.renames == {"train/loss": "loss"}
    assert run.line("val/loss") == {step: float("inf") if step == 60 else step * 2.0 for step in range(0, 300, 30)}
    assert run.line("tokens") == {step: float(step) for step in steps}
    assert (set(run.store.metrics()), run.forks(), result.reading.count) == ({"loss", "tokens", "val/loss"}, [], 0)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()} == before


def test_without_its_package_an_aim_repository_is_refused_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".aim").mkdir()
    (tmp_path / ".aim" / "run_metadata.sqlite").write_bytes(b"SQLite format 3\0")
    monkeypatch.setitem(sys.modules, "aim", None)
    monkeypatch.setitem(sys.modules, "aim.sdk.repo", None)

    with pytest.raises(StabilityBoardError, match="package aim") as refused:
        find_plans([tmp_path])

    assert refused.value.hint == "pip install aim"
