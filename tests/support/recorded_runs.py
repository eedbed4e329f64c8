"""Recorded runs of the laboratory on a real server: what pictures are taken of, since they are the same each time."""

from __future__ import annotations

import gzip
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from support.processes import Server

__all__ = ["import_recorded"]

TRACES = Path(__file__).resolve().parents[1] / "traces"


def import_recorded(server: Server, folder: Path, names: Iterable[str]) -> None:
    """Import the traces of seed 101 with these names; returns when the server has worked them out."""
    for name in names:
        log = folder / f"{name}.jsonl"
        log.write_bytes(gzip.decompress((TRACES / f"{name}-101.jsonl.gz").read_bytes()))
        command = [sys.executable, "-m", "stabilitybackend.cli", "import", str(log), "--run-id", name]
        command += ["--name", name.replace("_", "-"), "--project", "laboratory", "--url", server.url]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        server.wait_for(f"/runs/{name}", lambda run: run["status"] == "finished", "it is there")
