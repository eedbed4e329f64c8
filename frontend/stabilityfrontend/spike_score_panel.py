"""SpikeScore on the run page: how often loss and gradient norm jump, as the number that others publish."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dash import html

from stabilityfrontend.controls import totals
from stabilityfrontend.declared import panel
from stabilityfrontend.format import count, plural
from stabilityfrontend.viewer import Api

__all__ = ["spike_score"]

_HOW = (
    "Steps whose value is more than 6 standard deviations above the mean of the 128 points before it / all steps of "
    "the effective timeline (OLMo-core's SpikeScore). Points that are not finite are left out."
)


@panel(page="/runs/{run}", title="SpikeScore")
def spike_score(run: str, api: Api) -> Any:
    """Return the panel."""
    found = api.get("/runs/{run}/spike_score", run=run)
    if not found["metrics"]:
        return html.P("Neither a loss nor a gradient norm is logged so far.", className="sub")
    numbers = [_number(one["metric"], one["metric"], one) for one in found["metrics"]]
    if len(numbers) > 1:
        numbers.append(_number("either", "Either", found["either"]))
    words = (
        "An outlier is more than 6 standard deviations above the mean of the 128 points before it, as OLMo-core "
        "defines it. The score compares runs; it is no alarm."
    )
    return [totals("spike-score", numbers, className="totals"), html.P(words, className="sub")]


def _number(id_: str, label: str, one: Mapping[str, Any]) -> tuple[str, str, str, str, str]:
    if one["share"] is None:
        return id_, label, "–", f"{count(one['steps'])} of the first 128 steps", _HOW
    note = f"{plural(one['outliers'], 'outlier')} in {plural(one['steps'], 'step')}"
    if one["newest_share"] is not None:
        note += f"; {percent(one['newest_share'])} of the newest 10,000"
    if one["last_outlier"] is not None:
        note += f"; last at step {count(one['last_outlier'])}"
    return id_, label, percent(one["share"]), note, _HOW


def percent(share: float) -> str:
    """Return a small share in words: ``0.012 %``."""
    return "0 %" if share == 0 else f"{100 * share:.2g} %"
