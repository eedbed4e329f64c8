"""Makes a server's application once, in Python's fork server: every program that is forked from it finds that done.

The first application of a process takes 0.5 s of CPU, each further one 0.1 s: types of messages, routes' answers,
patterns, modules that Dash imports late. Nothing here is served, and nothing connects. The tree of commands is made
here for all programs, too.
"""

from __future__ import annotations

import gc
import importlib
import tempfile
from pathlib import Path

import typer.main

from stabilitybackend.base.settings import Settings
from stabilitybackend.cli import app as cli
from stabilitybackend.plugins import load
from stabilitybackend.server.app import create_app
from stabilitybackend.server.stages import Options
from support.cli_program import keep_programs
from support.made import pages  # noqa: F401

#: What `up` imports late, besides.
_LATE = ["stabilitybackend.cli.up", "stabilitybackend.runs.archiving.installation"]


def _make() -> None:
    for name in _LATE:
        importlib.import_module(name)
    plugins = load({})
    with tempfile.TemporaryDirectory() as folder:
        create_app(Options(Settings(data_dir=Path(folder)), f"unix://{folder}/none", plugins))
    keep_programs()
    typer.main.get_command(cli.program(plugins))
    gc.collect()
    gc.freeze()  # it stays: no process looks through it again, nor copies it for that


_make()
