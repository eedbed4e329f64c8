"""A script of a user's, run as it is and run by the tee, and what came of both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

from support.agent.gateway import Point, Store
from support.agent.spooled import stored

__all__ = ["Teed", "plainly", "teed"]

_OURS = "stabilityclient.tee: "


class Teed(NamedTuple):
    """What a process left.

    ``said`` is what the tee said, ``err`` the standard error without that.
    """

    code: int
    out: str
    err: str
    said: list[str]
    folder: Path

    @property
    def store(self) -> Store:
        """What a server would hold of the run."""
        return stored(self.folder / "spool" / "teed")

    def rows(self) -> list[Point]:
        """Return all rows of rank 0."""
        return self.store.rows()

    def values(self, name: str) -> list[tuple[int, float]]:
        """Return step and value of a metric, in the order in which they came."""
        return [(step, row[name]) for step, _, row in self.rows() if name in row]

    def checkpoints(self) -> list[tuple[int, str]]:
        """Return step and path of the checkpoints that were told, the path within the folder."""
        events = self.store.events("checkpoint")
        return [(one.step or 0, str(Path(one.data["path"]).relative_to(self.folder))) for one in events]

    def config(self) -> dict[str, Any]:
        """Return the config of the run."""
        facts: dict[str, Any] = json.loads((self.folder / "spool" / "teed" / "run.json").read_text())
        config: dict[str, Any] = facts["config"]
        return config


def plainly(folder: Path, code: str, *arguments: str) -> Teed:
    """Run a script without us."""
    return _ran(folder, [sys.executable], code, arguments, {})


def teed(folder: Path, code: str, *arguments: str, options: tuple[str, ...] = (), **environ: str) -> Teed:
    """Run the same script by the tee, offline."""
    command = [sys.executable, "-m", "stabilityclient.tee", "--run-id", "teed", *options]
    return _ran(folder, command, code, arguments, environ)


def _ran(folder: Path, command: list[str], code: str, arguments: tuple[str, ...], environ: dict[str, str]) -> Teed:
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(textwrap.dedent(code))
    known = ("PYTEST_", "STABILITY_", "WANDB_", "RANK", "WORLD_SIZE", "LOCAL_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(known)}
    env |= {"STABILITY_MODE": "offline", "STABILITY_DIR": str(folder / "spool"), "OMP_NUM_THREADS": "1"}
    env |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [*command, "train.py", *arguments],
        cwd=folder,
        env=env | environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    lines = done.stderr.splitlines(keepends=True)
    said = [line.removeprefix(_OURS).strip() for line in lines if line.startswith(_OURS)]
    err = "".join(line for line in lines if not line.startswith(_OURS))
    return Teed(done.returncode, done.stdout, err, said, folder)
