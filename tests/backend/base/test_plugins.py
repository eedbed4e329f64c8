"""Plug-ins are loaded from files and folders; one that is wrong stops the start, with its file and line."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stabilitybackend.base.errors import SettingsError
from stabilitybackend.judging.detectors.engine import conformance
from stabilitybackend.judging.detectors.registry import DETECTORS
from stabilitybackend.schema.kinds import KINDS
from stabilitybackend.server import plugins
from stabilityplugins.importers.registry import IMPORTERS

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "extending"
REGISTRIES: tuple[dict[str, Any], ...] = (DETECTORS, IMPORTERS, KINDS)
DETECTOR = (
    "from stabilitybackend.judging.detectors.registry import register\n"
    "from stabilitybackend.judging.detectors.engine.base import Detector\n"
)
IMPORTER = (
    "from stabilityplugins.importers.registry import register\nfrom stabilityplugins.importers.base import Importer\n"
)


@pytest.fixture(autouse=True)
def own_registries() -> Iterator[None]:
    before = [dict(registry) for registry in REGISTRIES]
    yield
    for registry, entries in zip(REGISTRIES, before, strict=True):
        registry.clear()
        registry.update(entries)


def test_files_and_folders_are_loaded_in_order_but_not_what_begins_with_an_underscore(tmp_path: Path) -> None:
    (folder := tmp_path / "folder").mkdir()
    for name in ("b.py", "a.py", "_c.py", "notes.txt"):
        (folder / name).touch()
    (file := tmp_path / "one.py").touch()

    loaded = plugins.load({"STABILITY_PLUGINS": f"{file}{os.pathsep}{folder}"})

    assert [module.__file__ for module in loaded] == [str(file), str(folder / "a.py"), str(folder / "b.py")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import math\n\nmath.sqrt(-1)\n", "line 3: ValueError: math domain error"),
        ("def f(:\n", "line 1: SyntaxError"),
        (
            "from stabilitybackend.judging.detectors.registry import DETECTORS, register\n"
            "register(DETECTORS['curve'])\n",
            "line 2: ValueError: there is a detector 'curve' already, give this one another name",
        ),
        (
            "from stabilitybackend.judging.detectors.registry import register\n@register\nclass A:\n    name = 'a'\n",
            "line 2: TypeError: A must inherit from Detector of stabilitybackend.judging.detectors.engine.base",
        ),
        (
            "from stabilityplugins.importers.registry import register\n@register\nclass A:\n    name = 'a'\n",
            "line 2: TypeError: A must inherit from Importer of stabilityplugins.importers.base",
        ),
        (
            DETECTOR + "@register\nclass A(Detector):\n    kinds = ('spike',)\n    wants = update = print\n",
            "line 3: TypeError: A lacks name, expected in every class below Detector",
        ),
        (
            IMPORTER + "@register\nclass A(Importer):\n    name = label = known = 'a'\n",
            "line 3: TypeError: A lacks takes, read, expected in every class below Importer",
        ),
        (
            IMPORTER + "@register\nclass A(Importer):\n    name = label = known = 'csv'\n    takes = read = print\n",
            "line 3: ValueError: there is an importer 'csv' already, give this one another name",
        ),
        (
            DETECTOR + "@register\nclass A(Detector):\n    name, kinds = 'a', ('disk',)\n    wants = update = print\n",
            "line 3: ValueError: A.kinds names 'disk', expected one of process_death, hang,",
        ),
        (
            DETECTOR + "@register\nclass A(Detector):\n    name = kinds = 'spike_two'\n    wants = update = print\n",
            "line 3: ValueError: A.kinds is 'spike_two', expected a tuple of names",
        ),
    ],
)
def test_a_file_that_is_wrong_stops_the_start_with_its_name_and_line(tmp_path: Path, text: str, message: str) -> None:
    (file := tmp_path / "wrong.py").write_text(text)

    with pytest.raises(SettingsError) as caught:
        plugins.load({"STABILITY_PLUGINS": str(file)})

    assert caught.value.message.startswith(f"plug-in {file}, {message}")


def test_a_detector_may_come_before_its_kind(tmp_path: Path) -> None:
    (file := tmp_path / "kind_last.py").write_text(
        DETECTOR + "@register\nclass A(Detector):\n    name, kinds = 'a', ('added',)\n    wants = update = print\n"
        "from stabilitybackend.schema import kinds\nkinds.register(kinds.IncidentKind('added', 'Added', 'added'))\n"
    )

    plugins.load({"STABILITY_PLUGINS": str(file)})

    assert "a" in DETECTORS


def test_a_file_that_is_not_there_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"gone\.py, which is not there"):
        plugins.load({"STABILITY_PLUGINS": str(tmp_path / "gone.py")})


def test_the_module_of_an_installed_package_is_loaded_by_its_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "added_kinds.py").write_text(
        "from stabilitybackend.schema import kinds\nkinds.register(kinds.IncidentKind('added', 'Added', 'added'))\n"
    )
    (info := tmp_path / "added-1.0.dist-info").mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: added\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[stabilityboard.plugins]\nadded = added_kinds\n")
    monkeypatch.syspath_prepend(tmp_path)

    assert "added_kinds" in [module.__name__ for module in plugins.load({})]

    assert KINDS["added"].label == "Added"


@pytest.mark.parametrize("name", ["slow_data", "full_disk"])
def test_the_detectors_of_the_examples_keep_the_law(name: str) -> None:
    plugins.load({"STABILITY_PLUGINS": str(EXAMPLES / f"{name}.py")})

    conformance.check_all(DETECTORS[name])
