"""What lies in a spool is the job's owner's alone, and holds no secret of the config."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import stabilityclient
from support.waiting import wait_until

Start = Callable[..., stabilityclient.Run]


def test_nobody_else_on_the_node_reads_a_spool(start: Start, agents: Path) -> None:
    before = os.umask(0o022)
    try:
        (agents / "private").mkdir(parents=True)  # by an older client, for everybody
        run = start(run_id="private", url="http://127.0.0.1:9")
        run.log(1, {"loss": 1.0})
        folder = Path(run.folder)
        wait_until((folder / "agent" / "cursor.json").exists, 30, "the agent writes its files")
        run.finish(timeout_s=0)
        found = {path: stat.S_IMODE(path.lstat().st_mode) for path in [folder, *folder.rglob("*")]}
    finally:
        os.umask(before)
    assert len(found) > 10
    open_to_others = {str(path): oct(mode) for path, mode in found.items() if mode & 0o077}
    assert open_to_others == {}


def test_the_file_of_a_run_has_no_secret_of_its_config(start: Start) -> None:
    run = start(config={"hf_token": "Zqplanted1", "lr": 3e-4}, notes="see https://me:Zqplanted2@git.example/x")
    run.update_config({"wandb_key": "Zqplanted3"})
    text = (Path(run.folder) / "run.json").read_text()
    assert "Zqplanted" not in text
    assert '"lr": 0.0003' in text
