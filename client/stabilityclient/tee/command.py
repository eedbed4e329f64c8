"""The command line of the tee: opens the run, listens to the trackers, and gives the process to the script."""

from __future__ import annotations

import atexit
import os
import sys

from stabilityclient.tee.library import Library
from stabilityclient.tee.of_mlflow import Mlflow
from stabilityclient.tee.of_saving import Saving
from stabilityclient.tee.of_tensorboard import TensorBoard
from stabilityclient.tee.of_trackio import Trackio
from stabilityclient.tee.of_wandb import Wandb

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType, TracebackType
    from typing import Any, NoReturn

    from stabilityclient.run import Run
    from stabilityclient.tee.recording import Recording

    Hook = Callable[[type[BaseException], BaseException, TracebackType | None], Any]

__all__ = ["LIBRARIES", "ImportHook", "Script", "main"]


class Script:
    """A script, or a module that is run as one.

    Args:
        arguments: its path or name, and the rest of its ``sys.argv``.
        module: it is the name of a module.

    Attributes:
        went_well: it ended by itself, or by ``sys.exit`` without an error.
    """

    def __init__(self, arguments: list[str], *, module: bool) -> None:
        self.went_well = False
        self._arguments = arguments
        self._module = module

    def run(self) -> None:
        """Run it in ``sys.modules["__main__"]``.

        Raises:
            BaseException: raised by the script. Python's traceback shows the script's lines alone.
        """
        try:
            self._run()
            self.went_well = True
        except SystemExit as end:
            self.went_well = end.code in (None, 0)
            raise
        except BaseException:
            # The hook that the script has set shows it: Python calls it, and knows which exit code follows.
            sys.excepthook = _showing_the_script(sys.excepthook)
            raise

    def _run(self) -> None:
        sys.argv[:] = self._arguments
        path = self._arguments[0]
        names = sys.modules["__main__"].__dict__
        if self._module:
            _as_module(path)
        elif os.path.isdir(path) or path.endswith((".zip", ".pyz")):
            _search_first(os.path.abspath(path))
            _as_module("__main__", keep_name=True)
        else:
            # The script's folder comes first, as without us. With -P there is no such entry, and none is made.
            _search_first(os.path.dirname(os.path.realpath(path)))
            code = _compiled(path)
            names.clear()
            names.update(_main_names(path))
            exec(code, names)


def _search_first(folder: str) -> None:
    if not getattr(sys.flags, "safe_path", False):  # from Python 3.11 on
        sys.path[0] = folder


def _compiled(path: str) -> CodeType:
    import io

    whole = os.path.abspath(path)
    try:
        with io.open_code(whole) as file:
            return compile(file.read(), whole, "exec", dont_inherit=True)
    except OSError as error:
        text = f"[Errno {error.errno}] {error.strerror}"
        print(f"{sys.executable}: can't open file {whole!r}: {text}", file=sys.stderr)
        sys.exit(2)


def _main_names(path: str) -> dict[str, object]:
    import builtins
    from importlib.machinery import SourceFileLoader

    whole = os.path.abspath(path)
    names: dict[str, object] = {
        "__name__": "__main__", "__doc__": None, "__package__": None, "__spec__": None, "__cached__": None,
        "__loader__": SourceFileLoader("__main__", whole), "__file__": whole, "__builtins__": builtins,
    }  # fmt: skip
    if sys.version_info < (3, 14):  # from then on they are made on request
        names["__annotations__"] = {}
    return names


def _as_module(name: str, *, keep_name: bool = False) -> None:
    import runpy

    # The function of `python -m` itself. The public run_module() removes __main__ when the module ends, and with
    # it the names that threads and exit handlers still need.
    runpy._run_module_as_main(name, not keep_name)  # type: ignore[attr-defined]


def _showing_the_script(hook: Hook) -> Hook:
    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        try:
            _clean(error)
            trace = error.__traceback__
        except Exception:  # better one with our lines than none
            pass
        hook(kind, error, trace)

    return show


def _clean(error: BaseException) -> None:
    """Remove this package's lines from the traceback of an exception, and of its causes."""
    left, seen = [error], set()
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        one.__traceback__ = _cleaned(one.__traceback__)
        left += [more for more in (one.__cause__, one.__context__, *getattr(one, "exceptions", ())) if more is not None]


def _cleaned(trace: TracebackType | None) -> TracebackType | None:
    kept: list[TracebackType] = []
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file == _THIS:
            kept.clear()  # frames above the script
        elif os.path.dirname(file) == _HERE:
            while kept and kept[-1].tb_frame.f_code.co_filename.startswith("<frozen importlib"):
                kept.pop()
        else:
            kept.append(trace)
        trace = trace.tb_next
    for one, following in zip(kept, [*kept, None][1:], strict=True):
        one.tb_next = following
    return kept[0] if kept else None


_THIS = _cleaned.__code__.co_filename
_HERE = os.path.dirname(_THIS)


class ImportHook:
    """A finder in ``sys.meta_path`` that lets the others find, and has a library patched once it is executed."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._awaited: dict[str, Library] = {}

    def add(self, library: Library) -> None:
        """Await the modules of a library."""
        self._awaited.update(dict.fromkeys(library.modules, library))

    def install(self) -> None:
        """Look at each import from now on; imported modules are patched immediately."""
        sys.meta_path.insert(0, self)
        for name in self._awaited:
            if (module := sys.modules.get(name)) is not None:
                self._patch(name, module)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec of the other finders."""
        if name not in self._awaited:
            return None
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    self._follow(name, spec)
                    return spec
        return None

    def _follow(self, name: str, spec: ModuleSpec) -> None:
        if spec.loader is None:
            return  # a folder without code, such as that in which W&B keeps its files
        try:
            loader: Any = spec.loader
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                self._patch(name, module)

            # On this loader alone: its class, and files of the package read by it, stay as they were.
            loader.exec_module = exec_module
        except Exception as error:
            self._recording.trouble(f"the import of {name} can't be followed", error)

    def _patch(self, name: str, module: ModuleType) -> None:
        library = self._awaited[name]
        try:
            library.patch(name, module)
        except Exception as error:
            version = getattr(sys.modules.get(name.partition(".")[0]), "__version__", "of this version")
            self._recording.trouble(f"{library.title} {version} is not as expected, its values are not taken", error)


LIBRARIES: tuple[type[Library], ...] = (Wandb, TensorBoard, Mlflow, Trackio, Saving)


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
    from stabilityclient.tee.command import Script

    script = Script(rest, module=module)
    if run is not None:
        # Registered here, it is called after all that the script registers, so values logged there are taken.
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
    """Print a text into the log of the job; a closed one is no reason to stop."""
    try:
        print(f"stabilityclient.tee: {text}", file=sys.stderr, flush=True)
    except Exception:
        pass


def _start(options: dict[str, str], script: str) -> Run | None:
    from stabilityclient.init_run import init

    # Reports that look for the script, as that of its git commit, find it; modules are searched from here.
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
    from stabilityclient.tee.command import LIBRARIES, ImportHook
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
