"""Runs a drill: a straight leg, one that is stopped, one that resumes it, and a second straight one for the noise."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec

from stabilityplugins.drill.alignment import Alignment, align, saves
from stabilityplugins.drill.command import Commands, fill
from stabilityplugins.drill.comparisons import Check, Legs
from stabilityplugins.drill.data_check import check_data
from stabilityplugins.drill.job import DrillFailed, run_leg
from stabilityplugins.drill.result import Result, judge
from stabilityplugins.drill.series import compare_series, same_training
from stabilityplugins.drill.trace import LegTrace

__all__ = ["DrillOptions", "run_drill"]

_UNSEEN = (
    "the probe was not loaded, so weights, optimizer and random numbers were not seen: the job has no torch, or Python "
    "ignores PYTHONPATH"
)


def judge_metrics(straight: LegTrace, again: LegTrace, stopped: LegTrace, resumed: LegTrace) -> Result:
    """Return a drill's result by metrics, batches and step numbers."""
    saved = max(step for step, _ in stopped.checkpoints)
    first = min(step for names in resumed.metrics.values() for steps in names.values() for step in steps)
    reported = {step for step, _ in stopped.checkpoints}
    legs = Legs(straight, again, stopped, resumed, Alignment(saved, max(saved, first - 1)))
    # A job ended between a save and its report resumes from an unseen save: then its metrics fit its steps.
    fits = first - 1 > saved and all(one.verdict != "different" for one in compare_series(legs))
    restored = first - 1 in reported or fits
    if not restored:
        legs.at = Alignment(saved, saved)
    series = compare_series(legs)
    checks = [
        _by_name(legs, "learning rate", ("lr", "learning_rate")),
        check_data(legs),
        Check("step counter", restored, "" if restored else f"the first step is called {first}, expected {saved + 1}"),
    ]
    wrong = [check for check in checks if check.restored is False]
    differing = [one for one in series if one.verdict == "different"]
    name = wrong[0].name if wrong else _guess(differing, first)
    if name is None:
        text = f"CLEAN as far as its metrics show (stopped after step {saved}, resumed)"
    else:
        text = f"NOT RESTORED: {name}"
    loss = next((one for one in differing if one.name == "loss"), None)
    cost = "" if loss is None or loss.mean is None else f"the loss is {loss.mean:+.4g} on average"
    compared = max((one.steps for one in series), default=0)
    return Result(
        name is None, name, text, cost, checks, series, saved, first - 1, compared,
        [len(straight.metrics), len(resumed.metrics)], False, [_UNSEEN],
    )  # fmt: skip


def _by_name(legs: Legs, thing: str, names: tuple[str, ...]) -> Check:
    found = [one for one in compare_series(legs) if one.name in names]
    if not found:
        return Check(thing, None, "not logged")
    wrong = next((one for one in found if one.verdict == "different"), None)
    return Check(thing, wrong is None, "" if wrong is None else f"{wrong.name} differs from step {wrong.since} on")


def _guess(differing: list, first: int) -> str | None:  # type: ignore[type-arg]
    """Return the likely cause of the first difference: a loss that is right at first has the right weights and data."""
    if not differing:
        return None
    since = differing[0].since
    if since is not None and since > first:
        return f"optimizer state, or what else acts after a step (all is equal up to step {since - 1})"
    return "weights, random numbers or data: they can't be told apart by metrics"


class DrillOptions(msgspec.Struct, frozen=True):
    """How a drill is run.

    Args:
        steps: the job is stopped at its first checkpoint after at least so many steps. timeout_s: of one leg.
        stop_signal: how it is stopped. noise: run the second straight leg also where the job is deterministic.
        allowed: names of checks that may differ.
    """

    steps: int = 20
    timeout_s: float = 600.0
    stop_signal: int = signal.SIGKILL
    noise: bool = False
    allowed: frozenset[str] = frozenset()


def run_drill(commands: Commands, options: DrillOptions, folder: Path, report: Callable[[str], None]) -> Result:
    """Run all legs below ``folder`` and return the result.

    Args:
        report: gets a line before each leg.

    Raises:
        DrillFailed: the job did not come far enough, made no checkpoint, died, or wrote outside of the folder.
    """

    def leg(
        name: str, command: list[str], job_dir: Path, enough: Callable[[LegTrace], bool], wait: str, stop: int
    ) -> LegTrace:
        def enough_here(trace: LegTrace) -> bool:
            if not commands.here:
                _stays_inside(trace, job_dir)
            return enough(trace)

        cwd = commands.working_folder(job_dir)
        return run_leg(
            fill(command, job_dir), folder / name, job_dir=job_dir, cwd=cwd, environ=os.environ,
            timeout_s=options.timeout_s, enough=enough_here, wait_after=wait, stop_signal=stop,
        )  # fmt: skip

    def straight(name: str, steps: int) -> LegTrace:
        job_dir, kill = folder / name / "job", signal.SIGKILL
        return leg(name, commands.straight, job_dir, lambda trace: _done(trace) >= steps, f"rounds:{steps}", kill)

    here = folder / "stopped" / "job"
    report(f"run that is stopped: after its first checkpoint at or after step {options.steps}")
    # One that is asked politely has to run on to answer.
    wait = f"saved:{options.steps}" if options.stop_signal == signal.SIGKILL else ""
    stopped = leg(
        "stopped", commands.straight, here, lambda trace: _saved(trace, options.steps) is not None, wait,
        options.stop_signal,
    )  # fmt: skip
    if _saved(stopped, options.steps) is None:
        raise _no_checkpoint(stopped, options)
    saved = saves(stopped)[-1]  # a fast job had more before it was gone
    report(f"straight run: {2 * saved} steps, {saved} of them behind the checkpoint of step {saved}")
    first = straight("straight", 2 * saved)
    if _done(first) <= saved:
        raise _died("the straight run", first, f"it ended after {_done(first)} steps", "let the job run longer")
    report(f"resumed run: {saved} steps")
    goal = saved if stopped.ranks else 2 * saved
    enough = f"rounds:{saved}"
    resumed = leg("resumed", commands.resumed, here, lambda trace: _done(trace) >= goal, enough, signal.SIGKILL)
    if not _done(resumed):
        raise _died("the resumed run", resumed, "it made no step")
    again = stopped
    if options.noise or not _alike(first, stopped):
        report(f"second straight run, for the job's own noise: {2 * saved} steps")
        again = straight("again", 2 * saved)
    if not first.ranks or not stopped.ranks or not resumed.ranks:
        return judge_metrics(first, again, stopped, resumed)
    at: Alignment = align(stopped, resumed)
    return judge(Legs(first, again, stopped, resumed, at), options.allowed)


def _done(trace: LegTrace) -> int:
    """Return the rounds that all ranks have done; of a job in which the probe saw none, the last step logged."""
    if trace.ranks:
        return min(len(one.rounds) for one in trace.ranks.values())
    return max(0, trace.last_step)


def _saved(trace: LegTrace, least: int) -> int | None:
    """Return the first whole checkpoint at or after ``least``, None while there is none."""
    return next((rounds for rounds in saves(trace) if rounds >= least), None)


def _alike(one: LegTrace, other: LegTrace) -> bool:
    return bool(one.ranks) and same_training(one, other)


def _stays_inside(trace: LegTrace, job_dir: Path) -> None:
    written = [path for _, path in trace.checkpoints]
    written += [note.path for one in trace.ranks.values() for note in one.notes if note.kind == "save" and note.round]
    for path in written:
        if path and "://" not in path and not Path(path).resolve().is_relative_to(job_dir.resolve()):
            raise DrillFailed(
                f"the job was stopped: it saved to {path}, outside of the drill's folder",
                hint="write {dir} where the command names its checkpoint folder, or --here where that is right",
            )


def _no_checkpoint(trace: LegTrace, options: DrillOptions) -> DrillFailed:
    done = _done(trace)
    if not done:
        hint = "it needs torch, or run.log() of stabilityclient; python -I and -E keep the probe out"
        return _died("the job", trace, "it made no step that the drill could see", hint)
    reason = f"it made no checkpoint at or after step {options.steps} in {done} steps"
    hint = "let the command save more often, or give a smaller --steps; run.checkpoint() or torch.save is seen"
    return _died("the job", trace, reason, hint)


def _died(what: str, trace: LegTrace, reason: str, hint: str = "") -> DrillFailed:
    ended = "" if trace.code is None else f" (exit code {trace.code})"
    shown = f"\n{trace.output}" if trace.code and trace.output else ""
    return DrillFailed(f"{what} can't be used: {reason}{ended}{shown}", hint=hint)
