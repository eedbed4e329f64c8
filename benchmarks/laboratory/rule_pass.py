"""One pass of the detectors over many logs under other numbers: constants replaced in the source, or settings.

A constant is named by its file and name, ``judging/detectors/curve/detector.py:DATASET_DEMAND``, a setting as in
``stabilityboard backtest --set``: ``curve.sensitivity``. The logs are read once; each variant is judged by a fork of
this process that imports the backend afresh with the numbers replaced, so that what is derived from a constant,
imported from it or a default of a function follows. What was judged is kept by the code, the variant and the logs.
"""

from __future__ import annotations

import ast
import gc
import hashlib
import importlib.abc
import importlib.machinery
import json
import logging
import multiprocessing
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

from detection_score import Alarm

__all__ = ["BACKEND", "LOUD", "RulePass", "Variant"]

BACKEND = Path(__file__).resolve().parents[2] / "backend" / "stabilitybackend"
#: An incident of these severities is an alarm; ``info`` is shown quietly and calls nobody.
LOUD = ("warning", "critical")
#: Where passes are kept: a variant that was judged once costs nothing the second time.
CACHE = Path(tempfile.gettempdir()) / "stabilityboard-rule-passes"
#: A variant that takes longer never ends, seconds.
LIMIT_S = 1_200
#: Objects between two searches for cycles: rows make millions without any.
_GC_THRESHOLD = 200_000

#: Constant or setting -> its value as it would stand in the source.
Variant = Mapping[str, str]
#: File below the backend -> lines of it.
Lines = dict[str, set[int]]


class RulePass:
    """Judges a fixed set of logs under variants.

    Args:
        paths: the logs; their order is that of the answers.
        processes: variants that are judged at once.
        cache: folder of what was judged before, None for no cache.
    """

    def __init__(self, paths: Sequence[Path], processes: int = 1, cache: Path | None = CACHE) -> None:
        self._paths = list(paths)
        self._processes = processes
        self._cache = cache
        self._frames: list[list[Any]] = []
        self._lines: list[Lines] | None = None
        self._usual: list[list[Alarm]] = []
        digest = hashlib.sha256()
        for path in [*sorted(BACKEND.rglob("*.py")), *self._paths]:
            digest.update(path.read_bytes())
        self._digest = digest.hexdigest()

    def judge(self, variants: Sequence[Variant], only_readers: bool = False) -> Iterator[list[list[Alarm]]]:
        """Yield for each variant, in their order, what people would have seen of each log; [] where the rules break.

        Args:
            variants: of constants and settings; the empty one is the code as it stands.
            only_readers: judge only the logs that execute a line which reads one of the constants: in the others
                nothing can change. Takes one slow pass to find out.

        Raises:
            ValueError: a constant is not in its file, or the rules break as they stand.
        """
        for variant in variants:
            check(variant)
        missing = [variant for variant in variants if not self._kept(variant)]
        if missing and only_readers:
            (self._usual,) = self.judge([{}])
            self._lines = self._lines or self._executed()
        fresh = self._judged(missing, only_readers)
        for variant in variants:
            kept = self._kept(variant)
            yield kept if kept else next(fresh)

    def _judged(self, variants: Sequence[Variant], only_readers: bool) -> Iterator[list[list[Alarm]]]:
        if not variants:
            return
        every = list(range(len(self._paths)))
        tasks = [(dict(one), self._readers(one) if only_readers else every) for one in variants]
        for (variant, places), found in zip(tasks, self._in_forks(_pass, tasks), strict=True):
            if isinstance(found, str):
                if not variant:
                    raise ValueError(f"the rules break as they stand: {found}")
                yield []
                continue
            answers = list(self._usual) if only_readers else [[] for _ in every]
            for place, log in zip(places, found, strict=True):
                answers[place] = [Alarm(*one) for one in log]
            if self._cache is not None:
                self._cache.mkdir(parents=True, exist_ok=True)
                self._file(variant).write_text(json.dumps([[astuple(one) for one in log] for log in answers]))
            yield answers

    def _executed(self) -> list[Lines]:
        """Return for each log the lines of the backend that judging it executes."""
        file = None if self._cache is None else self._cache / f"{self._digest[:32]}-lines.json"
        kept = json.loads(file.read_text()) if file is not None and file.exists() else []
        lines = [{name: set(several) for name, several in log.items()} for log in kept]
        if len(lines) < len(self._paths):
            for log in self._in_forks(_trace, range(len(lines), len(self._paths))):
                lines.append(log)
                if file is not None:  # after each log, so that the program can be stopped and started again
                    file.write_text(json.dumps([{name: sorted(own) for name, own in one.items()} for one in lines]))
        return lines

    def _readers(self, variant: Variant) -> list[int]:
        assert self._lines is not None
        wanted = [reads_of(name) for name in variant]
        if None in wanted:
            return list(range(len(self._paths)))
        places = [place for one in wanted if one is not None for place in one]
        return [at for at, log in enumerate(self._lines) if any(line in log.get(file, ()) for file, line in places)]

    def _in_forks(self, function: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[Any]:
        if not self._frames:
            self._frames = _read(self._paths)
        global _frames
        _frames = self._frames
        gc.freeze()
        with multiprocessing.get_context("fork").Pool(self._processes, maxtasksperchild=1) as pool:
            yield from pool.imap(function, tasks)

    def _kept(self, variant: Variant) -> list[list[Alarm]]:
        if self._cache is None or not self._file(variant).exists():
            return []
        return [[Alarm(*one) for one in log] for log in json.loads(self._file(variant).read_text())]

    def _file(self, variant: Variant) -> Path:
        key = hashlib.sha256((self._digest + json.dumps(sorted(variant.items()))).encode()).hexdigest()
        assert self._cache is not None
        return self._cache / f"{key[:32]}.json"


#: The frames of each log, for the forks.
_frames: list[list[Any]] = []


def _read(paths: Sequence[Path]) -> list[list[Any]]:
    from stabilityplugins.backtest.sources import read_files

    return [list(next(iter(read_files([path]))).frames()) for path in paths]


def _pass(task: tuple[dict[str, str], list[int]]) -> list[list[tuple[Any, ...]]] | str:
    """Judge some logs in this fork, by a backend of its own; return the error of rules that break or never end."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"no end within {LIMIT_S} s")

    # A detector that raises starts afresh and the run goes on, with a line in this log.
    told = _Told()
    logging.getLogger("stabilitybackend.judging.detectors.engine.bank").addHandler(told)
    signal.signal(signal.SIGALRM, stop)
    signal.alarm(LIMIT_S)
    try:
        found = _judged_here(*task)
        return told.lines[0] if told.lines else found
    except Exception as error:  # a number may be one that the rules do not bear
        return f"{type(error).__name__}: {error}"
    finally:
        signal.alarm(0)


class _Told(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def _judged_here(variant: dict[str, str], places: list[int]) -> list[list[tuple[Any, ...]]]:
    backtest = _backtest_of(variant)
    settings: dict[str, dict[str, float]] = {}
    for name, text in variant.items():
        if ":" not in name:
            detector, _, parameter = name.partition(".")
            settings.setdefault(detector, {})[parameter] = float(text)
    return [[_said(one) for one in backtest(_frames[place], settings=settings).incidents] for place in places]


def _said(incident: Any) -> tuple[Any, ...]:
    i = incident
    evidence = i.evidence or {}
    first = [move["metric"] for move in evidence.get("moved_first", ())]
    more = f"{i.onset_step} {i.peak_step} {i.recovered_step} {i.severity} {i.state} "
    more += f"{evidence.get('datasets')} {first} {evidence.get('onset_band')}"
    return (i.step, i.kind, i.recovery, i.dataset, i.rank, i.severity in LOUD, more)


def _backtest_of(variant: Variant) -> Any:
    gc.set_threshold(_GC_THRESHOLD)
    for name in [name for name in sys.modules if name.partition(".")[0] in ("stabilitybackend", "stabilityplugins")]:
        del sys.modules[name]
    sys.meta_path.insert(0, _Replacing({name: text for name, text in variant.items() if ":" in name}))
    from stabilitybackend.runs.backtest import backtest

    return backtest


def _trace(place: int) -> Lines:
    """Return the lines of the backend that judging one log executes."""
    backtest = _backtest_of({})
    lines: dict[str, set[int]] = {}
    root = f"{BACKEND}/"

    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        file = frame.f_code.co_filename
        if not file.startswith(root):
            return None
        mine = lines.setdefault(file.removeprefix(root), set())

        def follow(frame: FrameType, event: str, argument: Any) -> Any:
            mine.add(frame.f_lineno)
            return follow

        return follow(frame, event, argument)

    sys.settrace(enter)
    try:
        backtest(_frames[place])
    finally:
        sys.settrace(None)
    return lines


@cache
def reads_of(constant: str) -> tuple[tuple[str, int], ...] | None:
    """Return (file, line) of where a constant is read within functions; None where something is derived from it."""
    file, colon, name = constant.partition(":")
    if not colon:
        return None
    found: list[tuple[str, int]] = []
    for path in sorted(BACKEND.rglob("*.py")):
        text = path.read_text()
        if name not in text:
            continue
        place, tree = str(path.relative_to(BACKEND)), ast.parse(text)
        known = {name} if place == file else {own for module, own in _imports(tree, name) if module == Path(file).stem}
        within = {
            inner
            for outer in ast.walk(tree)
            if isinstance(outer, ast.FunctionDef | ast.Lambda)
            for body in (outer.body if isinstance(outer.body, list) else [outer.body])
            for inner in ast.walk(body)
        }
        for node in ast.walk(tree):
            for inner in ast.iter_child_nodes(node):
                if isinstance(inner, ast.Name) and inner.id in known and isinstance(inner.ctx, ast.Load):
                    if inner not in within:
                        return None
                    found += [(place, line) for line in range(getattr(node, "lineno", inner.lineno), inner.lineno + 1)]
    return tuple(found)


def _imports(tree: ast.Module, name: str) -> Iterator[tuple[str, str]]:
    """Yield (last part of the module, name here) of each import of ``name``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if alias.name == name:
                    yield node.module.rpartition(".")[2], alias.asname or name


def check(variant: Variant) -> None:
    """Raise ValueError where a constant of the variant is not in its file."""
    for name in variant:
        file, colon, constant = name.partition(":")
        if colon:
            _replaced(BACKEND / file, {constant: "0"})


@dataclass(frozen=True)
class _Replacing(importlib.abc.MetaPathFinder):
    """Imports the files of a variant with its constants in place of their own.

    Args:
        variant: constants only.
    """

    variant: Variant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is None or spec.origin is None or not isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            return None
        file = Path(spec.origin)
        if not file.is_relative_to(BACKEND):
            return None
        place = str(file.relative_to(BACKEND))
        mine = {name.partition(":")[2]: text for name, text in self.variant.items() if name.startswith(f"{place}:")}
        if not mine:
            return None
        spec.loader = _Loader(fullname, spec.origin, mine)
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, fullname: str, path: str, constants: Variant) -> None:
        super().__init__(fullname, path)
        self._constants = constants

    def get_code(self, fullname: str) -> CodeType:
        return compile(_replaced(Path(self.path), self._constants), self.path, "exec")


def _replaced(file: Path, constants: Variant) -> ast.Module:
    """Return the module of a file with its constants replaced.

    Raises:
        ValueError: one of them is not there.
    """
    module, left = ast.parse(file.read_text()), set(constants)
    for node in module.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        values = getattr(node, "value", None)
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        for target in targets:
            if isinstance(target, ast.Name) and target.id in left:
                node.value = ast.parse(constants[target.id], mode="eval").body
                left.discard(target.id)
            if isinstance(target, ast.Tuple) and isinstance(values, ast.Tuple):
                for place, name in enumerate(target.elts):
                    if isinstance(name, ast.Name) and name.id in left:
                        values.elts[place] = ast.parse(constants[name.id], mode="eval").body
                        left.discard(name.id)
    if left:
        raise ValueError(f"{file} has no constant {min(left)}")
    return ast.fix_missing_locations(module)
