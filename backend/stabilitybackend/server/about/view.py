"""A run as its page shows it: its launches, and the differences between the newest ones of two runs."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Mapping
from typing import Any

from msgspec.structs import replace

from stabilitybackend.runs.launch_facts import Launch, LaunchFacts
from stabilitybackend.schema.job.about import AboutLine, Checkout, Difference, RunDiff, RunLaunch
from stabilitybackend.server.about.differences import config_differences, differences, options
from stabilityclient.wire import started_ns

__all__ = ["MAX_LAUNCHES", "diff", "launches_of", "line_of"]

#: Launches that are shown, newest ones; differences of a config; hosts that are named.
MAX_LAUNCHES, MAX_DIFFERENCES, MAX_HOSTS = 50, 500, 256
#: Variables of a launcher that are another with each launch: no news in a comparison.
_OF_EACH = frozenset(
    ["SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_RESTART_COUNT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
     "MASTER_PORT", "MASTER_ADDR", "POD_NAME", "RAY_JOB_ID", "LSB_JOBID", "PBS_JOBID", "JOB_ID", "FLUX_JOB_ID",
     "WORLD_SIZE"]
)  # fmt: skip


def launches_of(
    facts: LaunchFacts,
    started_with: Callable[[str], Collection[str]],
    segment_of: Callable[[str], int | None],
    environments: Callable[[Collection[str]], list[Mapping[str, str]]],
) -> list[RunLaunch]:
    """Return the launches of a run, newest first, each with its changes since the one before.

    Args:
        started_with: returns the processes of the launch of a source. segment_of: the segment that it is in.
        environments: distinct environments of some processes.
    """
    found = sorted(facts.launches(started_with), key=lambda launch: started_ns(launch.sources[0]))
    shown: list[RunLaunch] = []
    before: tuple[Launch, RunLaunch] | None = None
    for launch in found:
        one = _shown(launch, segment_of(launch.sources[0]), environments([*started_with(launch.sources[0])]))
        if before is not None:
            one = replace(one, changed=_changed(*before, launch, one))
        shown.append(one)
        before = launch, one
    return shown[::-1]


def line_of(launches: list[RunLaunch], *, printed: bool) -> AboutLine:
    """Return the launches of a run in one line; ``printed``: whether lines of its ranks are kept."""
    if not launches:
        return AboutLine(Checkout(), 0, 0, False, printed)
    newest = launches[0]
    changed = any(one.name == "commit" for one in newest.changed)
    git = newest.git
    if not git.commit:
        git = replace(git, commit=newest.environment.get("git", ""))
    return AboutLine(git, newest.host_count, len(launches), changed, printed)


def _shown(launch: Launch, segment: int | None, environments: list[Mapping[str, str]]) -> RunLaunch:
    facts = launch.facts
    return RunLaunch(
        started=started_ns(launch.sources[0]) / 1e9,
        ranks=launch.ranks,
        segment=segment,
        hosts=launch.hosts[:MAX_HOSTS],
        host_count=len(launch.hosts),
        user=facts.user,
        command=shlex.join(facts.command),
        folder=facts.folder,
        script=facts.script,
        python=facts.python,
        image=facts.image,
        launcher=facts.launcher,
        git=facts.git,
        environment=dict(environments[0]) if environments else {},
        changed=[],
    )


def _changed(old: Launch, before: RunLaunch, new: Launch, now: RunLaunch) -> list[Difference]:
    command = differences(options(old.facts.command), options(new.facts.command))
    return [*differences(_facts(before), _facts(now)), *(_of_command(one) for one in command)]


def _of_command(one: Difference) -> Difference:
    return Difference(f"command line: {one.name}", one.before, one.now)


def _facts(launch: RunLaunch) -> dict[str, str]:
    """Return the facts of a launch whose changes are shown, by displayed name."""
    git = launch.git
    environment = {name: text for name, text in launch.environment.items() if name not in ("ranks", "git")}
    facts = {
        "commit": git.commit or launch.environment.get("git", ""),
        "branch": git.branch,
        "not committed": _dirty(git),
        "repository": git.remote,
        "script": launch.script,
        "working folder": launch.folder,
        "interpreter": launch.python,
        "image": launch.image,
        "user": launch.user,
        "ranks": str(launch.ranks),
        "hosts": ", ".join(launch.hosts[:8]) + (f" and {launch.host_count - 8} more" if launch.host_count > 8 else ""),
        **environment,
        **{f"${name}": text for name, text in launch.launcher.items() if name not in _OF_EACH},
    }
    return {name: text for name, text in facts.items() if text}


def _dirty(git: Checkout) -> str:
    if not git.commit:
        return ""
    if git.dirty is None:
        return "not known"
    return f"{git.changed} {'file' if git.changed == 1 else 'files'}" if git.dirty else "nothing"


def diff(
    other: tuple[str, str, Mapping[str, Any], list[RunLaunch]],
    config: Mapping[str, Any],
    launches: list[RunLaunch],
    why: str,
) -> RunDiff:
    """Return the differences between another run (id, name, config, launches) and this one."""
    run_id, name, before, older = other
    keys, equal = config_differences(before, config)
    facts: list[Difference] = []
    if older and launches:
        was, now = older[0], launches[0]
        command = differences(options(shlex.split(was.command)), options(shlex.split(now.command)))
        facts = [*differences(_facts(was), _facts(now)), *(_of_command(one) for one in command)]
    missing = [side for side, known in (("the other run", older), ("this run", launches)) if not known]
    no_facts = f"{' and '.join(missing)} reported no facts" if missing else ""
    return RunDiff(
        run_id, name, why, keys[:MAX_DIFFERENCES], max(0, len(keys) - MAX_DIFFERENCES), equal, facts, no_facts
    )
