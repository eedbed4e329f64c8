"""Figure layouts as pure functions of a theme: plain dicts, no Plotly objects, no data of a run.

The browser gets them once with the page (``browser_config``) and fills in traces, ranges and shapes as points arrive.
So what a chart looks like is decided and tested here, and what it shows lives in ``assets/``.
"""

from __future__ import annotations

from typing import Any

from stabilityfrontend.theme import FONT, THEMES

__all__ = ["CHART_CONFIG", "LIMITS", "browser_config", "focus_layout", "panel_style"]

#: Plotly's own switches. No mode bar (our buttons do it), no tips that a theme can't reach, double-click is ours.
CHART_CONFIG: dict[str, Any] = {
    "displayModeBar": False,
    "displaylogo": False,
    "doubleClick": False,
    "responsive": False,
    "scrollZoom": False,
    "showTips": False,
}

#: What bounds the page. Points: redrawing the focus chart (SVG, Plotly) costs 5.5 ms up to 500 points a line, 9 ms at
#: 2,000; a small chart (canvas) 0.3 to 2 ms at 1,000, two a pixel: noise is a band then and not a saw. Rates: the focus
#: chart 10 Hz, small ones 20, and 10 ms of drawing a frame, so that a page full of charts still scrolls.
LIMITS: dict[str, int] = {
    "focus_points": 2000,
    "panel_points": 1000,
    "entry_points": 6000,
    "live_metrics": 200,
    "cards": 60,
    "lines": 8,
    "focus_interval_ms": 100,
    "panel_interval_ms": 50,
    "frame_budget_ms": 10,
    "drawn_records": 512,
}

#: Share of the focus chart's height: loss above, the gradient norm beneath, a gap between.
_LOSS_DOMAIN = [0.36, 1.0]
_GRAD_DOMAIN = [0.0, 0.27]


def focus_layout(theme: str) -> dict[str, Any]:
    """Return the layout of the large chart: one shared x axis, two y axes by domain, one overlay for marks.

    One x axis and not two matched ones, because only then does a hover reach both panels.

    Args:
        theme: ``dark`` or ``light``.
    """
    layout = _base(theme)
    layout["margin"] = {"l": 66, "r": 20, "t": 40, "b": 34}
    layout["hoversubplots"] = "axis"
    layout["xaxis"] = _axis(theme, x=True) | {"anchor": "y2", "domain": [0, 1]}
    layout["yaxis"] = _axis(theme) | {"domain": _LOSS_DOMAIN}
    layout["yaxis2"] = _axis(theme) | {"domain": _GRAD_DOMAIN, "nticks": 4}
    # The third axis holds what has no height of its own: NaN and Inf marks stand on the floor of the loss panel.
    layout["yaxis3"] = {
        "domain": _LOSS_DOMAIN,
        "overlaying": "y",
        "range": [0, 1],
        "visible": False,
        "fixedrange": True,
        "showgrid": False,
    }
    return layout


def panel_style(theme: str) -> dict[str, Any]:
    """Return what a small chart needs beside the theme's colours: its margins in pixels and its font.

    Args:
        theme: ``dark`` or ``light``.
    """
    return {"margin": {"l": 50, "r": 12, "t": 8, "b": 26}, "font": _base(theme)["font"]}


def browser_config(plotly_url: str, version: str) -> dict[str, Any]:
    """Return everything that the page's scripts need to draw: layouts and colours of both themes, limits, addresses.

    Args:
        plotly_url: same-origin address of plotly.js, loaded by the pages that have charts.
        version: version of the product, shown at the foot of the page.
    """
    return {
        "version": version,
        "plotly": plotly_url,
        "config": CHART_CONFIG,
        "limits": LIMITS,
        "themes": {
            name: {"colors": table, "focus": focus_layout(name), "panel": panel_style(name)}
            for name, table in THEMES.items()
        },
    }


def _base(theme: str) -> dict[str, Any]:
    colors = THEMES[theme]
    return {
        "autosize": False,
        # Opaque: on a transparent paper the spike line gets a white halo in the dark theme.
        "paper_bgcolor": colors["panel"],
        "plot_bgcolor": colors["panel"],
        "font": {"family": FONT, "size": 11, "color": colors["muted"]},
        "showlegend": False,
        "hovermode": "x unified",
        "hoverlabel": {
            "bgcolor": colors["raised"],
            "bordercolor": colors["strong"],
            "font": {"family": FONT, "size": 12, "color": colors["text"]},
            "align": "left",
            "namelength": 42,
        },
        "dragmode": "zoom",
        "separators": ".,",
        "shapes": [],
        "annotations": [],
    }


def _axis(theme: str, *, x: bool = False) -> dict[str, Any]:
    colors = THEMES[theme]
    axis: dict[str, Any] = {
        "color": colors["muted"],
        "gridcolor": colors["grid"],
        "linecolor": colors["border"],
        "zeroline": False,
        "showline": x,
        "ticks": "",
        "tickfont": {"size": 11},
        "automargin": False,
        # Else Plotly measures every label at every drawing, nearly half of its time; axis.js drops what has no room.
        "ticklabeloverflow": "allow",
    }
    if x:
        axis |= {
            "showgrid": False,
            "showspikes": True,
            "spikemode": "across",
            "spikethickness": 1,
            "spikedash": "solid",
            "spikecolor": colors["strong"],
            "spikesnap": "cursor",
            "tickformat": ",d",
            "hoverformat": ",d",
            "unifiedhovertitle": {"text": "step %{x:,d}"},
        }
    else:
        # Drag zooms steps only: a free box lost the line.
        axis |= {"fixedrange": True, "showgrid": True, "hoverformat": ".5~g", "tickformat": "~g"}
    return axis
