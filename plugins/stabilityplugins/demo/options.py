"""Options of ``stabilityboard demo``, and its requirements."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from stabilitybackend.base.errors import WRONG_USE, BadRequest, StartError

__all__ = ["DemoOptions", "check_packages", "find_script", "parse_options"]

#: Names the folder ``examples``, where it is neither given nor in the repository of an editable install.
EXAMPLE_ENV = "STABILITY_EXAMPLE_DIR"
_SCRIPT = Path("multimodal") / "train.py"
_FAULTS = ("bad_data", "lr_window", "sampler", "hang", "none")


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """Settings of the demo.

    Args:
        headless: order the rollback without a person, check, and end.
        json_output: print one JSON object on stdout; everything else goes to stderr.
        url: use the server at this address instead of starting one.
        port: wanted port of the server that is started; the next free one is taken.
        root_path: path below which a proxy serves the pages of that server, None for none.
        data_dir: folder for the server's data, the spool and the checkpoints.
        example_dir: folder ``examples`` of the repository.
        fault: ``bad_data``, ``lr_window``, ``sampler``, ``hang`` or ``none``.
        fault_step: where it goes wrong.
        steps: last step of the job.
        seed: of the model and the data.
    """

    headless: bool
    json_output: bool
    url: str | None
    port: int
    root_path: str | None
    data_dir: Path
    example_dir: Path | None
    fault: str
    fault_step: int
    steps: int
    seed: int


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadRequest(message, hint=f"see {self.prog} --help", code=WRONG_USE)


def parse_options(argv: Sequence[str] | None) -> DemoOptions:
    """Return the options of a command line; None is this process's own."""
    parser = _Parser(
        prog="stabilityboard demo",
        description="Run a real training job that goes wrong, on a live dashboard, until somebody rolls it back.",
    )
    parser.add_argument("--headless", action="store_true", help="issue the rollback by itself, check everything, end")
    parser.add_argument("--json", dest="json_output", action="store_true", help="print one JSON object on stdout")
    parser.add_argument("--url", help="use this server instead of starting one")
    parser.add_argument("--port", type=int, default=8080, help="wanted port; the next free one is taken")
    parser.add_argument("--root-path", help="path below which a proxy serves the pages: /user/x/proxy/8080")
    parser.add_argument("--data-dir", type=_folder, default=_folder(".stabilityboard/demo"), help="data of the demo")
    parser.add_argument("--example-dir", type=_folder, help=f"folder that holds {_SCRIPT} [env {EXAMPLE_ENV}]")
    parser.add_argument("--fault", choices=_FAULTS, default="bad_data", help="what goes wrong")
    parser.add_argument("--fault-step", type=int, default=220, help="step at which it goes wrong")
    parser.add_argument("--steps", type=int, default=3000, help="last step of the job")
    parser.add_argument("--seed", type=int, default=1, help="seed of the model and the data")
    return DemoOptions(**vars(parser.parse_args(argv)))


def find_script(example_dir: Path | None, env: Mapping[str, str] = os.environ) -> Path:
    """Return the training script.

    Raises:
        StartError: it is nowhere; the message names where it was searched.
    """
    given = example_dir or (_folder(env[EXAMPLE_ENV]) if env.get(EXAMPLE_ENV) else None)
    repository = Path(__file__).resolve().parents[3] / "examples"
    tried = [given] if given else [repository, Path.cwd() / "examples"]
    for folder in tried:
        if (folder / _SCRIPT).is_file():
            return (folder / _SCRIPT).resolve()
    raise StartError(
        f"no {_SCRIPT} in {' or '.join(str(folder) for folder in tried)}",
        hint=f"run it from the repository (make demo), or name its examples folder by --example-dir or {EXAMPLE_ENV}",
    )


def check_packages(names: Sequence[str] = ("torch", "sklearn")) -> None:
    """Raise StartError when a package that the training job needs is not installed."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise StartError(
            f"the training job needs {' and '.join(missing)}, which this Python does not have ({sys.executable})",
            hint="python -m pip install 'stabilityboard[demo]', or make demo in the repository",
        )


def _folder(text: str) -> Path:
    return Path(text).expanduser().absolute()
