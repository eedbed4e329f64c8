"""The tools that propose. Nothing that they do reaches a job: a person approves it, on the run's page or by command."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from stabilitybackend.base.api_client import ApiClient, run_path
from stabilityplugins.mcp import shortened
from stabilityplugins.mcp.reading import Run

__all__ = ["ProposingTools"]

#: Proposals of a run that are listed, newest ones.
MAX_PROPOSALS = 10
_FIELDS = (
    "proposal_id", "what", "state", "proposer", "proposed", "expires", "decided_by", "detail", "command_id",
)  # fmt: skip


class ProposingTools:
    """Tools that propose actions.

    Args:
        client: of the server that is asked.
    """

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    def propose_command(
        self,
        run: Run,
        kind: Annotated[
            Literal["rollback", "restart", "stop", "checkpoint_now", "dump_stacks"],
            Field(description="What the job shall do. Not every job can do all of it: then the answer says why."),
        ],
        reason: Annotated[str, Field(description="Why, for the person who decides.", min_length=1, max_length=1000)],
        to_step: Annotated[
            int | None, Field(description="rollback, restart: step of a checkpoint that rollback_offer lists.", ge=0)
        ] = None,
        lr_scale: Annotated[float | None, Field(description="Factor on the learning rate.", gt=0, le=10)] = None,
        seed: Annotated[int | None, Field(description="rollback, restart: new seed of the data order.", ge=0)] = None,
        skip_batches: Annotated[
            int | None, Field(description="Batches to leave out right behind the checkpoint.", ge=0)
        ] = None,
        skip_range: Annotated[
            list[int] | None,
            Field(description="Or [first, last]: steps whose batches are left out.", min_length=2, max_length=2),
        ] = None,
        exclude_nodes: Annotated[
            list[str] | None, Field(description="restart: nodes to come up without.", max_length=64)
        ] = None,
        save: Annotated[bool | None, Field(description="stop: save a checkpoint first.")] = None,
    ) -> str:
        """Propose an order for a run. It is NOT carried out: a person has to approve it within 15 minutes.

        Ask rollback_offer first and propose what it offers, unless you say in the reason why not.
        """
        order = {
            "kind": kind, "reason": reason, "to_step": to_step, "lr_scale": lr_scale, "seed": seed,
            "skip_batches": skip_batches, "skip_range": skip_range, "exclude_nodes": exclude_nodes, "save": save,
        }  # fmt: skip
        given = {name: value for name, value in order.items() if value is not None}
        made = self._client.call("POST", f"{run_path(run)}/proposals?by_program=true", given)
        return shortened.text({
            **self._shown(made),
            "next": f"Ask a person to look at {self._client.url}/runs/{run} and to approve it there, or with "
            f"`stabilityboard approve {made['proposal_id']}`. You can't approve it.",
        })  # fmt: skip

    def proposals(self, run: Run) -> str:
        """List what was proposed for a run and what became of it: proposed, approved, declined, refused, expired."""
        found = self._client.get(f"{run_path(run)}/proposals")["proposals"]
        shown = []
        for one in found[:MAX_PROPOSALS]:
            entry = self._shown(one)
            if one["command_id"]:
                command = self._client.get(f"{run_path(run)}/commands/{one['command_id']}")
                entry["command"] = {"state": command["state"], "line": command["progress"]["line"]}
            shown.append(entry)
        return shortened.text({"proposals": shown})

    @staticmethod
    def _shown(one: dict[str, Any]) -> dict[str, Any]:
        return {name: one[name] for name in _FIELDS if one[name] not in (None, "")}
