"""The command line of the tee: opens the run, listens to the trackers, and gives the process to the script."""

from __future__ import annotations

import atexit
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from stabilityclient.run import Run
    from stabilityclient.tee.script import Script

__all__ = ["main"]

_USAGE = """\
usage: python -m stabilityclient.tee [options] SCRIPT [ARGUMENTS ...]
       python -m stabilityclient.tee [options] -m MODULE [ARGUMENTS ...]
       torchrun [...] -m stabilityclient.tee [options] SCRIPT [ARGUMENTS ...]

Runs a training script as it is. What it tells W&B, TensorBoard, MLflow and Trackio goes to Stabilityboard too.

  --project NAME     project of the run (default: default)
  --name NAME        name of the run (default: that of the script)
  --run-id ID        the same id continues a run (default: STABILITY_RUN_ID)
  --step-key NAME    the logged value that is the step of the training
  --help
"""
#: Option -> argument of ``init()`` or of the recording.
_OPTIONS = {"--project": "project", "--name": "name", "--run-id": "run_id", "--step-key": "step_key"}


def main() -> None:
    """Run the script of the command line; leaves as it does."""
    options, module, rest = _parsed(sys.argv[1:])
    run = _start(options, rest[0]) if _is_there(rest[0], module) else None
    from stabilityclient.tee.script import Script

    script = Script(rest, module=module)
    if run is not None:
        # Registered here, it is called after all that the script registers: what is logged there comes too.
        atexit.register(_listen(run, options.get("step_key"), script))
    script.run()


def _parsed(arguments: list[str]) -> tuple[dict[str, str], bool, list[str]]:
    """Return the options, whether the script is a module, and the script with its arguments."""
    options: dict[str, str] = {}
    rest = list(arguments)
    while rest and rest[0].startswith("-"):
        word, equals, value = rest.pop(0).partition("=")
        if word in ("-m", "--help", "-h"):
            if word == "-m" and rest:
                return options, True, rest
            _end(0 if word != "-m" else 2)
        if word not in _OPTIONS or not (equals or rest):
            _end(2, f"{word} is unknown, or lacks its value")
        options[_OPTIONS[word]] = value if equals else rest.pop(0)
    if not rest:
        _end(2, "no script is named")
    return options, False, rest


def _is_there(script: str, module: bool) -> bool:
    """Whether there is something to run: of a typo, which Python reports itself, no run is to be left."""
    if not module:
        return os.path.isfile(os.path.join(script, "__main__.py") if os.path.isdir(script) else script)
    from importlib.util import find_spec

    return find_spec(script.partition(".")[0]) is not None


def _end(code: int, why: str = "") -> NoReturn:
    print(f"{_USAGE}\n{why}".strip(), file=sys.stderr if code else sys.stdout)
    sys.exit(code)


def say(text: str) -> None:
    """Tell people something in the log of the job; a closed one is no reason to stop."""
    try:
        print(f"stabilityclient.tee: {text}", file=sys.stderr, flush=True)
    except Exception:
        pass


def _start(options: dict[str, str], script: str) -> Run | None:
    from stabilityclient.init_run import init

    # Whoever asks for the script, as the report of its git commit does, finds it; a module is looked for from here.
    sys.modules["__main__"].__file__ = os.path.abspath(script)
    name = options.get("name") or os.path.splitext(os.path.basename(script.rstrip("/")))[0]
    try:
        run = init(project=options.get("project"), name=name[:200], run_id=options.get("run_id"))
    except Exception as error:  # a wrong setting is no reason not to train
        say(f"nothing is recorded: {error}")
        return None
    if run.folder is not None and run._settings.ranks.rank == 0:
        say(f"run {run.run_id} goes to {run._settings.url}")
    return run


def _listen(run: Run, step_key: str | None, script: Script) -> Callable[[], None]:
    from stabilityclient.tee.import_hook import ImportHook
    from stabilityclient.tee.libraries import LIBRARIES
    from stabilityclient.tee.recording import Recording

    recording = Recording(run, say, step_key)
    hook = ImportHook(recording)
    for library in LIBRARIES:
        hook.add(library(recording))
    hook.install()
    owner = os.getpid()

    def end() -> None:
        if os.getpid() != owner:
            return  # a forked child that ends: the run is its parent's
        recording.close()
        if script.went_well:
            run.finish()

    return end
