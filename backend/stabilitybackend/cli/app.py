"""The program ``stabilityboard``.

Every command prints the fault in one line and the remedy in one; 0 is success, 1 trouble, 2 wrong use.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.markup import escape

from stabilitybackend.base.errors import WRONG_USE, BadRequest, SettingsError, StabilityBoardError
from stabilitybackend.base.settings import Settings
from stabilitybackend.cli import archive, keys
from stabilitybackend.cli.audit import audit
from stabilitybackend.cli.autopilot import autopilot
from stabilitybackend.cli.batches import show_batches
from stabilitybackend.cli.boundary import checkpoint, stop
from stabilitybackend.cli.detectors import detectors
from stabilitybackend.cli.doctor import doctor
from stabilitybackend.cli.echo import printable
from stabilitybackend.cli.exporting import export_run
from stabilitybackend.cli.interruptions import interruptions
from stabilitybackend.cli.options import AsJson, show_json
from stabilitybackend.cli.plan import dump, plan, restart, task
from stabilitybackend.cli.proposals import approve, decline, list_commands
from stabilitybackend.cli.rollback import roll_back
from stabilitybackend.cli.runs import list_runs
from stabilitybackend.plugins import Plugins, load

__all__ = ["main", "program"]

#: Error of a wrong option where typer does not print it by itself: with ``--json``.
_UsageError: Any = typer.BadParameter.__bases__[0]
_DATA_DIR_HELP = "Folder of everything that is kept."


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"stabilityboard {version('stabilityboard')}")
        raise typer.Exit


def _root(
    show: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def _up(
    context: typer.Context,
    host: Annotated[str | None, typer.Option(help="Address to listen on. (default: 127.0.0.1)")] = None,
    port: Annotated[int | None, typer.Option(help="TCP port; 0 takes a free one. (default: 8080)")] = None,
    data_dir: Annotated[Path | None, typer.Option(help=_DATA_DIR_HELP)] = None,
    redis_url: Annotated[
        str | None,
        typer.Option(
            help="Redis or Valkey >= 6.2; redis+cluster://, redis+sentinel://. "
            "(default: an embedded server in the data folder)"
        ),
    ] = None,
    archive_url: Annotated[
        str | None,
        typer.Option(help="Folder, s3://, gs:// or az:// of older points. (default: archive in the data folder)"),
    ] = None,
    window_mib: Annotated[
        float | None, typer.Option(help="MiB of a run's newest points that stay in Redis. (default: 32)")
    ] = None,
    root_path: Annotated[
        str | None,
        typer.Option(
            help="Path below which a proxy serves the pages: /user/x/proxy/8080. (default: that of "
            "STABILITY_PUBLIC_URL)"
        ),
    ] = None,
    role: Annotated[
        list[str] | None,
        typer.Option(help="door, worker, pages or alerting, again for several. (default: all, in one process)"),
    ] = None,
    advertise_url: Annotated[
        str | None, typer.Option(help="With --role: where other processes reach this one. (default: this host's name)")
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="critical, error, warning, info or debug.")] = None,
    as_json: AsJson = False,
) -> None:
    """Start the server: gateway, live pages, detectors and, unless --redis-url is given, its own Redis."""
    from stabilitybackend.cli.up import run_up

    plugins: Plugins = context.obj
    settings = Settings.from_env_and_args(
        os.environ,
        host=host,
        port=port,
        data_dir=data_dir,
        redis_url=redis_url,
        archive_url=archive_url,
        window_mib=window_mib,
        root_path=root_path,
        role=tuple(role) if role else None,
        advertise_url=advertise_url,
        log_level=log_level,
    )
    logging.basicConfig(level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    console = Console(highlight=False)

    def announce(url: str, redis: str) -> None:
        if as_json:
            show_json({"url": url, "version": version("stabilityboard"), "redis": redis, "exposed": settings.exposed})
            return
        what = f"{version('stabilityboard')}{' as ' + ' and '.join(settings.role) if settings.role else ''}"
        console.print(f"[bold]Stabilityboard[/bold] {what} is up at [bold cyan]{url}[/bold cyan]")
        if settings.below:
            where = settings.pages_url or f"a proxy's address that ends with {settings.below}/"
            console.print(f"Pages: {escape(where)}", style="dim", soft_wrap=True)
        console.print(f"Redis: {escape(redis)}", style="dim", soft_wrap=True)
        if added := plugins.added:
            loaded = ", ".join(str(module.__file__) for module in added)
            console.print(f"Plug-ins: {escape(loaded)}", style="dim", soft_wrap=True)
        if not settings.role or "door" in settings.role:
            console.print(f"Send data with: STABILITY_URL={url} python train.py", style="dim", soft_wrap=True)
        console.print("Stop with Ctrl-C", style="dim")
        if settings.exposed:
            place = settings.host if settings.beyond_loopback else settings.public_url or settings.trusted_hosts[0]
            console.print(f"Open to other machines as {escape(place)}: every call needs an API key.", style="yellow")
        sys.stdout.flush()

    run_up(settings, announce, plugins)


# In the order of --help.
_COMMANDS: dict[str, Callable[..., None]] = {
    "up": _up,
    "runs": list_runs,
    "rollback": roll_back,
    "checkpoint": checkpoint,
    "stop": stop,
    "autopilot": autopilot,
    "commands": list_commands,
    "approve": approve,
    "decline": decline,
    "plan": plan,
    "restart": restart,
    "dump": dump,
    "batches": show_batches,
    "task": task,
    "detectors": detectors,
    "export": export_run,
    "interruptions": interruptions,
    "audit": audit,
    "doctor": doctor,
}


def program(plugins: Plugins) -> typer.Typer:
    """Return the program with all its commands: those of the core, then those of plug-ins.

    Each invocation takes the same plug-ins as its ``obj``.
    """
    cli = typer.Typer(
        name="stabilityboard",
        help="The live dashboard for large training runs: stitched curves, rollbacks, incidents.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    cli.callback()(_root)
    for name, command in _COMMANDS.items():
        cli.command(name)(command)
    cli.add_typer(keys.app, name="keys")
    cli.add_typer(archive.app, name="archive")
    plugins.call("commands_of_the_program", cli=cli)
    return cli


def main() -> None:
    """Run the program with the arguments of this process."""
    as_json = _wants_json(sys.argv[1:])
    try:
        plugins = load(os.environ)
        left = program(plugins)(obj=plugins, standalone_mode=False)
        sys.exit(left if isinstance(left, int) else 0)
    except typer.Abort:
        if not as_json:
            typer.echo("Aborted.", err=True)
        sys.exit(1)
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError" and not as_json:
            error.show()  # a group of commands without one: its help
            sys.exit(error.exit_code)
        path = "stabilityboard" if error.ctx is None else error.ctx.command_path
        _say(BadRequest(error.format_message(), hint=f"see {path} --help", code=WRONG_USE), as_json)
        sys.exit(error.exit_code)
    except StabilityBoardError as error:
        _say(error, as_json)
        sys.exit(2 if isinstance(error, SettingsError) or error.code == WRONG_USE else 1)
    except BrokenPipeError:  # ``| head``: the reader has left, and Python would complain once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:  # a full disk, a folder without write permission: no bug
        place = f"{error.filename}: " if error.filename else ""
        _say(StabilityBoardError(f"{place}{error.strerror or error}", hint="see the disk and its rights"), as_json)
        sys.exit(1)


def _say(error: StabilityBoardError, as_json: bool) -> None:
    """Print the fault and the remedy on standard error: two lines, or one JSON document."""
    if as_json:
        sys.stderr.write(orjson.dumps(error.as_json()).decode() + "\n")
        return
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"[bold red]error:[/bold red] {escape(printable(error.message))}")
    if error.hint:
        console.print(f"[bold]hint:[/bold]  {escape(printable(error.hint))}")


def _wants_json(arguments: list[str]) -> bool:
    """Return whether errors are printed as JSON too, on standard error: ``--json`` is there, not behind ``--``."""
    return "--json" in (arguments[: arguments.index("--")] if "--" in arguments else arguments)


if __name__ == "__main__":
    main()
