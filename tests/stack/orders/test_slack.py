"""A click in Slack brings the job back: real server, real agent, real ranks, and a Slack of our own over sockets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.ports import free_port
from support.processes import Ranks, Server
from support.slack.fake_slack import FakeSlack


@pytest.fixture
def slack() -> Iterator[FakeSlack]:
    with FakeSlack() as running:
        yield running


@pytest.mark.soak
def test_an_order_from_slack_outlives_a_server_that_is_killed_and_its_end_is_told_once(
    slack: FakeSlack, tmp_path: Path
) -> None:
    enough, checkpoints = tmp_path / "enough", tmp_path / "checkpoints"
    checkpoints.mkdir()
    env = slack.variables(STABILITY_SLACK_USERS=json.dumps({"U0ADA": "command"}))
    with (
        Server(tmp_path / "data", free_port(), env) as server,
        Ranks(
            "orders/spoiled_job.py", [str(checkpoints), "0.2", str(enough)], url=server.url, folder=tmp_path / "spool",
            run_id="night", world_size=2,
        ) as ranks,
    ):  # fmt: skip
        [parent] = slack.wait_for(lambda s: s.parents() if s.listens() else None, "the incident is told", 60)
        view = slack.asked(parent, "stability_roll_back")
        assert slack.deliver(slack.submit(view)) == {"response_action": "clear"}
        server.kill()
        server.start()
        slack.wait_for(lambda s: any("done in" in one.text for one in s.replies(parent)), "it is done", 60)
        slack.wait_for(lambda s: "Discarded" in parent.text, "the message is up to date", 60)
        enough.touch()
        ranks.outputs()

    ends = [one.text for one in slack.replies(parent) if one.text.startswith("\u2705 Rollback to step 50 done")]
    assert (len(slack.parents()), len(ends)) == (1, 1)


@pytest.mark.soak
def test_a_click_in_slack_rolls_the_job_back_and_the_thread_tells_it(slack: FakeSlack, tmp_path: Path) -> None:
    enough, checkpoints = tmp_path / "enough", tmp_path / "checkpoints"
    checkpoints.mkdir()
    env = slack.variables(STABILITY_SLACK_USERS=json.dumps({"U0ADA": "command"}))
    with (
        Server(tmp_path / "data", free_port(), env) as server,
        Ranks(
            "orders/spoiled_job.py", [str(checkpoints), "0.02", str(enough)], url=server.url, folder=tmp_path / "spool",
            run_id="night", world_size=2,
        ) as ranks,
    ):  # fmt: skip
        [parent] = slack.wait_for(lambda s: s.parents() if s.listens() else None, "the incident is told", 60)
        slack.wait_for(lambda s: s.files, "the curve is in the thread")
        view = slack.asked(parent, "stability_roll_back")
        assert slack.deliver(slack.submit(view, "loss is NaN")) == {"response_action": "clear"}
        slack.wait_for(lambda s: any("done in" in one.text for one in s.replies(parent)), "it is done", 60)
        slack.wait_for(lambda s: "Discarded" in parent.text, "the message is up to date", 60)
        [command] = server.get("/runs/night/commands")["commands"]
        enough.touch()
        ranks.outputs()

    assert (command["issuer"], command["reason"], command["state"]) == ("slack:ada", "loss is NaN", "done")
    assert {rank["state"] for rank in command["ranks"].values()} == {"acted"}
    assert "All 2 ranks stop" in json.dumps(view)
    assert slack.files[0]["content"].startswith(b"\x89PNG")
    assert "NaN from step 60 on" in slack.files[0]["alt"]
    order = next(one for one in slack.replies(parent) if "ordered by" in one.text)
    assert order.text.startswith("Rollback to step 50 ordered by <@U0ADA>: loss is NaN\nrequested after 0.0 s, sent ")
