"""The skeletons of the run page's panels of detectors (how they are set, trying, saving) and of watched metrics."""

from __future__ import annotations

from typing import Any

from dash import html

__all__ = ["badge", "opener", "panel", "watched"]


def badge() -> html.Button:
    """Return the mark in the top bar that is there while detectors of the run are set otherwise than usual."""
    return html.Button(id="detectors-badge", className="chip press", type="button", hidden=True)


def opener() -> html.Button:
    """Return the button of the incident list that opens the panel."""
    return html.Button(
        "Detectors",
        id="detectors-open",
        className="toggle",
        type="button",
        title="What finds incidents in this run, and how sensitive it is",
        hidden=True,
    )


def panel() -> html.Section:
    """Return the panel, folded; the rows are the script's."""
    return html.Section(
        [
            html.Div(
                [
                    html.Button(
                        [html.Span(className="icon icon-fold"), "Detectors"],
                        id="detectors-fold",
                        className="fold",
                        type="button",
                        **{"aria-expanded": "false", "aria-controls": "detectors-body"},
                    ),
                    html.Span(id="detectors-note", className="sub"),
                ],
                className="panel-head",
            ),
            html.Div(_body(), id="detectors-body", hidden=True),
        ],
        className="panel",
        id="detectors-panel",
        # A server that knows nothing of them shows none.
        hidden=True,
    )


def _body() -> list[Any]:
    return [
        html.Div(id="detectors-rows"),
        html.Div(id="detectors-found", hidden=True),
        html.Div(
            [
                html.Div(id="detectors-result", role="status", hidden=True),
                html.Span(id="detectors-draft", className="sub", role="status", **{"aria-live": "polite"}),
                html.Div(id="detectors-over", className="tool"),
                _button("detectors-try", "Try on this run", "See what would have been found; nothing is changed"),
                _button("detectors-cancel", "Stop trying", "", hidden=True),
                _button("detectors-reset", "Reset to defaults", "Take back everything that was set for this run"),
                _button("detectors-save", "Save", "For what comes from now on; what was found stays", "primary"),
            ],
            className="detectors-foot",
        ),
        html.Div(id="detectors-history"),
    ]


def _button(id_: str, text: str, title: str, tone: str = "", *, hidden: bool = False) -> html.Button:
    return html.Button(text, id=id_, className=f"button {tone}".strip(), type="button", title=title, hidden=hidden)


def watched() -> html.Section:
    """Return the panel of metrics, folded; ``assets/run/watched.js`` fills it."""
    fold = html.Button(
        [html.Span(className="icon icon-fold"), "Watched"],
        id="watched-fold",
        className="fold",
        type="button",
        **{"aria-expanded": "false", "aria-controls": "watched-body"},
    )
    return html.Section(
        [
            html.Div([fold, html.Span(id="watched-note", className="sub")], className="panel-head"),
            html.Div(id="watched-body", hidden=True),
        ],
        className="panel",
        id="watched-panel",
        # A server that knows nothing of it shows none.
        hidden=True,
    )
