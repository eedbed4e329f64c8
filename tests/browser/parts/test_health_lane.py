"""The lane of events under the large chart, without a server."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from stabilityfrontend.served import ASSETS

if TYPE_CHECKING:
    from playwright.sync_api import Page


@pytest.fixture(scope="module")
def scripts(pages: Page) -> Page:
    """The page with our modules: what these laws are about keeps nothing, one document is enough for all."""
    pages.add_style_tag(content=ASSETS.joinpath("styles/health.css").read_text())
    return pages


@pytest.mark.parametrize(("coarse", "least"), [(True, 24), (False, 17)])
def test_marks_on_several_lines_are_as_high_as_a_finger_and_lie_in_the_lane(
    scripts: Page, coarse: bool, least: int
) -> None:
    lane, marks = scripts.evaluate(
        """(coarse) => {
      const asked = window.matchMedia;
      window.matchMedia = (query) => ({ matches: coarse && query === "(pointer: coarse)" });
      document.body.innerHTML = "<style>* { box-sizing: border-box; }</style><div class='health-lane'></div>";
      document.querySelector("div").id = "health-lane";
      const one = (kind) => ({ kind, incident_id: kind, state: "open", onset_step: 500, opened: 900, evidence: {} });
      const incidents = ["hang", "agent_lost", "process_death"].map(one);
      const lane = new stability.HealthLane({
        id: "r", view: () => ({ incidents }), forkList: [], lastStep: () => 1000, now: () => 1000,
        settings: { x: "step" }, derived: { ready: () => false },
      });
      lane.draw({ place: (step) => step }, [0, 1000], 60, 500);
      window.matchMedia = asked;
      const box = (element) => element.getBoundingClientRect();
      const sides = (element) => [box(element).top, box(element).bottom];
      return [sides(lane.place), [...document.querySelectorAll("a.lane-mark")].map(sides)];
    }""",
        coarse,
    )

    assert [bottom - top >= least for top, bottom in marks] == [True] * 3
    assert all(before[1] < after[0] for before, after in pairwise(marks))
    assert lane[0] < marks[0][0]
    assert marks[-1][1] < lane[1]


def test_a_mark_of_a_gpus_fault_names_the_xid_that_its_title_names(scripts: Page) -> None:
    words = scripts.evaluate(
        """() => {
      document.body.innerHTML = "<div class='health-lane' id='health-lane'></div>";
      const fault = { kind: "gpu_fault", state: "open", onset_step: 500, opened: 900, evidence: { xids: [13, 79] } };
      const named = { ...fault, incident_id: "a", title: "GPU 0 of n: Xid 79: the GPU has fallen off the bus" };
      const lane = new stability.HealthLane({
        id: "r", view: () => ({ incidents: [named] }), forkList: [], lastStep: () => 1000, now: () => 1000,
        settings: { x: "step" }, derived: { ready: () => false },
      });
      lane.draw({ place: (step) => step }, [0, 1000], 60, 500);
      return document.querySelector("a.lane-mark").innerText;
    }"""
    )

    assert "Xid 79" in words
