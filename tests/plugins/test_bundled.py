"""Bundled plug-ins are found by their entry points, one a folder, and each fills a seam."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import stabilityplugins
from stabilitybackend import hooks
from stabilitybackend.plugins import load

FOLDER = Path(stabilityplugins.__file__).parent
SEAMS = [name for name, one in vars(hooks).items() if hasattr(one, "stabilityboard_spec")]
NAMES = sorted(one.name for one in pkgutil.iter_modules([str(FOLDER)]))


def test_each_folder_is_an_entry_point() -> None:
    assert [module.__name__ for module in load({}).modules] == [f"stabilityplugins.{name}" for name in NAMES]


@pytest.mark.parametrize("name", NAMES)
def test_no_module_of_a_plug_in_hides_a_hook_of_its_package(name: str) -> None:
    [plug_in] = load({"STABILITY_INSTALLED_PLUGINS": name}).modules
    inside = {one.name for one in pkgutil.iter_modules([str(FOLDER / name)])}

    hidden = [one for one in inside if hasattr(hooks, one) and hasattr(vars(plug_in).get(one), "stabilityboard_impl")]

    assert hidden == []


def test_loading_all_of_them_imports_no_heavy_package() -> None:
    code = (
        "import sys; from stabilitybackend.plugins import load; load({});"
        "print(*sorted({'numpy', 'polars', 'dash', 'torch', 'redis', 'fastapi', 'mcp', 'authlib'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.split() == []


def test_the_page_for_authors_names_each_seam() -> None:
    page = (FOLDER.parents[1] / "docs" / "extending.md").read_text()

    assert [name for name in SEAMS if f"`{name}`" not in page] == []
