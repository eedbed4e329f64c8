"""The product stays small and its objects closed: bounds that only a commit with a reason may raise."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
_CODE = {".py", ".js", ".css", ".html"}
_BACKEND = "backend/stabilitybackend"
#: Package, or room of the backend -> most lines of its code. A commit that raises a number has its reason in the
#: message, one that removes lines lowers it.
BUDGET = {
    "alerting/stabilityalerting": 3_700,
    "client/stabilityclient": 23_960,
    "frontend/stabilityfrontend": 30_300,
    "plugins/stabilityplugins": 20_850,
    _BACKEND: 400,
    f"{_BACKEND}/access": 1_250,
    f"{_BACKEND}/acting": 2_800,
    f"{_BACKEND}/alerts": 1_400,
    f"{_BACKEND}/base": 2_600,
    f"{_BACKEND}/cli": 3_000,
    f"{_BACKEND}/fleet": 2_550,
    f"{_BACKEND}/ingest": 1_450,
    f"{_BACKEND}/judging": 29_050,
    f"{_BACKEND}/lineage": 3_450,
    f"{_BACKEND}/run_table": 1_450,
    f"{_BACKEND}/runs": 10_200,
    f"{_BACKEND}/schema": 6_400,
    f"{_BACKEND}/server": 4_850,
    f"{_BACKEND}/storage": 9_200,
}
#: Package, or room of the backend -> most assignments to attributes of other objects than ``self``: none elsewhere.
OUTSIDE = {
    "alerting/stabilityalerting": 2,
    f"{_BACKEND}/acting": 10,
    f"{_BACKEND}/base": 2,
    f"{_BACKEND}/cli": 1,
    f"{_BACKEND}/fleet": 8,
    f"{_BACKEND}/ingest": 2,
    f"{_BACKEND}/judging": 389,
    f"{_BACKEND}/lineage": 44,
    f"{_BACKEND}/runs": 53,
    f"{_BACKEND}/schema": 2,
    f"{_BACKEND}/server": 1,
    f"{_BACKEND}/storage": 21,
    "client/stabilityclient": 193,
    "frontend/stabilityfrontend": 4,
    "plugins/stabilityplugins": 152,
}
#: A number that is further above the lines than this share and these lines is out of date.
SLACK, SLACK_LINES = 0.1, 300


def test_no_package_has_more_lines_than_its_budget() -> None:
    over = {place: lines for place, lines in sizes().items() if lines > BUDGET.get(place, 0)}

    assert over == {}


def test_a_budget_falls_with_its_package() -> None:
    now = sizes()

    loose = {
        place: now.get(place, 0)
        for place, most in BUDGET.items()
        if place not in now or most > now[place] * (1 + SLACK) + SLACK_LINES
    }

    assert loose == {}


def sizes() -> dict[str, int]:
    """Return the lines of code of each package and room; files beside the rooms are those of the backend."""
    packages = [place for place in BUDGET if not place.startswith(_BACKEND)]
    folders = [path for path in (REPOSITORY / _BACKEND).iterdir() if path.is_dir() and path.name != "__pycache__"]
    rooms = [str(folder.relative_to(REPOSITORY)) for folder in folders]
    found = {place: lines(list((REPOSITORY / place).rglob("*"))) for place in (*packages, *rooms)}
    return found | {_BACKEND: lines(list((REPOSITORY / _BACKEND).iterdir()))}


def test_objects_are_changed_by_themselves() -> None:
    found = {place: sum(1 for file in files for _ in outside_assignments(file)) for place, files in modules().items()}

    assert {place: count for place, count in found.items() if count > OUTSIDE.get(place, 0)} == {}


def modules() -> dict[str, list[Path]]:
    """Return the Python files of each package and room."""
    places = [place for place in sizes() if place != _BACKEND]
    return {place: sorted((REPOSITORY / place).rglob("*.py")) for place in places}


def outside_assignments(file: Path) -> Iterator[ast.Attribute]:
    """Yield the attributes of other objects than ``self`` to which a file assigns."""
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for one in ast.walk(target):
                    stored = isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store)
                    if stored and not (isinstance(one.value, ast.Name) and one.value.id in ("self", "cls")):
                        yield one


def lines(files: list[Path]) -> int:
    code = (file for file in files if file.is_file() and file.suffix in _CODE and "__pycache__" not in file.parts)
    return sum(len(file.read_bytes().splitlines()) for file in code)
