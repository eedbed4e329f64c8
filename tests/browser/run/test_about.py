"""The panel of what a run is: facts, config, tags, notes, and what changed to another run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest

from support.gateway_stack import log_frames
from support.job_frames import Job

if TYPE_CHECKING:
    from browser.run.conftest import Visit
    from support.processes import Server


@pytest.fixture(scope="module", autouse=True)
def _runs(server: Server) -> None:
    """A good run, and one that another commit has with a change that is not committed."""
    for run_id, commit, dirty in (("r-good", "a" * 40, False), ("r-changed", "b" * 40, True)):
        job = Job()
        git = {"commit": commit, "branch": "main", "dirty": dirty, "changed": int(dirty), "files": ["<b>.py"] * dirty}
        facts = {"source": job.info.source, "host": "h0", "command": ["python", "train.py"], "git": git}
        log_frames(
            server.url,
            job.event("launch", **facts),
            job.rows(range(1, 30)),
            job.event("finish"),
            project="about",
            run_id=run_id,
        )


def test_the_folded_line_and_the_difference_to_the_last_good_run(visit: Visit) -> None:
    page = visit("/runs/r-changed")
    page.wait_for_selector("#about-line code")
    assert page.inner_text("#about-line").split()[:7] == ["b" * 12, "1", "file", "not", "committed", "1", "host"]
    page.click("#about-fold")
    page.wait_for_selector(".about-diff")
    commit = page.inner_text(".about-diff tr[data-name='commit']")
    assert "a" * 40 in commit
    assert "b" * 40 in commit
    assert "finished without open incidents" in page.inner_text("[data-part='changes']")
    assert "<b>.py" in page.inner_text(".about-files")


@pytest.mark.soak
def test_tags_and_notes_are_changed_in_place(server: Server, visit: Visit) -> None:
    page = visit("/runs/r-changed")
    page.click("#about-fold")
    page.fill("#about-add-tag", "<i>mine</i>")
    page.press("#about-add-tag", "Enter")
    page.wait_for_selector(".about-tags [data-tag='<i>mine</i>']")
    page.click("#about-edit")
    page.fill("#about-notes", "Take the smaller rate.")
    page.click("#about-save")
    page.wait_for_selector(".about-notes")
    kept = httpx.get(f"{server.url}/api/v1/runs/r-changed/about").json()
    assert (kept["tags"], kept["notes"]) == (["<i>mine</i>"], "Take the smaller rate.")
