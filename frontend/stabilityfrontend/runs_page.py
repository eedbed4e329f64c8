"""The skeletons of the list of runs, of the page where a key is pasted, and of an address that means nothing."""

from __future__ import annotations

from dash import html

from stabilityfrontend.controls import frame, more_panels
from stabilityfrontend.declared import page

__all__ = ["login_page", "missing_page", "runs_page"]


@page("/", name="Runs", order=0, live="runs")
@page("/runs", name="Runs", live="runs")
def runs_page() -> html.Div:
    """Return the list of runs: a table, and a place for the words that stand there while it is empty."""
    heads = ["", "Run", "Status", "Step", "Loss", "Last 200 steps", "Incidents", "Rollbacks", "Updated"]
    numeric = {"Step", "Loss", "Incidents", "Rollbacks", "Updated"}
    head = [
        html.Th(head or html.Span("Choose", className="unseen"), className="num" if head in numeric else "")
        for head in heads
    ]
    # The field itself is made by the script: what is typed in it is of no interest to Dash.
    tools = [html.Div(id="runs-search"), html.Span(className="grow"), html.Div(id="runs-compare")]
    table = [
        html.Div(tools, className="panel-head", id="runs-head"),
        html.Table([html.Thead(html.Tr(head)), html.Tbody(id="runs-body")], className="table runs", id="runs-table"),
        # How many of them are shown, and a button for more (assets/runs/runs_page.js).
        html.Div(id="runs-more", className="runs-more", hidden=True),
        html.Div(id="runs-empty", hidden=True),
    ]
    bar = [
        html.H1("Runs", className="crumb-here"),
        html.Span(id="runs-count", className="chip"),
        html.Span(className="grow"),
        html.Span(id="live-pill", className="pill quiet"),
    ]
    return frame(bar, html.Main([html.Section(table, className="panel"), more_panels()], className="list"))


@page("/login", name="Login", live="login")
def login_page() -> html.Div:
    """Return the page where an API key is pasted."""
    return html.Div(
        html.Form(
            [
                html.Div([html.Span(className="mark"), html.Span("Stabilityboard")], className="login-brand"),
                html.P(
                    "This board is reachable from other machines, so it asks for a key. Whoever runs it makes one with "
                    "“stabilityboard keys”."
                ),
                html.Label("API key", htmlFor="login-key"),
                # Made by the script, so that a key never becomes a property of a component.
                html.Div(id="login-field"),
                html.Div(id="login-error", role="alert"),
                html.Button("Open the board", id="login-send", className="button primary", type="submit"),
            ],
            id="login-form",
            className="panel login",
        ),
        className="page centre",
    )


def missing_page() -> html.Div:
    """Return the page of an address that means nothing here."""
    words = [
        html.H1("Page not found"),
        html.P("Nothing of this board is at this address. The run may be deleted, or the link cut off."),
        html.P(["Search for it with ", html.Kbd("Ctrl K"), ", or go to ", html.A("all runs", href="/"), "."]),
    ]
    return frame([html.Span(className="grow")], html.Main(html.Div(words, className="empty panel"), className="list"))
