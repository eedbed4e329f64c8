"""The run's data, on its page: repeats, how often samples were seen, the share of new ones, and missing data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from dash import html

from stabilityfrontend.declared import panel
from stabilityfrontend.format import count, plural, sentence
from stabilityfrontend.tables import plain_table

__all__ = ["data"]

#: Steps shown on either side of a repeat, at least; else this share of its length.
AIR_STEPS, AIR_SHARE = 20, 0.4
#: Labels of the bars.
_NEW = "share of samples that no earlier step saw (full height: 100 %)"
#: Kind of repeat -> its words, and its colour.
_WHATS = {
    "again": ("Known batches", "warning"),
    "samples": ("Known samples", "warning"),
    "same": ("One batch", "warning"),
    "declared": ("Epoch, declared", "quiet"),
    "pass": ("Epoch", "quiet"),
}
_REPEAT_HEADS = (
    ("", "", False),
    ("What", "Whole batches by their ids, or samples in other batches", False),
    ("Steps", "The first step with known data, and the newest one", True),
    ("Came before", "The step whose data the first one was, and how many steps back the order is the same", True),
    ("Amount", "Steps, and tokens or samples where they are known; or the share of the samples", True),
    ("Since", "What had happened last", False),
)
_SET_HEADS = (
    ("Data set", "As named by run.data(ids={name: ids})", False),
    ("Samples seen", "On the effective path; estimated where not every sample is counted", True),
    ("Unique", "Different ones among them", True),
    ("Seen once", "Share of the unique ones that was seen once", True),
    ("Twice", "Share of the unique ones that was seen twice", True),
    ("3 × or more", "Share of the unique ones that was seen three times or more", True),
    ("Counted", "All, or one of so many samples; the shares are known to this (one standard deviation)", True),
)


@panel(page="/runs/{run}", title="Data")
def data(run: str, api: Any) -> Any:
    """Return the panel."""
    found = api.get("/runs/{run}/batches", run=run)
    others = [_other_run(run, one) for one in found["other_runs"]]
    if not found["steps"]:
        unsaid = html.P(
            "The job does not say what its steps see. With run.data(step, ids=...) data that is seen twice is found "
            "here: batches and samples that come again, and how many samples are new.",
            className="sub",
        )
        return html.Div([*others, unsaid])
    notes = [html.P(sentence(note), className="panel-note data-note") for note in found["notes"]]
    summary = html.P(_summary(found), className="panel-note", **{"data-data-steps": found["steps"]})
    parts: list[Any] = [*others, summary, *notes]
    if found["new_samples"]:
        parts.append(_strip(found["new_samples"]))
    if found["datasets"]:
        parts.append(
            plain_table(_SET_HEADS, [_dataset(one) for one in found["datasets"]], "data-datasets", "data-seen")
        )
    if found["repeats"]:
        parts.append(
            plain_table(_REPEAT_HEADS, [_repeat(one) for one in found["repeats"]], "data-repeats", "data-seen")
        )
    return parts


def _summary(found: Mapping[str, Any]) -> list[Any]:
    each = [plural(found["samples"], "sample")] if found["samples"] else []
    each += [plural(found["parts"], "part")] if found["parts"] != 1 else []
    made = f"{' in '.join(each) or 'one batch'} a step, told apart by {found['of']}"
    known = found["repeated"]
    again = f"The batches of {plural(known, 'step')} had come before" if known else "No batch came twice"
    return [html.B(f"{plural(found['steps'], 'step')} with ids"), f" to step {count(found['last'])} ({made}). {again}."]


def _other_run(run: str, one: Mapping[str, Any]) -> html.P:
    """Return the line about a run that had this one's data, with a link that lays the two over each other."""
    shift = one["first"] - one["other_step"]
    asked = urlencode([("run", run), ("run", one["other_run"]), *([("shift", 0), ("shift", shift)] if shift else [])])
    what = "which its weights have learned" if one["learned"] else "in its order"
    where = f"from its step {count(one['other_step'])} on" if shift else "at the same steps"
    how = "their batch ids are equal" if one["by"] == "ids" else f"by the losses alone, r = {one['r']:.2f}"
    return html.P(
        [
            html.B(f"Since step {count(one['first'])} this run has the data of "),
            html.A(one["other_name"], href=f"/runs/{quote(one['other_run'])}"),
            f" {where}, {what} ({how}). ",
            html.A("compare", href=f"/compare?{asked}", className="flag", title="Lay the two over each other"),
        ],
        className="panel-note",
        **{"data-other-run": one["other_run"]},
    )


def _strip(bins: list[Mapping[str, Any]]) -> html.Div:
    """Return a bar for each bin: the share of its samples that no earlier step had seen."""
    bars = [
        html.I(
            style={"height": f"{max(2.0, 100 * one['new']):.0f}%"},
            title=f"steps {count(one['first'])} to {count(one['last'])}: {_percent(one['new'])} of the samples are new",
            className="low" if one["new"] < 0.5 else "",
            **{"data-new": one["new"]},
        )
        for one in bins
    ]
    ends = [html.Span(f"step {count(bins[0]['first'])}"), html.Span(_NEW), html.Span(count(bins[-1]["last"]))]
    return html.Div([html.Div(bars, className="new-bars"), html.Div(ends, className="new-ends sub")], id="new-samples")


def _dataset(one: Mapping[str, Any]) -> html.Tr:
    about = "" if one["one_in"] == 1 else "≈ "
    counted = "all" if one["one_in"] == 1 else [f"1 of {count(one['one_in'])}", _sub(f"± {_percent(one['error'])}")]
    numbers = [
        f"{about}{count(one['seen'])}",
        f"{about}{count(one['distinct'])}",
        _percent(one["once"]),
        _percent(one["twice"]),
        _percent(one["more"]),
        counted,
    ]
    return html.Tr(
        [html.Td(one["name"] or "all data"), *(html.Td(number, className="num") for number in numbers)],
        **{"data-dataset": one["name"]},
    )


def _repeat(one: Mapping[str, Any]) -> html.Tr:
    first, last = one["onset"], max(one["newest"], one["onset"] + 10)
    air = max(AIR_STEPS, AIR_SHARE * (last - first))
    words, look = _WHATS[one["what"]]
    lasts = "to" if one["ended"] is not None else "so far to"
    back = "in another order" if one["offset_steps"] is None else f"{count(one['offset_steps'])} steps back"
    if one["what"] == "same":
        back = "at each step"
    if one["steps"] is None:
        much: Any = [_percent(one["share"]), _sub("of the samples")]
    else:
        amount = one["tokens"] or one["samples"]
        unit = "tokens" if one["tokens"] else "samples"
        much = [f"{count(one['steps'])} steps", _sub(f"{count(amount)} {unit}") if amount else None]
    show = html.A("show", href=f"?from={max(0, round(first - air))}&to={round(last + air)}", className="flag",
                  title="Show its steps in the chart")  # fmt: skip
    return html.Tr(
        [
            html.Td(show),
            html.Td([html.Span(words, className=f"pill {look}"), _sub(one["dataset"]) if one["dataset"] else None]),
            html.Td([html.B(count(first)), _sub(f"{lasts} {count(one['newest'])}")], className="num"),
            html.Td([count(one["earlier_step"]), _sub(back)], className="num"),
            html.Td(much, className="num"),
            html.Td(one["since"]),
        ],
        **{"data-repeat": one["onset"], "data-what": one["what"]},
    )


def _sub(words: str) -> html.Div:
    return html.Div(words, className="sub")


def _percent(share: float) -> str:
    """Return a share in percent, small ones with a digit more."""
    percent = 100 * share
    return f"{percent:.0f} %" if percent >= 10 or percent == 0 else f"{percent:.2g} %"
