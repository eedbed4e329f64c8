"""Makes a server's application once, in Python's fork server: every program that is forked from it finds that done.

The first application of a process takes 0.5 s of CPU, each further one 0.1 s: types of messages, routes' answers,
patterns, modules that Dash imports late. Nothing here is served, and nothing connects. The tree of commands is made
here for all programs, too.
"""

from __future__ import annotations

import gc
import importlib
import tempfile
from functools import cache
from pathlib import Path

import typer.main

from stabilitybackend.base.settings import Settings
from stabilitybackend.cli.app import app
from stabilitybackend.server.app import create_app
from support.made import pages  # noqa: F401

#: What `up` imports late, besides.
_LATE = ["stabilitybackend.cli.up", "stabilitybackend.runs.archiving.installation"]


def _make() -> None:
    for name in _LATE:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as folder:
        create_app(Settings(data_dir=Path(folder)), f"unix://{folder}/none")
    typer.main.get_command = cache(typer.main.get_command)
    typer.main.get_command(app)
    gc.collect()
    gc.freeze()  # it stays: no process looks through it again, nor copies it for that


_make()
