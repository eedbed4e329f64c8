"""Common parts of charts: colours of both themes, the font, bounds of the page, a template for Plotly. No data."""

from __future__ import annotations

from typing import Any

from stabilityfrontend.theme import FONT, THEMES

__all__ = ["LIMITS", "browser_config", "first_requests", "template"]

#: Bounds of the page. Points: redrawing a chart (canvas) takes 0.3 to 2 ms at 1,000 points a line, two a pixel: noise
#: is a band then and not a saw. Rates: the large chart 10 Hz, small ones 20, and 10 ms of drawing a frame, so that a
#: page full of charts still scrolls.
LIMITS: dict[str, int] = {
    "focus_points": 2000,
    "panel_points": 1000,
    "entry_points": 6000,
    "live_metrics": 200,
    "lines": 8,
    "focus_interval_ms": 100,
    "panel_interval_ms": 50,
    "frame_budget_ms": 10,
    "drawn_records": 512,
}


#: Names that a run's loss has, the likeliest first.
LOSSES = ("loss", "train/loss", "train_loss")


def browser_config(version: str) -> dict[str, Any]:
    """Return the drawing settings of the page's scripts.

    Args:
        version: version of the product, shown at the foot of the page.
    """
    return {
        "version": version,
        "limits": LIMITS,
        "font": FONT,
        "themes": {name: {"colors": table} for name, table in THEMES.items()},
    }


def first_requests() -> dict[str, Any]:
    """Return the metrics that the page's head requests before its scripts are there (``assets/preload.js``).

    The large chart's own metric is unknown then: the usual names of a loss are requested, and the run's headline.
    """
    return {
        "losses": LOSSES,
        "fine": [*LOSSES, "grad_norm"],
        "points": {"fine": LIMITS["focus_points"], "panel": LIMITS["panel_points"]},
    }


def template(theme: str) -> dict[str, Any]:
    """Return the Plotly template of figures that are made in Python: fonts, colours and axes of our own charts.

    Args:
        theme: ``dark`` or ``light``.
    """
    colors = THEMES[theme]
    axis = {
        "color": colors["muted"],
        "gridcolor": colors["grid"],
        "linecolor": colors["border"],
        "zeroline": False,
        "ticks": "",
        "automargin": True,
        "title": {"font": {"size": 11}},
    }
    tip = {"family": FONT, "size": 12, "color": colors["text"]}
    return {
        "layout": {
            "paper_bgcolor": colors["panel"],
            "plot_bgcolor": colors["panel"],
            "font": {"family": FONT, "size": 11, "color": colors["muted"]},
            "title": {"font": {"size": 13, "color": colors["text"]}},
            "hoverlabel": {"bgcolor": colors["raised"], "bordercolor": colors["strong"], "font": tip},
            "colorway": colors["series"],
            "margin": {"l": 50, "r": 12, "t": 12, "b": 36},
            "separators": ".,",
            "xaxis": axis | {"showgrid": False, "showline": True},
            "yaxis": axis,
        }
    }
