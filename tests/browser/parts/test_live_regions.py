"""What live data draws again stays where it is: clicks, focus, selections and folds survive updates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

#: A card with an open spike changed 20 times a second from now on; what its button did is counted.
LIVE_CARD = """() => {
  const S = window.stability;
  window.acted = 0;
  window.updates = 0;
  const spike = { incident_id: "i-1", kind: "spike", severity: "critical", state: "open", title: "Loss spike", text: "",
    segment: 0, metric: "loss", onset_step: 200, step: 201, opened: 1000, version: 1, evidence: {
      window: { metric: "loss", steps: [199, 200, 201], values: [2, 2, 4], level: 2, band: [1.9, 2.1] } },
    actions: ["acknowledge", "roll_back"], suggestion: { action: "roll_back", to_step: 150, text: "Roll back." } };
  window.listed = [spike];
  const run = { ready: true, evidenceFolds: new Map(), detectors: { list: [], of: () => null },
    config: {}, now: () => 2000, incidents: () => [...window.listed], dirty: () => {}, zoomTo: () => {},
    openRollback: () => (window.acted += 1) };
  document.body.innerHTML =
    '<div id="incidents"></div><span id="incidents-count"></span><button id="incidents-all"></button>';
  const update = () => {
    Object.assign(spike, { version: spike.version + 1, text: `Update ${(window.updates += 1)}.` });
    S.drawIncidents(run, false);
  };
  update();
  clearInterval(window.live);
  window.live = setInterval(update, 50);
}"""
BUTTON = "[data-rollback='i-1']"


@pytest.fixture
def card(pages: Page) -> Page:
    pages.evaluate(LIVE_CARD)
    return pages


def wait_for_updates(page: Page, count: int = 3) -> None:
    page.wait_for_function("([before, count]) => updates >= before + count", arg=[page.evaluate("updates"), count])


def test_a_click_with_updates_between_press_and_release_acts_once_and_the_focus_stays(card: Page) -> None:
    card.hover(BUTTON)
    card.mouse.down()
    wait_for_updates(card)
    card.mouse.up()
    wait_for_updates(card)
    assert card.evaluate("acted") == 1
    assert card.evaluate(f'document.activeElement === document.querySelector("{BUTTON}")')


def test_a_key_held_down_during_updates_acts_once(card: Page) -> None:
    card.focus(BUTTON)
    card.keyboard.down("Space")
    wait_for_updates(card)
    card.keyboard.up("Space")
    assert card.evaluate("acted") == 1


def test_a_selection_survives_updates(card: Page) -> None:
    card.evaluate("getSelection().selectAllChildren(document.querySelector('.suggestion'))")
    wait_for_updates(card)
    assert card.evaluate("getSelection().toString()") == "Roll back."


def test_a_card_that_another_one_comes_above_stays_the_same_and_keeps_the_focus(card: Page) -> None:
    card.focus(BUTTON)
    card.evaluate(
        """() => {
          window.same = document.activeElement;
          window.listed.unshift({ ...window.listed[0], incident_id: "i-2", kind: "divergence", opened: 1500 });
        }"""
    )
    wait_for_updates(card)
    order = card.eval_on_selector_all("#incidents article", "all => all.map((one) => one.dataset.incident)")
    assert order == ["i-2", "i-1"]
    assert card.evaluate("document.activeElement === same && same.isConnected")


def test_what_an_update_brings_is_what_a_drawing_from_nothing_brings(pages: Page) -> None:
    differ = pages.evaluate(
        """() => {
          const S = window.stability;
          const random = ((seed) => () => (seed = (seed * 16807) % 2147483647) / 2147483647)(7);
          const pick = (list) => list[Math.floor(random() * list.length)];
          const branch = (depth) => (random() < 0.3 ? pick("xyz") : tree(depth - 1));
          const tree = (depth) => S.h(
            pick(["div", "p", "button", "a", "span"]),
            { class: pick(["", "one", "two x"]), title: pick([null, "t"]), href: pick([null, "/a", "/b"]),
              data: random() < 0.4 ? { about: pick("abcd") } : {},
              style: random() < 0.3 ? { left: pick(["1px", "2px"]) } : {} },
            depth ? Array.from({ length: Math.floor(4 * random()) }, () => branch(depth)) : "leaf",
          );
          const live = document.createElement("div");
          const differ = [];
          for (let round = 0; round < 300; round += 1) {
            const wanted = Array.from({ length: Math.floor(5 * random()) }, () => tree(3));
            const anew = document.createElement("div");
            anew.append(...wanted.map((one) => one.cloneNode(true)));
            S.patch(live, wanted);
            if (!live.isEqualNode(anew)) differ.push([live.innerHTML, anew.innerHTML]);
          }
          return differ;
        }"""
    )
    assert differ == []


def test_handlers_are_those_of_the_newest_drawing(pages: Page) -> None:
    said = pages.evaluate(
        """() => {
          const S = window.stability;
          const said = [];
          const place = document.createElement("div");
          const draw = (words, on) => S.patch(place, S.h("button", { data: { about: "a" }, ...on }, words));
          draw("first", { onclick: () => said.push("first"), onfocus: () => said.push("focus") });
          const button = place.firstChild;
          draw("second", { onclick: () => said.push("second") });
          button.click();
          button.dispatchEvent(new Event("focus"));
          draw("third");
          button.click();
          return [said, button === place.firstChild, button.textContent];
        }"""
    )
    assert said == [["second"], True, "third"]


def test_a_button_that_comes_before_another_one_of_the_same_incident_does_not_take_its_place(pages: Page) -> None:
    kept = pages.evaluate(
        """() => {
          const S = window.stability;
          const place = document.createElement("div");
          const button = (what) => S.h("button", { data: { [what]: "i-1" } }, what);
          S.patch(place, button("rollback"));
          const there = place.firstChild;
          S.patch(place, button("less"), button("rollback"));
          return [there === place.lastChild, [...place.children].map((one) => one.textContent)];
        }"""
    )
    assert kept == [True, ["less", "rollback"]]
