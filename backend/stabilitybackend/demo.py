"""Runs the main job end to end: a server, a real training job that goes wrong, and somebody who puts it back.

``stabilityboard demo`` leaves the click to a person; ``--headless`` orders the rollback itself and checks that all of
it held. Everything that is started here is ended here, on Ctrl-C, on SIGTERM and on an error.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel

from stabilitybackend.demo_api import BoardClient
from stabilitybackend.demo_headless import EXPECTED_KINDS, DemoFailed, Plan, act_on_incident, check_everything, wait_for
from stabilitybackend.demo_processes import ManagedProcess, end_agents, free_port, server_command, training_command
from stabilitybackend.demo_watch import Watch
from stabilitybackend.errors import StabilityBoardError, StartError

__all__ = ["DemoOptions", "main", "run_demo"]

#: Where ``examples/multimodal`` is searched, besides --example-dir and the repository of an editable install.
_EXAMPLE_ENV = "STABILITY_EXAMPLE_DIR"
_SCRIPT = Path("multimodal") / "train.py"
#: Ranks of the training job.
RANKS = 2
#: A headless demo is over after this long, whatever happens, seconds; ending all processes takes up to 10 more.
HEADLESS_TIMEOUT_S = 165.0
_SERVER_START_S = 40.0
_FIRST_POINT_S = 90.0
#: How long the job may take to end at a step boundary and deliver its tail.
_JOB_GRACE_S = 20.0
_AGENT_GRACE_S = 5.0
_SERVER_GRACE_S = 10.0


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """What the demo runs with.

    Args:
        headless: order the rollback without a person, check, and end.
        json_output: print one JSON object on stdout; everything else goes to stderr.
        url: use the server at this address instead of starting one.
        port: wanted port of the server that is started; the next free one is taken.
        data_dir: folder for the server's data, the spool and the checkpoints.
        example_dir: folder ``examples`` of the repository.
        fault: ``bad_data``, ``lr_window``, ``sampler`` or ``none``.
        fault_step: where it goes wrong.
        steps: last step of the job.
        seed: of the model and the data.
    """

    headless: bool
    json_output: bool
    url: str | None
    port: int
    data_dir: Path
    example_dir: Path | None
    fault: str
    fault_step: int
    steps: int
    seed: int


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo as the command line says; return 0 only if everything held, 130 when it was stopped.

    Raises:
        StartError: something is missing; the message says what, the hint what to do.
    """
    options = DemoOptions(**vars(_parser().parse_args(argv)))
    console = Console(stderr=options.json_output, highlight=False)
    try:
        with _one_clean_interrupt():
            return run_demo(options, console)
    except KeyboardInterrupt:
        console.print("Stopped. Nothing is left running.")
        return 130 if options.headless else 0
    except StartError as error:
        if options.json_output:
            print(json.dumps({"ok": False, "problems": [error.message]}), flush=True)
        raise


def run_demo(options: DemoOptions, console: Console) -> int:
    """Start what is needed, run the demo, end everything, and return the exit code."""
    script = _find_script(options.example_dir)
    _check_packages()
    run_id = f"demo-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    with contextlib.ExitStack() as cleanup:
        url = options.url or _start_server(options, console, cleanup)
        board = BoardClient(url, os.environ.get("STABILITY_API_KEY"))
        cleanup.callback(board.close)
        if not board.wait_healthy(5.0):
            raise StartError(f"no healthy Stabilityboard at {url}", hint="start one, or leave --url out")
        job = _start_job(options, script, run_id, url, cleanup)
        console.print(
            Panel(f"[bold]{url}/runs/{run_id}[/bold]\nCtrl-C ends it all.", title="Stabilityboard", expand=False)
        )
        if options.headless:
            return _headless(options, board, job, run_id, console)
        return _interactive(board, job, run_id, console, options)


def _headless(options: DemoOptions, board: BoardClient, job: ManagedProcess, run_id: str, console: Console) -> int:
    started = time.monotonic()
    plan = Plan(run_id, options.fault, options.fault_step, options.seed + 1, started + HEADLESS_TIMEOUT_S)
    plan.result = {"run_id": run_id, "steps": 0}
    problems: list[str] = []
    watch = Watch(board, run_id, console)

    def alive() -> bool:
        watch.update()
        return job.running

    try:
        wait_for("the first point", lambda: board.run(run_id), until=started + _FIRST_POINT_S, alive=alive)
        if options.fault == "none":
            last = options.fault_step
            wait_for(
                f"step {last}", lambda: (board.run(run_id) or {})["last_step"] >= last, until=plan.deadline, alive=alive
            )
        else:
            act_on_incident(plan, board, alive, console.print)
    except StabilityBoardError as error:
        problems.append(error.message)
        console.print(f"[red]{escape(error.message)}[/red]\n{escape(job.tail())}", soft_wrap=True)
    _end_job(options, job, run_id)
    with contextlib.suppress(DemoFailed):
        wait_for(
            "the last point", lambda: (board.run(run_id) or {}).get("status") != "running", until=time.monotonic() + 10
        )
    measured = _log_calls(options, run_id)
    try:
        problems += check_everything(plan, board, RANKS, measured["count"] if measured else None)
    except StabilityBoardError as error:
        problems.append(error.message)
    if measured is None:
        problems.append("the job left no measurement of its log calls: it did not end by itself")
    plan.result |= {"log_call_us": measured, "seconds": round(time.monotonic() - started, 1)}
    plan.result |= {"problems": problems, "ok": not problems}
    if options.json_output:
        print(json.dumps(plan.result), flush=True)
    else:
        console.print_json(json.dumps(plan.result))
    return 0 if not problems else 1


def _interactive(board: BoardClient, job: ManagedProcess, run_id: str, console: Console, options: DemoOptions) -> int:
    watch = Watch(board, run_id, console)
    while job.running:
        watch.update()
        time.sleep(0.5)
    watch.close()
    if job.exit_code:
        console.print(
            f"[red]The training job ended with exit code {job.exit_code}:[/red]\n{escape(job.tail())}", soft_wrap=True
        )
    end_agents(_spool(options), run_id, _AGENT_GRACE_S)
    console.print(f"The job is over; the pages stay at {board.url} until Ctrl-C.")
    while True:
        signal.pause()


def _start_server(options: DemoOptions, console: Console, cleanup: contextlib.ExitStack) -> str:
    port = free_port(options.port)
    if port != options.port:
        console.print(f"Port {options.port} is taken; using {port}.")
    url = f"http://127.0.0.1:{port}"
    server = ManagedProcess(
        server_command(port, options.data_dir / "server"), log=options.data_dir / "server.log", env={}
    )
    cleanup.callback(server.end, _SERVER_GRACE_S)
    board = BoardClient(url)
    cleanup.callback(board.close)
    deadline = time.monotonic() + _SERVER_START_S
    while not board.healthy():
        if not server.running or time.monotonic() > deadline:
            raise StartError(f"the server did not start:\n{server.tail()}", hint=f"all of its output: {server.log}")
        time.sleep(0.1)
    return url


def _start_job(
    options: DemoOptions, script: Path, run_id: str, url: str, cleanup: contextlib.ExitStack
) -> ManagedProcess:
    checkpoints = options.data_dir / "checkpoints"
    shutil.rmtree(checkpoints, ignore_errors=True)  # of earlier demos: some 10 MB each
    arguments = ["--steps", str(options.steps), "--seed", str(options.seed)]
    arguments += ["--fault", options.fault, "--fault-step", str(options.fault_step)]
    arguments += ["--checkpoint-dir", str(checkpoints / run_id)]
    if options.headless:
        arguments += ["--measure-log-calls", str(_log_calls_file(options, run_id))]
    env = {
        "STABILITY_URL": url,
        "STABILITY_RUN_ID": run_id,
        "STABILITY_DIR": str(_spool(options)),
        "STABILITY_MODE": "online",
        "STABILITY_FINISH_S": "10",  # the server is beside it: no need to wait longer for the last points
        "OMP_NUM_THREADS": "1",  # one core per rank; torchrun says so too, with a warning
    }
    job = ManagedProcess(training_command(script, RANKS, arguments), log=options.data_dir / "job.log", env=env)
    cleanup.callback(_end_job, options, job, run_id)
    return job


def _end_job(options: DemoOptions, job: ManagedProcess, run_id: str) -> None:
    """End the ranks at a step boundary, then the agent when it has delivered the tail."""
    if job.running:
        job.ask_to_end()
        job.wait(_JOB_GRACE_S)
    job.end(1.0)
    end_agents(_spool(options), run_id, _AGENT_GRACE_S)


def _spool(options: DemoOptions) -> Path:
    return options.data_dir / "spool"


def _log_calls_file(options: DemoOptions, run_id: str) -> Path:
    return options.data_dir / f"log-calls-{run_id}.json"


def _log_calls(options: DemoOptions, run_id: str) -> dict[str, Any] | None:
    path = _log_calls_file(options, run_id)
    try:
        measured: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    path.unlink(missing_ok=True)
    return measured


def _find_script(example_dir: Path | None) -> Path:
    """Return the training script.

    Raises:
        StartError: it is nowhere.
    """
    given = example_dir or (Path(os.environ[_EXAMPLE_ENV]) if os.environ.get(_EXAMPLE_ENV) else None)
    repository = Path(__file__).resolve().parents[2] / "examples"
    tried = [given] if given else [repository, Path.cwd() / "examples"]
    for folder in tried:
        if (folder / _SCRIPT).is_file():
            return (folder / _SCRIPT).resolve()
    raise StartError(
        f"no {_SCRIPT} in {' or '.join(str(folder) for folder in tried)}",
        hint=f"run it from the repository (make demo), or name its examples folder by --example-dir or {_EXAMPLE_ENV}",
    )


def _check_packages() -> None:
    missing = [name for name in ("torch", "sklearn") if importlib.util.find_spec(name) is None]
    if missing:
        raise StartError(
            f"the training job needs {' and '.join(missing)}, which this Python does not have ({sys.executable})",
            hint="python -m pip install 'stabilityboard[demo]', or make demo in the repository",
        )


@contextlib.contextmanager
def _one_clean_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt at the first SIGINT or SIGTERM, and let nothing disturb the end that follows."""

    def interrupt(*_: object) -> None:
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="stabilityboard demo", description=__doc__.splitlines()[0])
    parser.add_argument("--headless", action="store_true", help="order the rollback by itself, check everything, end")
    parser.add_argument("--json", dest="json_output", action="store_true", help="print one JSON object on stdout")
    parser.add_argument("--url", help="use this server instead of starting one")
    parser.add_argument("--port", type=int, default=8080, help="wanted port; the next free one is taken")
    parser.add_argument("--data-dir", type=_folder, default=_folder(".stabilityboard/demo"), help="data of the demo")
    parser.add_argument("--example-dir", type=_folder, help=f"folder that holds {_SCRIPT} [env {_EXAMPLE_ENV}]")
    parser.add_argument("--fault", choices=[*EXPECTED_KINDS, "none"], default="bad_data", help="what goes wrong")
    parser.add_argument("--fault-step", type=int, default=220, help="step at which it goes wrong")
    parser.add_argument("--steps", type=int, default=3000, help="last step of the job")
    parser.add_argument("--seed", type=int, default=1, help="seed of the model and the data")
    return parser


def _folder(text: str) -> Path:
    return Path(text).expanduser().absolute()
