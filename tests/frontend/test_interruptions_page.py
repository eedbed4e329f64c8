"""The fleet's page as a function of the API's answers and of its address."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from dash import html

from stabilityfrontend import format as words
from stabilityfrontend.fleet.down_and_lost import lost_to_rollbacks
from stabilityfrontend.fleet.interruptions_page import interruptions_page
from stabilityfrontend.parts import plain
from stabilityfrontend.viewer import Theme

ROWS = [
    {"category": "gpu_hbm3", "label": "GPU HBM3 Memory", "count": 1, "share": 0.5, "time_lost_s": 60.0,
     "visible": "direct", "sees": "Xid 94", "published": 72, "published_share": 0.17},
    {"category": "unknown", "label": "Unknown", "count": 1, "share": 0.5, "time_lost_s": 60.0, "visible": "no",
     "sees": "", "published": None, "published_share": None},
]  # fmt: skip
STOP = {
    "id": "n-1", "run_id": "r", "run_name": "7b", "project": "", "incident_id": "i-1", "incidents": ["i-1", "i-2"],
    "category": "gpu_hbm3", "seen_category": "unknown", "label": "GPU HBM3 Memory", "since": 1000.0, "what": "death",
    "time_lost_s": 60.0, "downtime_s": 50.0, "resumed": None, "resumed_step": None, "step": 7, "redone_steps": 0,
    "redone_s": 0.0, "ranks": [3], "nodes": ["gpu-1"], "gpus": ["GPU-1"], "evidence": ["Xid 94"], "confidence": "low",
    "unsure": "it came late", "set_by": {"who": "alice", "time": 1500.0}, "counted": True, "open": True,
    "deleted": False,
}  # fmt: skip
DATA = {
    "runs": 1, "count": 1, "not_counted": 2, "time_lost_s": 60.0, "running_s": 540.0, "mtbi_s": 540.0, "gpu_hours": 4.0,
    "per_1000_gpu_hours": None, "projects": ["llm"], "interruptions": [STOP], "table": ROWS, "down": [STOP],
    "now": 2000.0,
    "published": {"count": 419, "days": 54, "gpus": 16384, "source": "arXiv 2407.21783", "note": "Shares of counts."},
}  # fmt: skip
GPU = {"uuid": "GPU-1", "name": "H100", "node": "a", "index": 0, "count": 3, "runs": 2, "recent": 1, "last": 1990.0}
GPU |= {"faults": [{"run_id": "r", "incident_id": "i-1", "title": "Xid 94", "what": "xid", "class": "reset"}]}
ONCE = GPU | {"uuid": "GPU-0", "count": 9, "runs": 1, "recent": 0, "faults": []}


SUM = {"rollbacks": 2, "steps_lost": 80, "wall_lost_s": 8.0, "downtime_s": 180.0, "gpu_hours_lost": 12.5}
LOST = SUM | {
    "days": 30, "month": SUM | {"gpu_hours_lost": 3.25}, "month_began": 0.0, "run_count": 1, "unknown": 1,
    "runs": [SUM | {"run_id": "r", "run_name": "7b", "project": "", "last": 1500.0, "deleted": False}],
}  # fmt: skip


class Answers:
    """An API that answers with what it was given, and keeps what it was asked."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data
        self.asked: dict[str, Any] = {}

    def get(self, path: str, **given: Any) -> Any:
        self.asked[path] = given
        return {"/gpus": {"gpus": [ONCE, GPU]}, "/rollback_costs": LOST}.get(path, self.data)


def nodes(tree: Any) -> Iterator[Any]:
    """Yield every component, text among them."""
    for one in tree if isinstance(tree, list) else [tree]:
        yield one
        if isinstance(one, dict):
            yield from nodes(one["props"].get("children"))


def shown(data: dict[str, Any] = DATA, **query: str) -> tuple[str, dict[str, Any]]:
    """Return all text of the page, and the components that have an id."""
    found = list(nodes(plain(interruptions_page(Answers(data), query), Theme("dark"))))  # type: ignore[arg-type]
    texts = [one for one in found if isinstance(one, str)]
    return "".join(texts), {
        one["props"]["id"]: one["props"] for one in found if isinstance(one, dict) and "id" in one["props"]
    }


def test_the_table_stands_beside_the_published_one_and_few_hours_say_nothing() -> None:
    text, _ = shown()
    for expected in (
        "17 %",
        "not in it",
        "419 unexpected interruptions",
        "10 % of the time",
        "too few to say",
        "2 by hand",
    ):
        assert expected in text, expected


def test_a_fleet_without_gpus_has_no_gpu_hours() -> None:
    text, _ = shown(DATA | {"gpu_hours": 0.0})
    assert "no GPU was seen" in text
    assert "too few to say" not in text


def test_a_stop_by_hand_is_not_lost_time_that_counts_on() -> None:
    by_hand = STOP | {"category": "user_stop", "counted": False, "time_lost_s": 0.0, "downtime_s": 0.0}
    _, parts = shown(DATA | {"interruptions": [by_hand]})
    (row,) = parts["fleet-list"]["rowData"]
    assert (row["cells"]["lost"]["text"], row["cells"]["lost"]["sub"]) == ("–", "by hand, not counted")


def test_gpus_that_do_it_again_come_first() -> None:
    _, parts = shown()
    assert [row["gpu"] for row in parts["fleet-gpus"]["rowData"]] == ["GPU-1", "GPU-0"]
    assert [row["cells"]["gpu"].get("tone") for row in parts["fleet-gpus"]["rowData"]] == ["critical", None]


def test_an_interruption_that_is_open_shows_what_is_known_and_who_corrected_it() -> None:
    text, parts = shown(open="n-1")
    for expected in ("Set by alice, ", "seen as unknown", "Xid 94", "It came late.", "a process died", "incident 2"):
        assert expected in text, expected
    (row,) = parts["fleet-list"]["rowData"]
    assert (row["who"], row["cells"]["lost"]["sub"], row["cells"]["category"]["sub"]) == (
        "rank 3, gpu-1, GPU-1", "not back yet", "set by alice",
    )  # fmt: skip
    assert "fleet-open" not in shown()[1]


def test_choosing_what_was_seen_takes_a_correction_back() -> None:
    select = shown(open="n-1")[1]["fleet-category"]
    assert select["data-put"] == "/runs/r/incidents/i-1/category"
    options = {option["props"]["children"]: option["props"] for option in select["children"]}
    assert options["Unknown (as seen)"]["value"] == ""
    assert options["GPU HBM3 Memory"]["selected"]


def test_what_is_chosen_stands_in_the_address_and_is_what_the_api_is_asked() -> None:
    api = Answers(DATA)
    interruptions_page(api, {"days": "all", "project": "llm"})  # type: ignore[arg-type]
    assert api.asked["/interruptions"] == {"days": None, "project": "llm"}
    interruptions_page(api, {"days": "4'"})  # type: ignore[arg-type]
    assert api.asked["/interruptions"] == {"days": "30", "project": None}


def test_no_interruption_is_said_in_words() -> None:
    text, parts = shown(DATA | {"interruptions": [], "runs": 0}, days="7", project="nobody's")
    assert "There is no run in the last 7 days in project “nobody's”." in text
    assert "fleet-list" not in parts


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (words.ranks([5]), "rank 5"),
        (words.ranks([4, 0, 1, 2, 6, 7, 9, 11]), "ranks 0–2, 4, 6, 7 and 2 more"),
        (words.names(["a", "b", "c"], 1), "a and 2 more"),
        (words.duration(0.25), "250 ms"),
        (words.duration(61), "1 min 01 s"),
        (words.duration(90061), "1 d 1 h"),
        (words.percent(0.001), "< 1 %"),
        (words.number(1234.5), "1,234"),
        (words.number(0.012345), "0.01235"),
        (words.sentence("it came late"), "It came late."),
        (words.plural(1, "step"), "1 step"),
        (words.moment(None), "–"),
    ],
)
def test_numbers_are_written_as_people_read_them(given: str | html.Time, expected: str) -> None:
    assert given == expected


def test_rollbacks_on_machines_without_a_gpu_cost_no_gpu_hours() -> None:
    bare = SUM | {"gpu_hours_lost": 0.0}
    lost = LOST | bare | {"month": bare, "runs": [LOST["runs"][0] | bare]}
    text = str(plain(lost_to_rollbacks(lost), Theme("dark")))
    assert text.count("'–'") == 3


def test_what_is_down_stands_first_and_what_rollbacks_cost_names_this_month() -> None:
    text, _ = shown()
    assert text.index("Down now") < text.index("Lost to rollbacks") < text.index("What interrupted training")
    assert "lost so far" in text
    assert "GPU-hours this month3.25" in text
    assert "1 run still to be added up" in text
    assert "1 run that stopped over a day ago" in shown(DATA | {"now": 200_000.0})[0]


def test_categories_without_a_case_are_folded() -> None:
    rows = [*ROWS, ROWS[0] | {"category": "nic", "label": "NIC", "count": 0, "share": 0.0}]
    text, _ = shown(DATA | {"table": rows})
    assert text.index("1 category without a case") < text.index("NIC")
