"""The main job end to end: a server, a real training job that goes wrong, and its rollback.

``stabilityboard demo`` leaves the click to a person; ``--headless`` orders the rollback itself and checks that all of
it held. Everything that is started here is ended here, on Ctrl-C, on SIGTERM and on an error.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import time
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel

from stabilitybackend.base.api_client import ApiClient
from stabilitybackend.base.errors import StartError
from stabilityplugins.demo.api import DemoRun, wait_healthy
from stabilityplugins.demo.headless import run_headless
from stabilityplugins.demo.job import TrainingJob
from stabilityplugins.demo.options import DemoOptions, check_packages, find_script, parse_options
from stabilityplugins.demo.processes import ManagedProcess, free_port, server_command
from stabilityplugins.demo.watch import Watch

__all__ = ["main", "run_demo"]

_SERVER_START_S = 40.0
_SERVER_GRACE_S = 10.0
_POLL_S = 0.1


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo by the command line; return 0 only if every check held, 130 when it was stopped.

    Raises:
        StartError: a requirement is missing; named in the message, the remedy in the hint.
    """
    options = parse_options(argv)
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
    """Start the server and the job, run the demo, end everything, and return the exit code."""
    script = find_script(options.example_dir)
    check_packages()
    run_id = f"demo-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    with contextlib.ExitStack() as cleanup:
        url = options.url or _start_server(options, console, cleanup)
        client = cleanup.enter_context(ApiClient(url, os.environ.get("STABILITY_API_KEY")))
        if not wait_healthy(client, 5.0):
            raise StartError(f"no healthy Stabilityboard at {url}", hint="start one, or leave --url out")
        run = DemoRun(client, run_id)
        job = TrainingJob(options, script, run, url)
        cleanup.callback(job.end)
        page = f"[bold]{run.page}[/bold]\nCtrl-C ends it all."
        console.print(Panel(page, title="Stabilityboard", expand=False))
        if options.headless:
            return run_headless(options, run, job, console)
        return _interactive(run, job, console)


def _interactive(run: DemoRun, job: TrainingJob, console: Console) -> int:
    watch = Watch(run, console)
    while job.running:
        watch.update()
        time.sleep(_POLL_S)
    watch.close()
    if job.exit_code:
        console.print(f"[red]The training job ended with code {job.exit_code}:[/red]\n{escape(job.tail())}")
    job.end()
    console.print(f"The job is over; the pages stay at {run.page} until Ctrl-C.", soft_wrap=True)
    while True:
        signal.pause()


def _start_server(options: DemoOptions, console: Console, cleanup: contextlib.ExitStack) -> str:
    port = free_port(options.port)
    if port != options.port:
        console.print(f"Port {options.port} is taken; using {port}.")
    url = f"http://127.0.0.1:{port}{(options.root_path or '').rstrip('/')}"
    command = server_command(port, options.data_dir / "server", options.root_path)
    server = ManagedProcess(command, log=options.data_dir / "server.log", env={})
    cleanup.callback(server.end, _SERVER_GRACE_S)
    with ApiClient(url) as client:
        if not wait_healthy(client, _SERVER_START_S, lambda: server.running):
            raise StartError(f"the server did not start:\n{server.tail()}", hint=f"all of its output: {server.log}")
    return url


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
