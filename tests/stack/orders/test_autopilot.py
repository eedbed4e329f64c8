"""The autopilot of a real job: real server that is killed, real ranks, a spike that does not come back by itself."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from support.processes import Ranks, Server

POLICY = "wait_steps: 40\n"


def set_policy(server: Server, text: str) -> None:
    answer = httpx.put(f"{server.url}/api/v1/runs/piloted/autopilot", json={"policy": text}, verify=False)
    assert answer.status_code == 200, answer.text


@pytest.mark.soak
@pytest.mark.parametrize("killed", [(), ("waits", "ordered", "done")], ids=["no kill", "kill -9 of the server"])
def test_it_goes_back_once_to_the_right_checkpoint_on_all_ranks(
    tmp_path: Path, free_port: int, killed: tuple[str, ...]
) -> None:
    plan = {"onset": 230, "every": 50, "checkpoints": str(tmp_path), "period_s": 0.02}
    plan["enough"] = str(tmp_path / "enough")
    with Server(tmp_path / "data", free_port) as server:

        def again(moment: str) -> None:
            if moment in killed:
                server.kill()
                server.start()

        with Ranks(
            "orders/spiking_rank.py", [json.dumps(plan)], url=server.url, folder=tmp_path / "spool", run_id="piloted"
        ) as ranks:
            server.wait_for("/runs/piloted", lambda run: (run["last_step"] or 0) > 20, "the job trains")
            set_policy(server, POLICY)
            waits = server.wait_for("/runs/piloted/autopilot", lambda one: one["phase"] == "waits", "it waits", 60)
            assert "then rolls back to step 200" in waits["text"]
            again("waits")
            server.wait_for("/runs/piloted/autopilot", lambda one: one["entries"], "it has ordered", 60)
            again("ordered")
            [done] = server.wait_for(
                "/runs/piloted/autopilot", lambda one: [e["command"] for e in one["entries"]] == ["done"], "done", 60
            )["entries"]
            again("done")
            server.wait_for("/runs/piloted", lambda run: run["last_step"] > 420, "training goes on", 60)
            incidents = server.get("/runs/piloted/incidents")["incidents"]
            assert [
                (i["kind"], i["title"], i["text"]) for i in incidents if i["state"] == "open" and not i["dead"]
            ] == []
            (tmp_path / "enough").touch()
            ends = [json.loads(lines[0]) for lines in ranks.outputs()]
        assert (done["action"], done["to_step"], done["onset_step"]) == ("roll_back", 200, 230)
        assert [[back["to_step"] for back in end["went_back"]] for end in ends] == [[200], [200]]
        assert {back["issuer"] for end in ends for back in end["went_back"]} == {"autopilot"}
        rollbacks = [one for one in server.get("/runs/piloted/commands")["commands"] if one["kind"] == "rollback"]
        assert [(one["command_id"], one["state"]) for one in rollbacks] == [(done["entry_id"], "done")]
        assert server.get("/runs/piloted")["rollbacks"] == 1
