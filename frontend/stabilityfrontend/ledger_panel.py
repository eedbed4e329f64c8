"""The ledger of rollbacks on the run page: headline numbers, and the table that ``rollback_cost.js`` fills."""

from __future__ import annotations

from dataclasses import dataclass

from dash import html

from stabilityfrontend.controls import panel_head

__all__ = ["TOTALS", "Total", "panel"]


@dataclass(frozen=True)
class Total:
    """One headline number of the ledger.

    Args:
        id: last part of the element's id.
        label: words above the number.
        how: exactly how it is computed, shown under the pointer.
    """

    id: str
    label: str
    how: str


#: What they mean is docs/api.md's ("Ledger"); these are its words for people who have no time to look there.
TOTALS = (
    Total(
        "goodput",
        "Goodput",
        "Effective time / wall time. Effective: the time of the steps that the model in memory still has. Wall time: "
        "from the first logged row to the last one, or to now while the job runs.",
    ),
    Total(
        "ettr",
        "ETTR",
        "Effective training time ratio: effective time / (start-up + wall time). Start-up: from the start of the first "
        "process to its first row, so this is never above the goodput. Waiting in a queue before the first process is "
        "not seen.",
    ),
    Total(
        "steps",
        "Steps lost",
        "Training steps that rollbacks killed, by their numbers. A step that died counts once, for the rollback that "
        "killed it.",
    ),
    Total(
        "wall",
        "Wall time lost",
        "Time of the steps that were lost, by the log times of the job. Below it the downtime: from the last row of "
        "the old segment to the first row of the new one.",
    ),
    Total(
        "gpu",
        "GPU-hours lost",
        "(Wall time lost + downtime) x GPUs: those that agents report, at most one a rank; one a rank where no agent "
        "sees any.",
    ),
    Total("data", "Batches skipped", "Sum of skip_batches of all rollbacks: data that the job skipped on command."),
)


def panel() -> html.Section:
    """Return the region; it is shown when there is something to account for."""
    return html.Section(
        [
            panel_head(
                "Ledger of rollbacks",
                html.Span(id="ledger-note", className="sub"),
                html.Span(className="grow"),
                html.Button("Show all", id="ledger-all", className="toggle", type="button", hidden=True),
            ),
            html.Div([_total(total) for total in TOTALS], id="ledger-totals", className="totals", hidden=True),
            html.Div(id="ledger", className="wide-table"),
        ],
        className="panel",
        id="ledger-panel",
        # A server that keeps no ledger shows none.
        hidden=True,
    )


def _total(total: Total) -> html.Div:
    return html.Div(
        [
            html.Div(total.label, className="kpi-label"),
            html.Div([html.Span("–", className="kpi-value"), html.Span(className="kpi-unit")], className="kpi-line"),
            html.Div(className="kpi-note"),
        ],
        id=f"total-{total.id}",
        className="total",
        title=total.how,
        tabIndex="0",
    )
