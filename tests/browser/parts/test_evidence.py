"""What a card says of an incident, by our scripts alone: no server, every text from anywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Page

NASTY = "<img src=x onerror='window.pwned=1'>"
#: A page of a run as far as a card needs it, and a place to draw into.
DRAW = """([incidents, folded]) => {
  const run = window.run = window.run ||
    { ready: true, detectors: { list: [], of: () => null }, config: {}, now: () => 2000 };
  run.evidenceFolds = new Map(folded);
  run.incidents = () => incidents;
  document.body.innerHTML =
    '<div id="incidents"></div><span id="incidents-count"></span><button id="incidents-all"></button>';
  window.stability.drawIncidents(run, false);
  return document.getElementById("incidents").innerText;
}"""
EVIDENCE = {
    "window": {
        "metric": "loss",
        "steps": [198, 199, 200, 201],
        "values": [2.0, 2.1, "NaN", 4.0],
        "level": 2.05,
        "band": [1.9, 2.2],
    },
    "moved_first": [
        {"metric": "grad_norm", "onset_step": 197, "rise_percent": 412.0, "from": 1.0, "to": 5.12},
        {"metric": f"loss/{NASTY}", "onset_step": 200, "rise_percent": None, "from": 2.0, "to": "NaN", "share": 1.0},
    ],
    "nearby": [{"what": "checkpoint", "step": 195, "distance": -5, "text": "a checkpoint was saved at step 195"}],
    "batches": [{"step": 200, "fingerprint": NASTY}],
}
SUGGESTION = {
    "action": "wait",
    "to_step": 150,
    "text": "Wait until step 250.",
    "checklist": ["Look at the batch."],
    "source": "PaLM (arXiv 2204.02311)",
}


def incident(**changes: Any) -> dict[str, Any]:
    return {
        "incident_id": "i-1",
        "kind": "spike",
        "severity": "warning",
        "state": "open",
        "title": "Loss spike at step 200",
        "text": "It rose.",
        "segment": 0,
        "metric": "loss",
        "dataset": None,
        "onset_step": 200,
        "step": 201,
        "peak_step": 201,
        "recovered_step": None,
        "recovery": "pending",
        "opened": 1_000.0,
        "acknowledged_by": None,
        "dead": False,
        "version": 1,
        "evidence": EVIDENCE,
        "suggestion": SUGGESTION,
    } | changes


def draw(page: Page, *incidents: dict[str, Any], folded: Any = ()) -> str:
    return str(page.evaluate(DRAW, [list(incidents), list(folded)]))


def test_the_open_alarm_shows_its_curve_who_moved_first_what_was_near_and_whose_advice_it_is(scripts: Page) -> None:
    words = draw(scripts, incident())
    for expected in (
        "3 steps before", "+412 %", "at the onset", "NaN", "100 %", "5 steps before", "a checkpoint was saved",
        "Look at the batch.", "Wait until step 250.", "arXiv 2204.02311", "usual level 2.05", "onset 200",
    ):  # fmt: skip
        assert expected in words, expected
    assert scripts.locator(".window-chart .usual").count() == 1
    assert scripts.locator(".window-chart .strange").count() == 1


def test_text_from_anywhere_stays_text(scripts: Page) -> None:
    assert NASTY in draw(scripts, incident())
    assert scripts.evaluate("window.pwned") is None
    assert scripts.locator("#incidents img").count() == 0


def test_a_fold_stays_as_people_left_it(scripts: Page) -> None:
    assert "Near the onset" not in draw(scripts, incident(), folded=[["i-1", False]])
    assert "Wait until step 250." in draw(scripts, incident(), folded=[["i-1", False]])
    closed = incident(state="recovered", recovery="fast")
    assert "Near the onset" not in draw(scripts, closed)
    assert "Near the onset" in draw(scripts, closed, folded=[["i-1", True]])


def test_what_is_only_known_stands_apart_and_is_not_counted(scripts: Page) -> None:
    known = incident(incident_id="i-2", kind="level_shift", severity="info", alarm=False, title="The loss fell")
    words = draw(scripts, incident(), known)
    assert "Known or watched, no alarm" in words
    assert "The loss fell" not in words
    assert scripts.inner_text("#incidents-count") == "1 open"
    assert "Nothing has gone wrong so far." in draw(scripts, known)
    said = incident(incident_id="i-3", kind="alert", severity="info", alarm=True, title="The job said so")
    assert "The job said so" in draw(scripts, said)


def test_an_excuse_is_told_where_the_change_is_known(scripts: Page) -> None:
    scripts.evaluate("window.run = undefined")
    excuse = {"explained_by": ["lr_jump: the learning rate went from 0.1 to 0.01"]}
    assert "Explained by: lr_jump: the learning rate went from 0.1 to 0.01." in draw(scripts, incident(evidence=excuse))


def test_what_is_over_and_still_to_be_looked_at_keeps_its_advice(scripts: Page) -> None:
    over = incident(state="recovered", recovery="fast", suggestion=SUGGESTION | {"action": "inspect"})
    assert "Wait until step 250." in draw(scripts, over)
    assert "Wait until step 250." not in draw(scripts, over | {"suggestion": SUGGESTION | {"action": "none"}})


def test_data_sets_that_moved_together_are_named_together(scripts: Page) -> None:
    assert "data sets code, web" in draw(scripts, incident(evidence={"datasets": ["code", "web"]}))
    assert "data sets" not in draw(scripts, incident(evidence={"datasets": ["code"]}))


def test_an_incident_of_an_older_server_is_drawn_without_what_it_lacks(scripts: Page) -> None:
    for evidence in ({}, None, {"window": {"steps": [1]}, "moved_first": "?"}):
        assert "Loss spike at step 200" in draw(scripts, incident(evidence=evidence, suggestion=None))
