"""What the training process gets to see, and what it pays for the import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import stabilityclient

_PACKAGE_ROOT = Path(stabilityclient.__file__).parent.parent

_LOOK = """
import sys, threading, os, json
sys.path.insert(0, {root!r})
before, files = set(sys.modules), sorted(os.listdir("."))
import stabilityclient
{then}
print(json.dumps({{
    "modules": sorted(name for name in sys.modules if name not in before),
    "threads": threading.active_count(),
    "files": sorted(os.listdir(".")) != files,
    "init": callable(stabilityclient.init),
}}))
"""


def _look(folder: Path, then: str = "") -> dict[str, object]:
    code = _LOOK.format(root=str(_PACKAGE_ROOT), then=then)
    env = {"PATH": os.environ["PATH"], "STABILITY_MODE": "offline"}
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], cwd=folder, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_public_names_are_exactly_these() -> None:
    assert sorted(stabilityclient.__all__) == [
        "NotReadyError",
        "RefusedError",
        "Rewind",
        "Rollback",
        "Run",
        "SettingError",
        "StabilityError",
        "Stop",
        "__version__",
        "init",
        "read_plan",
    ]
    assert all(hasattr(stabilityclient, name) for name in stabilityclient.__all__)


def test_every_error_is_a_stability_error() -> None:
    for name in ("NotReadyError", "RefusedError", "SettingError"):
        assert issubclass(getattr(stabilityclient, name), stabilityclient.StabilityError)


def test_import_in_a_bare_interpreter_loads_the_standard_library_only(tmp_path: Path) -> None:
    seen = _look(tmp_path)
    foreign = [
        name for name in seen["modules"] if name.split(".")[0] not in {*sys.stdlib_module_names, "stabilityclient"}
    ]
    assert foreign == []
    assert not [name for name in seen["modules"] if name.startswith(("stabilityclient.agent", "stabilityclient.wire"))]


def test_a_whole_run_in_a_bare_interpreter_loads_the_standard_library_only(tmp_path: Path) -> None:
    use = 'r = stabilityclient.init(dir="x"); r.log(0, {"a": 1.0}); r.checkpoint(0, "c"); r.rolled_back(0); r.finish()'
    seen = _look(tmp_path, use)
    foreign = [
        name for name in seen["modules"] if name.split(".")[0] not in {*sys.stdlib_module_names, "stabilityclient"}
    ]
    assert foreign == []


@pytest.mark.parametrize("name", ["lightning", "transformers", "accelerate"])
def test_an_integration_imports_its_framework_when_it_is_used(name: str, tmp_path: Path) -> None:
    seen = _look(tmp_path, f"import stabilityclient.integrations.{name}")
    foreign = {name.split(".")[0] for name in seen["modules"]} - {*sys.stdlib_module_names, "stabilityclient"}
    assert foreign == set()


def test_importing_leaves_what_is_costly_for_later() -> None:
    code = f"import sys; sys.path.insert(0, {str(_PACKAGE_ROOT)!r}); import stabilityclient; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True).stdout
    costly = {"ctypes", "enum", "faulthandler", "json", "logging", "signal", "subprocess", "threading"}
    assert costly.isdisjoint(loaded.split())


def test_importing_does_nothing(tmp_path: Path) -> None:
    seen = _look(tmp_path)
    assert (seen["threads"], seen["files"], seen["init"]) == (1, False, True)


def test_import_takes_less_than_30_ms_of_processor_time() -> None:
    code = (
        f"import sys, time; sys.path.insert(0, {str(_PACKAGE_ROOT)!r}); t = time.process_time(); "
        "import stabilityclient; print(time.process_time() - t)"
    )
    # Processor time and the best of five: the wall clock of a busy machine says nothing about us.
    times = [
        float(subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True).stdout)
        for _ in range(5)
    ]
    assert min(times) < 0.030
