"""A stop and a checkpoint are obeyed by all ranks at one step: real server, real agent, two real ranks, the program."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from stabilitybackend.cli.app import program
from stabilitybackend.plugins import Plugins
from support.ports import free_port
from support.processes import Ranks, Server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("server") / "data", free_port()) as running:
        yield running


@pytest.mark.soak  # tests/client/test_arbiter_laws.py: all ranks act at one step, or none
def test_two_ranks_save_at_one_step_and_then_stop_at_one_step_as_if_it_were_their_last(
    server: Server, tmp_path: Path
) -> None:
    place = "/runs/ordered"
    with Ranks(
        "orders/ordered_rank.py",
        [str(tmp_path), "0.02"],
        url=server.url,
        folder=tmp_path / "spool",
        run_id="ordered",
    ) as ranks:
        offer = server.wait_for(
            f"{place}/orders", lambda r: r["checkpoint_now"]["possible"] and r["ranks"] == 2, "it says what it can"
        )
        assert offer["stop"] == {"possible": True, "why": "", "works": []}

        order = {"kind": "checkpoint_now", "idempotency_key": "once"}
        answers = [httpx.post(f"{server.url}/api/v1{place}/commands", json=order) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [201, 201], answers[0].text
        assert answers[0].json()["command_id"] == answers[1].json()["command_id"]
        path = f"{place}/commands/{answers[0].json()['command_id']}"
        saved = server.wait_for(path, lambda c: c["progress"]["ended"], "the checkpoint is there")
        step = saved["apply_at_step"] - 1
        assert saved["state"] == "done", saved
        assert [(tmp_path / f"saved.{rank}").read_text() for rank in (0, 1)] == [f"{step}\n"] * 2
        server.wait_for(
            f"{place}/checkpoints", lambda r: [c["step"] for c in r["checkpoints"]] == [step], "it is announced"
        )

        args = ["stop", "ordered", "--save", "--yes", "--reason", "enough seen", "--url", server.url]
        said = CliRunner().invoke(program(Plugins()), args)
        assert said.exit_code == 0, said.output
        assert "Stopped: all 2 ranks have stopped before step" in said.output
        ranks.outputs()
    ends = [json.loads((tmp_path / f"end.{rank}").read_text()) for rank in (0, 1)]
    assert ends[0] == ends[1]
    assert ends[0]["again"] == []
    assert [int(line) for line in (tmp_path / "saved.1").read_text().split()] == [step, ends[0]["last"]]

    run = server.wait_for(place, lambda r: r["status"] == "finished", "the run is over")
    assert run["state"]["word"] == f"stopped by {ends[0]['by']}"
    assert (run["stopped"]["by"], run["stopped"]["reason"]) == (ends[0]["by"], "enough seen")
    assert run["open_incidents"] == 0
    plan = server.get(f"{place}/plan")
    assert (plan["action"], plan["exit_code"]) == ("stop", 42)
    assert "enough seen" in plan["text"]


@pytest.mark.soak
def test_a_job_that_hangs_refuses_both_and_the_offer_says_what_works(tmp_path: Path) -> None:
    plan = json.dumps({"stop": 100_000, "period_s": 0.02, "hang_at": [1, 100]})
    with (
        Server(tmp_path / "data", free_port(), {"STABILITY_HANG_FLOOR_S": "1.5"}) as server,
        Ranks("job.py", [plan], url=server.url, folder=tmp_path / "spool", run_id="hangs"),
    ):
        offer = server.wait_for("/runs/hangs/orders", lambda r: r["stop"]["works"] != [], "it hangs", 60)
        assert offer["stop"]["works"] == ["dump_stacks", "restart"]
        assert "the job hangs" in offer["stop"]["why"]
        url = f"{server.url}/api/v1/runs/hangs/commands"
        refused = [httpx.post(url, json={"kind": kind}) for kind in ("stop", "checkpoint_now")]
        assert [(one.status_code, one.json()["error"]["code"]) for one in refused] == [(409, "job_hangs")] * 2
        assert httpx.post(url, json={"kind": "dump_stacks"}).status_code in (201, 409)  # or the server's own is at it
