"""Names of columns that are more than a metric: those of W&B's charts, which hold several runs, and of TensorBoard's
download of one curve, whose name is in the name of the file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from stabilityplugins.importers.rows.layout import is_axis

__all__ = ["CURVE_COLUMNS", "curve_name", "name_of_file", "side_by_side_runs"]

#: Columns of TensorBoard's downloads.
CURVE_COLUMNS = ("wall time", "step", "value")
#: Between the name of a run and that of its metric in W&B's charts, and at the end of their bounds.
_BETWEEN, _BOUNDS = " - ", ("__MIN", "__MAX")
_TAG = re.compile(r"(?:^|[-_.])tag[-_](?P<tag>.+)$")


def side_by_side_runs(columns: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
    """Return run -> column -> metric of a chart of W&B, {} of another table.

    The bounds of each curve (``__MIN``, ``__MAX``) and W&B's own counts are left out.
    """
    bounds = {column for column in columns if column.endswith(_BOUNDS) and column[: -len(_BOUNDS[0])] in columns}
    shared = [column for column in columns if _BETWEEN not in column and is_axis(column)]
    curves = [column for column in columns if column not in bounds and column not in shared]
    if not curves or not shared or any(_BETWEEN not in column for column in curves):
        return {}
    runs: dict[str, dict[str, str]] = {}
    for column in curves:
        run, _, metric = column.rpartition(_BETWEEN)
        if not metric.startswith("_"):
            runs.setdefault(run.strip(), {column: column for column in shared})[column] = metric.strip()
    return runs if bounds or len(runs) > 1 else {}


def name_of_file(path: Path, columns: Sequence[str]) -> Mapping[str, str]:
    """Return column -> metric of any other table: each by its name, a curve of TensorBoard by that of its file."""
    names = {column: column for column in columns}
    if {column.lower() for column in columns} == {*CURVE_COLUMNS}:
        names |= {column: curve_name(path) for column in columns if column.lower() == "value"}
    return names


def curve_name(path: Path) -> str:
    """Return the metric in the name of a file: ``loss`` of ``run-train-tag-loss.csv``, else the name itself."""
    stem = path.name.split(".")[0] or path.stem
    match = _TAG.search(stem)
    return match["tag"] if match else stem
