"""The skeleton of the run page's panel of the autopilot: what it does now, its policy, what it did, how to stop it."""

from __future__ import annotations

from dash import html

__all__ = ["badge", "panel"]


def badge() -> html.Button:
    """Return the mark in the top bar that is there while the autopilot is on."""
    return html.Button(id="autopilot-badge", className="chip press", type="button", hidden=True)


def panel() -> html.Section:
    """Return the panel, folded; ``assets/run/autopilot.js`` fills it."""
    fold = html.Button(
        [html.Span(className="icon icon-fold"), "Autopilot"],
        id="autopilot-fold",
        className="fold",
        type="button",
        **{"aria-expanded": "false", "aria-controls": "autopilot-body"},
    )
    stop = html.Button(
        "Stop autopilot",
        id="autopilot-stop",
        className="button",
        type="button",
        title="Nothing more is ordered from now on",
        hidden=True,
    )
    note = html.Span(id="autopilot-note", className="sub", role="status", **{"aria-live": "polite"})
    head = [
        fold,
        html.Span(id="autopilot-mode", className="chip", hidden=True),
        note,
        html.Span(className="grow"),
        stop,
    ]
    return html.Section(
        [html.Div(head, className="panel-head"), html.Div(id="autopilot-body", hidden=True)],
        className="panel",
        id="autopilot-panel",
        # A server that knows nothing of it shows none.
        hidden=True,
    )
