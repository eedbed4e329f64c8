"""Plug-ins are loaded from entry points, files and folders; a wrong one stops the start, with its file and line."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from stabilitybackend.base.errors import SettingsError
from stabilitybackend.judging.detectors.engine import conformance
from stabilitybackend.judging.detectors.registry import DETECTORS
from stabilitybackend.plugins import Plugins, load
from stabilitybackend.schema.kinds import KINDS
from stabilityplugins.importers.formats import FORMATS, formats_of

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "extending"
TABLES: tuple[dict[str, Any], ...] = (DETECTORS, KINDS)
#: No installed plug-in.
ALONE = {"STABILITY_INSTALLED_PLUGINS": ""}
HOOK = "from stabilitybackend.hooks import hook\n"
DETECTOR = HOOK + "from stabilitybackend.judging.detectors.engine.base import Detector\n"
IMPORTER = HOOK + "from stabilityplugins.importers.base import Importer\n"
STATE = (
    HOOK
    + "from stabilitybackend.base.stateful import Stateful\n"
    + "from stabilitybackend.lineage.consumer import Consumer\n"
)
GIVES = "\n@hook\ndef {}():\n    return [A]\n"
KIND = HOOK + (
    "from stabilitybackend.schema.kinds import IncidentKind\n\n"
    "@hook\ndef incident_kinds():\n    return [IncidentKind('added', 'Added', 'added')]\n"
)


@pytest.fixture(autouse=True)
def own_tables() -> Iterator[None]:
    before = [dict(table) for table in TABLES]
    yield
    for table, entries in zip(TABLES, before, strict=True):
        table.clear()
        table.update(entries)


def test_files_and_folders_are_loaded_in_order_but_not_what_begins_with_an_underscore(tmp_path: Path) -> None:
    (folder := tmp_path / "folder").mkdir()
    for name in ("b.py", "a.py", "_c.py", "notes.txt"):
        (folder / name).touch()
    (file := tmp_path / "one.py").touch()

    plugins = load(ALONE | {"STABILITY_PLUGINS": f"{file}{os.pathsep}{folder}"})

    assert [module.__file__ for module in plugins.modules] == [str(file), str(folder / "a.py"), str(folder / "b.py")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import math\n\nmath.sqrt(-1)\n", "line 3: ValueError: math domain error"),
        ("def f(:\n", "line 1: SyntaxError"),
        (HOOK + "@hook\ndef detectors():\n    return 1 / 0\n", "line 4: ZeroDivisionError: division by zero"),
        ("def detectors():\n    return []\n", "line 1: TypeError: detectors() is not marked, expected @hook above it"),
        (HOOK + "@hook\ndef detector():\n    return []\n", "unknown hook 'detector'"),
        (HOOK + "@hook\ndef detectors(run):\n    return []\n", "Argument(s) {'run'} are declared in the hookimpl"),
        (
            HOOK
            + "from stabilitybackend.judging.detectors.curve.detector import CurvesDetector as A\n"
            + GIVES.format("detectors"),
            "ValueError: there is a detector 'curve' already, give this one another name",
        ),
        (
            HOOK + "class A:\n    name = 'a'\n" + GIVES.format("detectors"),
            "line 2: TypeError: A must inherit from Detector of stabilitybackend.judging.detectors.engine.base",
        ),
        (
            DETECTOR
            + "class A(Detector):\n    kinds = ('spike',)\n    wants = update = print\n"
            + GIVES.format("detectors"),
            "line 3: TypeError: A lacks name, expected in every class below Detector",
        ),
        (
            DETECTOR
            + "class A(Detector):\n    name, kinds = 'a', ('disk',)\n    wants = update = print\n"
            + GIVES.format("detectors"),
            "line 3: ValueError: A.kinds names 'disk', expected one of process_death, hang,",
        ),
        (
            DETECTOR
            + "class A(Detector):\n    name = kinds = 'spike_two'\n    wants = update = print\n"
            + GIVES.format("detectors"),
            "line 3: ValueError: A.kinds is 'spike_two', expected a tuple of names",
        ),
        (
            HOOK
            + "from stabilitybackend.lineage.consumer import Consumer\nclass B(Consumer): ...\n"
            + "class A(Consumer):\n    reads = (B,)\n"
            + GIVES.format("consumers"),
            "line 4: TypeError: consumer A reads B, expected one of the registered ones",
        ),
        (
            STATE + "class A(Stateful, Consumer):\n    count: int = 0\n" + GIVES.format("consumers"),
            "line 4: TypeError: consumer A declares state and returns none, expected state() to return it",
        ),
        (
            STATE
            + "class A(Stateful, Consumer):\n    rows: int = 0\n    def state(self):\n        return {'a': self}\n"
            + GIVES.format("consumers"),
            "line 4: TypeError: state rows of consumer A hides a method: choose another name",
        ),
        ("import json as routes\n", "TypeError: module routes is called like a seam: rename it"),
    ],
)
def test_a_file_that_is_wrong_stops_the_start_with_its_name_and_line(tmp_path: Path, text: str, message: str) -> None:
    (file := tmp_path / "wrong.py").write_text(text)

    with pytest.raises(SettingsError) as caught:
        load({"STABILITY_PLUGINS": str(file)})

    assert caught.value.message.startswith("plug-in ")
    assert message in caught.value.message
    assert str(file) in caught.value.message or "curve" in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("class A:\n    name = 'a'\n", "line 3: TypeError: A must inherit from Importer of stabilityplugins.importers"),
        (
            "class A(Importer):\n    name = label = known = 'a'\n",
            "line 3: TypeError: A lacks takes, read, expected in every class below Importer",
        ),
        (
            "class A(Importer):\n    name = label = known = 'csv'\n    takes = read = print\n",
            "line 3: ValueError: there is an importer 'csv' already, give this one another name",
        ),
    ],
)
def test_an_importer_that_is_wrong_stops_the_import_with_its_name_and_line(
    tmp_path: Path, text: str, message: str
) -> None:
    (file := tmp_path / "wrong.py").write_text(IMPORTER + text + GIVES.format("importers"))

    with pytest.raises(SettingsError) as caught:
        formats_of(load(ALONE | {"STABILITY_PLUGINS": str(file)}))

    assert caught.value.message.startswith(f"plug-in {file}, {message}")


def test_a_detector_may_come_before_its_kind(tmp_path: Path) -> None:
    (file := tmp_path / "a_detector.py").write_text(
        DETECTOR
        + "class A(Detector):\n    name, kinds = 'a', ('added',)\n    wants = update = print\n"
        + GIVES.format("detectors")
    )
    (kind := tmp_path / "kind.py").write_text(KIND)

    load({"STABILITY_PLUGINS": f"{file}{os.pathsep}{kind}"})

    assert "a" in DETECTORS


def test_a_file_that_is_not_there_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"gone\.py, which is not there"):
        load({"STABILITY_PLUGINS": str(tmp_path / "gone.py")})


def test_the_module_of_an_installed_package_is_loaded_by_its_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "added_kinds.py").write_text(KIND)
    (info := tmp_path / "added-1.0.dist-info").mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: added\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[stabilityboard]\nadded = added_kinds\n")
    monkeypatch.syspath_prepend(tmp_path)

    assert [module.__name__ for module in load({}).added] == ["added_kinds"]

    assert KINDS["added"].label == "Added"


def test_installed_plug_ins_are_those_that_a_setting_names() -> None:
    named = load({"STABILITY_INSTALLED_PLUGINS": "mcp, drill"})

    assert [module.__name__ for module in named.modules] == ["stabilityplugins.mcp", "stabilityplugins.drill"]
    with pytest.raises(SettingsError, match=r"names 'mpc', expected some of .*mcp"):
        load({"STABILITY_INSTALLED_PLUGINS": "mpc"})


def test_a_seam_is_called_in_the_order_in_which_plug_ins_were_loaded(tmp_path: Path) -> None:
    text = HOOK + "@hook\ndef commands_of_the_program(cli):\n    cli.command({0!r})(lambda: None)\n"
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text(text.format(name))

    load(ALONE | {"STABILITY_PLUGINS": str(tmp_path)}).call("commands_of_the_program", cli=(cli := typer.Typer()))

    assert [command.name for command in cli.registered_commands] == ["one", "two"]


def test_without_plug_ins_only_the_bundled_formats_are_read() -> None:
    assert formats_of(Plugins()) == FORMATS


@pytest.mark.parametrize("name", ["slow_data", "full_disk"])
def test_the_detectors_of_the_examples_keep_the_law(name: str) -> None:
    load({"STABILITY_PLUGINS": str(EXAMPLES / f"{name}.py")})

    conformance.check_all(DETECTORS[name])
