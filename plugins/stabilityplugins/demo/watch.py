"""The demo's output in the terminal: one line of progress, and a line for each event."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from stabilitybackend.base.errors import StabilityBoardError
from stabilitybackend.schema.commands import END_STATES
from stabilityplugins.demo.api import DemoRun

__all__ = ["Watch", "progress_line"]

#: How often the server is asked, seconds; on a terminal, and where each answer is a line of a log file.
_TERMINAL_S = 0.5
_LOG_FILE_S = 5.0


class Watch:
    """Follows one run.

    Args:
        run: the run.
        console: where to write; a terminal gets one line that changes, anything else a line now and then.
    """

    def __init__(self, run: DemoRun, console: Console) -> None:
        self._run = run
        self._console = console
        self._seen: dict[str, str] = {}
        self._next_poll = 0.0
        self._next_line = 0.0
        self._status: Status | None = console.status("starting the training job ...") if console.is_terminal else None
        if self._status is not None:
            self._status.start()

    def update(self) -> None:
        """Ask the server, if due, and show the news. An unreachable server is shown, not raised."""
        now = time.monotonic()
        if now < self._next_poll:
            return
        self._next_poll = now + _TERMINAL_S
        try:
            facts = self._run.facts()
            if facts is None:
                return
            checkpoints = self._run.checkpoints()
            self._show_events()
            line = progress_line(facts, checkpoints)
        except StabilityBoardError as error:
            line = escape(error.message)
        if self._status is not None:
            self._status.update(line)
        elif now >= self._next_line:
            self._next_line = now + _LOG_FILE_S
            self._console.print(line, soft_wrap=True)

    def close(self) -> None:
        """Stop showing the line."""
        if self._status is not None:
            self._status.stop()

    def _show_events(self) -> None:
        for incident in reversed(self._run.incidents()):
            text = f"[yellow]incident[/yellow] {escape(incident['title'])} ({incident['state']})"
            if incident["state"] == "open" and (suggestion := incident["suggestion"]):
                text += f"\n  {escape(suggestion['text'])}"
            self._print_once(incident["incident_id"], text)
        for command in reversed(self._run.commands()):
            to_step = "" if command.to_step is None else f" to step {command.to_step}"
            text = f"[cyan]{command.kind.replace('_', ' ')}[/cyan]{to_step}: {command.state}"
            if command.command_id not in self._seen or command.state in END_STATES:
                self._print_once(command.command_id, text)

    def _print_once(self, name: str, text: str) -> None:
        if self._seen.get(name) != text:
            self._seen[name] = text
            self._console.print(text, soft_wrap=True)


def progress_line(run: dict[str, Any], checkpoints: list[dict[str, Any]]) -> str:
    """Return step, loss, speed, newest checkpoint and open incidents of a run in one line."""
    latest = run["latest"]
    parts = ["no step yet" if run["last_step"] is None else f"step {run['last_step']}"]
    if isinstance(loss := latest.get("loss"), (int, float)):
        parts.append(f"loss {loss:.3f}")
    if isinstance(speed := latest.get("tokens_per_s"), (int, float)):
        parts.append(f"{speed * max(1, run['world_size']):,.0f} tokens/s")
    alive = [checkpoint["step"] for checkpoint in checkpoints if not checkpoint["dead"]]
    if alive:
        parts.append(f"checkpoint {max(alive)}")
    if run["open_incidents"]:
        parts.append(f"{run['open_incidents']} open incident{'s' if run['open_incidents'] > 1 else ''}")
    if run["rollbacks"]:
        parts.append(f"{run['rollbacks']} rollback{'s' if run['rollbacks'] > 1 else ''}")
    return f"{run['status']}: " + ", ".join(parts)
