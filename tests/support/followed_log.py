"""A log that another program writes line by line on demand, and the program that follows it, as processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from support.waiting import wait_until

__all__ = ["Follower", "Writer"]


class Writer:
    """Runs a script with a function ``log(number)``, which is called when the test says so, in a process of its own."""

    def __init__(self, script: str, folder: Path) -> None:
        loop = 'import sys\nfor line in sys.stdin:\n    log(int(line))\n    print("logged", flush=True)\n'
        if "def end" in script:
            loop += "end()\n"
        wandb = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"}
        quiet = {**os.environ, **wandb, "MLFLOW_ALLOW_FILE_STORE": "true"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", script + "\n" + loop],
            cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=quiet, text=True,
        )  # fmt: skip

    def log(self, *numbers: int) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        for number in numbers:
            self._process.stdin.write(f"{number}\n")
            self._process.stdin.flush()
            line = "no"
            while line.strip() != "logged":
                line = self._process.stdout.readline()
                assert line, "the writer lives"

    def end(self) -> None:
        """Let it come to its end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()


class Follower:
    """``stabilityboard import --follow`` in a process of its own."""

    def __init__(self, url: str, out: Path, *arguments: str | Path) -> None:
        self._out = out
        clean = {name: value for name, value in os.environ.items() if not name.startswith("STABILITY_")}
        program = [sys.executable, "-m", "stabilitybackend.cli", "import", "--follow"]
        with out.open("a") as file:
            self._process = subprocess.Popen(
                [*program, *map(str, arguments), "--url", url], stdout=file, stderr=file, env=clean
            )

    @property
    def said(self) -> str:
        """All that it said so far."""
        return self._out.read_text()

    def wait_for(self, words: str) -> None:
        """Wait until it said something."""
        wait_until(lambda: words in self.said or self._process.poll() is not None, 20, f"it says {words!r}")
        assert words in self.said, self.said

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def interrupt(self) -> int:
        """Press Ctrl-C; return the exit code."""
        self._process.send_signal(signal.SIGINT)
        return self._process.wait(60)

    def wait(self) -> int:
        """Return the exit code once it ends by itself."""
        return self._process.wait(90)

    def __enter__(self) -> Follower:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        if kind is not None:
            print(self.said)
