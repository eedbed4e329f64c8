"""Each package has a docstring with its one job."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
_CODE = (
    "alerting/stabilityalerting",
    "backend/stabilitybackend",
    "client/stabilityclient",
    "frontend/stabilityfrontend",
    "plugins/stabilityplugins",
)
#: Data, and leftovers of tools.
_NOT_CODE = {"__pycache__", "traces", "golden", "stored"}


def folders(place: str) -> list[Path]:
    top = REPOSITORY / place
    found = [top, *(path for path in top.rglob("*") if path.is_dir())]
    return [path for path in found if not _NOT_CODE & {*path.relative_to(REPOSITORY).parts}]


@pytest.mark.parametrize("place", _CODE)
def test_each_package_says_its_one_job(place: str) -> None:
    packages = [path for path in folders(place) if any(path.glob("*.py"))]

    silent = [path for path in packages if not (path / "__init__.py").exists() or not docstring(path / "__init__.py")]

    assert packages
    assert [str(path.relative_to(REPOSITORY)) for path in silent] == []


def docstring(file: Path) -> str | None:
    return ast.get_docstring(ast.parse(file.read_text()))
