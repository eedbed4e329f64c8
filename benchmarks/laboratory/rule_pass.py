"""One pass of the detectors over many logs under other numbers: constants replaced in the source, or settings.

A constant is named by its file and name, ``detectors/spike/detector.py:DATASET_DEMAND``, a setting of a detector as in
``stabilityboard backtest --set``: ``spike.sensitivity``. The logs are read once; each variant is judged by a fork of
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
import multiprocessing
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from detection_score import Alarm

__all__ = ["BACKEND", "LOUD", "RulePass", "Variant"]

BACKEND = Path(__file__).resolve().parents[2] / "backend" / "stabilitybackend"
#: An incident of these severities is an alarm; ``info`` is shown quietly and calls nobody.
LOUD = ("warning", "critical")
#: Where passes are kept: a variant that was judged once costs nothing the second time.
CACHE = Path(tempfile.gettempdir()) / "stabilityboard-rule-passes"
#: Objects between two searches for cycles: rows make millions without any.
_GC_THRESHOLD = 200_000

#: Constant or setting -> its value as it would stand in the source.
Variant = Mapping[str, str]


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
        digest = hashlib.sha256()
        for path in [*sorted(BACKEND.rglob("*.py")), *self._paths]:
            digest.update(path.read_bytes())
        self._digest = digest.hexdigest()

    def judge(self, variants: Sequence[Variant]) -> Iterator[list[list[Alarm]]]:
        """Yield for each variant, in their order, what people would have seen of each log.

        Raises:
            ValueError: a constant is not in its file.
        """
        for variant in variants:
            check(variant)
        missing = [variant for variant in variants if not self._kept(variant)]
        fresh = self._judged(missing)
        for variant in variants:
            kept = self._kept(variant)
            yield kept if kept else next(fresh)

    def _judged(self, variants: Sequence[Variant]) -> Iterator[list[list[Alarm]]]:
        if not variants:
            return
        if not self._frames:
            self._frames = _read(self._paths)
        global _frames
        _frames = self._frames
        gc.freeze()
        with multiprocessing.get_context("fork").Pool(self._processes, maxtasksperchild=1) as pool:
            for variant, found in zip(variants, pool.imap(_pass, [dict(one) for one in variants]), strict=True):
                if self._cache is not None:
                    self._cache.mkdir(parents=True, exist_ok=True)
                    self._file(variant).write_text(json.dumps(found))
                yield [[Alarm(*one) for one in log] for log in found]

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
    from stabilitybackend.backtest.sources import read_files

    return [list(next(iter(read_files([path]))).frames()) for path in paths]


def _pass(variant: dict[str, str]) -> list[list[tuple[Any, ...]]]:
    """Judge all logs in this fork, by a backend of its own."""
    gc.set_threshold(_GC_THRESHOLD)
    for name in [name for name in sys.modules if name.partition(".")[0] == "stabilitybackend"]:
        del sys.modules[name]
    sys.meta_path.insert(0, _Replacing({name: text for name, text in variant.items() if ":" in name}))
    from stabilitybackend.backtest.run import backtest

    settings: dict[str, dict[str, float]] = {}
    for name, text in variant.items():
        if ":" not in name:
            detector, _, parameter = name.partition(".")
            settings.setdefault(detector, {})[parameter] = float(text)
    answers = []
    for frames in _frames:
        found = backtest(frames, settings=settings).incidents
        answers.append([(i.step, i.kind, i.recovery, i.dataset, i.rank, i.severity in LOUD) for i in found])
    return answers


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
