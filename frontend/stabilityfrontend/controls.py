"""Parts that several pages use: rows of exclusive buttons, heads of panels."""

from __future__ import annotations

from typing import Any

from dash import html

__all__ = ["panel_head", "segmented"]


def segmented(id_: str, label: str, options: list[tuple[str, str]]) -> html.Div:
    """Return a row of buttons of which one is on; the first is on at the start.

    Args:
        id_: the element's id.
        label: what the row chooses, for those who can't see it.
        options: (value, text) of each button.
    """
    return html.Div(
        [
            html.Button(
                text,
                type="button",
                className="on" if index == 0 else "",
                **{"data-value": value, "aria-pressed": "true" if index == 0 else "false"},
            )
            for index, (value, text) in enumerate(options)
        ],
        id=id_,
        className="segmented",
        role="group",
        **{"aria-label": label},
    )


def panel_head(title: str, *parts: Any, title_id: str = "") -> html.Div:
    """Return the head of a panel: its title, then whatever else is in that line."""
    heading = html.H2(title, id=title_id) if title_id else html.H2(title)
    return html.Div([heading, *parts], className="panel-head")
