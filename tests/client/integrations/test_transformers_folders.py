"""Which checkpoint folders Trainer's job takes for the newest after rollbacks, and after one was undone."""

from __future__ import annotations

from pathlib import Path

from stabilityclient.integrations.transformers import leave, newest


def _save(output: Path, step: int) -> None:
    folder = output / f"checkpoint-{step}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trainer_state.json").write_text("{}")


def test_what_a_rollback_left_is_not_the_newest_until_it_is_returned_to(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        _save(tmp_path, step)
    leave(str(tmp_path), 10)
    assert newest(str(tmp_path)) == str(tmp_path / "checkpoint-10")
    leave(str(tmp_path), 20)  # somebody undid it: back to the branch, to step 20
    assert newest(str(tmp_path)) == str(tmp_path / "checkpoint-20")
