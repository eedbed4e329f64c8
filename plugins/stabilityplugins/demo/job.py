"""The demo's training job: two ranks under torchrun, with their spool, checkpoints and agent in the demo's folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from stabilitybackend.base.errors import StabilityBoardError
from stabilitybackend.schema.commands import END_STATES
from stabilityplugins.demo.api import DemoRun
from stabilityplugins.demo.options import DemoOptions
from stabilityplugins.demo.processes import ManagedProcess, end_agents, end_strays, training_command

__all__ = ["RANKS", "TrainingJob"]

#: Ranks of the training job.
RANKS = 2
#: How long the job may take to end at a step boundary and deliver its tail, seconds.
_JOB_GRACE_S = 20.0
#: How long ranks that lost their launcher may take to end, seconds.
_STRAY_GRACE_S = 5.0
#: How long its agent may take to drain the spool once the job is gone, seconds.
_AGENT_GRACE_S = 5.0


class TrainingJob:
    """Training job that starts immediately, and again after an ordered restart.

    Args:
        options: of the demo.
        script: the training script.
        run: as the server reports it.
        url: the server.
    """

    def __init__(self, options: DemoOptions, script: Path, run: DemoRun, url: str) -> None:
        self._options = options
        self._script = script
        self._run = run
        self._run_id = run_id = run.run_id
        self._url = url
        self._spool = options.data_dir / "spool"
        self._checkpoints = options.data_dir / "checkpoints"
        self._measured = options.data_dir / f"log-calls-{run_id}.json"
        #: Once this fault ends the job by itself.
        self._resumes_left = 1 if options.fault == "sampler" else 0
        #: Restarts that were followed; None: the demo has ended.
        self._restarts: set[str] | None = set()
        self.starts = 0
        shutil.rmtree(self._checkpoints, ignore_errors=True)  # of earlier demos: 10 MB each
        self._process = self._start(resume=False)

    @property
    def running(self) -> bool:
        """Whether it trains; a job with an intended death or an ordered restart is started again here."""
        if self._process.running:
            return True
        if self._process.exit_code and self._resumes_left:
            self._resumes_left -= 1
        elif not self._is_restarted():
            return False
        self._process.end(1.0)  # a rank that its launcher left
        self._process = self._start(resume=True)
        return True

    @property
    def exit_code(self) -> int | None:
        """Exit code, None while it runs, negative for a signal."""
        return self._process.exit_code

    def tail(self) -> str:
        """Return the last lines of its output."""
        return self._process.tail()

    def end(self) -> None:
        """End the ranks at a step boundary, then the agent when it has delivered the tail."""
        self._resumes_left, self._restarts = 0, None
        if self._process.running:
            self._process.ask_to_end()  # torchrun hands it to the ranks
            self._process.wait(_JOB_GRACE_S)
        self._process.end(1.0)
        end_strays(f"STABILITY_RUN_ID={self._run_id}", _STRAY_GRACE_S)
        end_agents(self._spool, self._run_id, _AGENT_GRACE_S)

    def log_calls(self) -> dict[str, Any] | None:
        """Return the job's measurements around ``run.log``, None when it did not end in order."""
        try:
            measured: dict[str, Any] = json.loads(self._measured.read_text())
        except (OSError, ValueError):
            return None
        self._measured.unlink(missing_ok=True)
        return measured

    def _is_restarted(self) -> bool:
        """Whether its ranks ended, in order or not, because of a restart that waits for it to come back."""
        if self._restarts is None:
            return False
        try:
            ordered = {c.command_id for c in self._run.commands() if c.kind == "restart" and c.state not in END_STATES}
        except StabilityBoardError:
            return False  # no server to ask: as a launcher without a plan
        new = ordered - self._restarts
        self._restarts |= new
        return bool(new)

    def _start(self, *, resume: bool) -> ManagedProcess:
        options = self._options
        arguments = ["--steps", str(options.steps), "--seed", str(options.seed)]
        arguments += ["--fault", options.fault, "--fault-step", str(options.fault_step)]
        arguments += ["--checkpoint-dir", str(self._checkpoints / self._run_id)]
        arguments += ["--data-cache", str(options.data_dir / "tokens")]
        if resume:
            arguments.append("--resume")
        if options.headless:
            arguments += ["--measure-log-calls", str(self._measured)]
        env = {
            "STABILITY_URL": self._url,
            "STABILITY_RUN_ID": self._run_id,
            "STABILITY_DIR": str(self._spool),
            "STABILITY_MODE": "online",
            # The server is local to the job: when it does not answer, it was killed together with the demo.
            "STABILITY_FINISH_S": "10",
            "STABILITY_DRAIN_S": "5",
            "TORCH_FR_BUFFER_SIZE": "2000",  # so that a hang is reported with the collective that ranks wait in
            "OMP_NUM_THREADS": "1",  # one core per rank; torchrun would say so too, with a warning
        }
        self.starts += 1
        log = options.data_dir / ("job-resumed.log" if resume else "job.log")
        return ManagedProcess(training_command(self._script, RANKS, arguments), log=log, env=env)
