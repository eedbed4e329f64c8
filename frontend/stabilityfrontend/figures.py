"""What the page's scripts need to draw: colours of both themes, the font, what bounds the page. No data of a run."""

from __future__ import annotations

from typing import Any

from stabilityfrontend.theme import FONT, THEMES

__all__ = ["LIMITS", "browser_config"]

#: What bounds the page. Points: redrawing a chart (canvas) takes 0.3 to 2 ms at 1,000 points a line, two a pixel: noise
#: is a band then and not a saw. Rates: the large chart 10 Hz, small ones 20, and 10 ms of drawing a frame, so that a
#: page full of charts still scrolls.
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


def browser_config(version: str) -> dict[str, Any]:
    """Return what the page's scripts need to draw.

    Args:
        version: version of the product, shown at the foot of the page.
    """
    return {
        "version": version,
        "limits": LIMITS,
        "font": FONT,
        "themes": {name: {"colors": table} for name, table in THEMES.items()},
    }
