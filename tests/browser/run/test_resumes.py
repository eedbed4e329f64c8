"""The table of resumes: one row each, and the mark of its fork on the timeline."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from support.gateway_stack import log_frames
from support.resumes.resumed_job import Resumed
from support.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from browser.run.conftest import Visit
    from support.processes import Server

#: Where pictures go, where somebody wants to see the pages.
FOLDER = os.environ.get("STABILITY_SCREENSHOTS")
FLAGS = "() => (window.stability?.page?.focus?.plot.flags || []).map(({ label }) => label.words)"


def several() -> Resumed:
    """A run that came back well, with a skip that was not done, with batches again, and in another order.

    Its processes report what they compute with, their random states at step 240, and where their loader is.
    """
    made, versions = Resumed(), {"torch": "2.4.0", "cudnn": "90100", "gpu": "8 x NVIDIA H100 80GB HBM3"}
    made.frames.append(made.job.event("environment", entries=versions))
    made.train(1, 240)
    made.frames.append(made.job.event("checkpoint", 240, path="/c/240", rng={"torch": "0a", "cuda": "0b"}))
    made.train(241, 300)
    made.back(240, "d-1", lr_scale=0.5)
    made.frames.append(made.job.event("restored", 240, rng={"torch": "0a", "cuda": "0b"}))
    made.train(241, 420, lr=lambda step: 1.5e-4 * (1 - step / 2_000), numerics=0.003)
    made.back(360, "d-2", skip_batches=30)
    made.frames += [made.job.event("batch", step, position=32 * step) for step in range(361, 601)]
    made.train(361, 600, numerics=0.003, lr=lambda step: 1.5e-4 * (1 - step / 2_000))
    made.another_process()
    changed = {"torch": "2.5.1", "cudnn": "90300", "git": "5d62dcd5" * 5}
    made.frames.append(made.job.event("environment", entries={**versions, **changed}))
    made.frames += [made.job.event("batch", step, position=32 * (step - 560)) for step in range(561, 761)]
    made.train(561, 760, lambda step: step - 500, lr=lambda step: 1.5e-4 * (1 - step / 2_000))
    made.back(700, "d-3")
    made.train(701, 900, lr=lambda step: 1.5e-4 * (1 - step / 2_000))
    return made


@pytest.fixture(scope="module", autouse=True)
def _runs(server: Server) -> None:
    none, one = Resumed(), Resumed()
    none.train(1, 200)
    one.train(1, 300)
    one.back(200)
    one.train(201, 400)
    for run, made in (("r-never-back", none), ("r-back", one), ("r-back-often", several())):
        log_frames(server.url, *made.frames, run_id=run, project=run)
    server.wait_for("/runs/r-back-often", lambda run: run["last_step"] == 900, "the run is there")


def shown(page: Page, name: str, *schemes: Literal["dark", "light"]) -> None:
    if FOLDER:
        for scheme in schemes:
            page.emulate_media(color_scheme=scheme)
            page.locator("#resumes, .part:has-text('No resume')").last.scroll_into_view_if_needed()
            page.wait_for_timeout(600)
            page.screenshot(path=str(Path(FOLDER) / f"{name}-{scheme}.png"))


@pytest.mark.soak
def test_a_row_has_the_verdict_seven_parts_and_a_link_to_its_steps(visit: Visit) -> None:
    page = visit("/runs/r-back-often", width=1440, height=900)
    page.wait_for_selector("#resumes tbody tr")
    rows = page.locator("#resumes tr[data-resume]")
    verdicts = [(row.get_attribute("data-verdict"), row.get_attribute("data-grade")) for row in rows.all()]
    assert verdicts == [
        ("other_order", "differs"),
        ("repeated", "wrong"),
        ("same_data", "wrong"),
        ("same_data", "good"),
    ]
    assert rows.nth(3).locator(".came-back").all_text_contents()[2] == "≠ different"
    assert rows.nth(3).locator(".came-back.ordered").count() == 1
    assert rows.nth(3).locator(".came-back").all_text_contents()[3] == "= equal"
    assert [cell.inner_text().split("\n")[-1] for cell in rows.nth(1).locator("td.mid").all()][4::2] == [
        "began again", "2 changed",
    ]  # fmt: skip
    words = page.locator("#resumes .in-words").nth(1).inner_text()
    assert "The environment is another: cudnn 90100 → 90300; torch 2.4.0 → 2.5.1." in words
    assert "not skipped" in rows.nth(2).inner_text()
    words = page.locator("#resumes .in-words").nth(2).inner_text()
    assert "without the next 30 batches, and the loss goes with" in words
    wait_until(lambda: page.evaluate(FLAGS) == ["R1 ✓", "R2 !", "S1 !", "R3 ≠"], 30, "the flags have their grades")
    shown(page, "resumes", "dark", "light")
    page.click("#resumes .flag >> nth=3")
    wait_until(lambda: "from=" in page.url, 10, "the chart shows its steps")


@pytest.mark.soak
def test_an_exact_replay_reports_that_the_job_is_deterministic(visit: Visit) -> None:
    page = visit("/runs/r-back", width=1440, height=900)
    page.wait_for_selector("#resumes tbody tr[data-verdict=identical]")
    assert "100 losses again, bit for bit" in page.inner_text("[data-determinism=equal]")
    shown(page, "resume-one", "dark")


def test_without_a_resume_the_panel_says_what_will_be_there(visit: Visit) -> None:
    page = visit("/runs/r-never-back", width=1440, height=900)
    wait_until(lambda: "No resume so far" in page.inner_text("#run-main"), 30, "the panel is there")
    shown(page, "resume-none", "light")
