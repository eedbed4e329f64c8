"""The kinds of command and their states: who carries one out, what it takes, how long it waits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

__all__ = ["END_STATES", "KINDS", "NOT_CARRIED_OUT", "OPEN_STATES", "WORDS", "Kind", "State"]

Kind = Literal["rollback", "restart", "stop", "checkpoint_now", "dump_stacks", "task", "show_batches"]
State = Literal["pending", "delivered", "ready", "acted", "done", "rejected", "failed", "expired"]

#: States in which a command may still be acted on.
OPEN_STATES: frozenset[State] = frozenset({"pending", "delivered", "ready"})
#: States in which a command stays. One that is acted is in neither: it waits for the first new row.
END_STATES: frozenset[State] = frozenset(get_args(State)) - OPEN_STATES - {"acted"}
#: Of these, those in which the job was left as it was, or half of it.
NOT_CARRIED_OUT: frozenset[State] = END_STATES - {"done"}

#: State -> what people read. Before it is a command: proposed, and declined, refused, expired or superseded.
WORDS: Mapping[State, str] = {
    "pending": "approved",
    "delivered": "sent",
    "ready": "ready",
    "acted": "executing",
    "done": "done",
    "rejected": "refused",
    "failed": "failed",
    "expired": "expired",
}

#: Longest time that a command may wait for somebody to begin with it, seconds.
MAX_EXPIRES_S = 86_400.0
#: The same of a look at stacks, which takes seconds: one that nobody answers must not keep the next one waiting.
MAX_DUMP_EXPIRES_S = 60.0


@dataclass(frozen=True, slots=True)
class CommandKind:
    """What a kind of command is.

    Args:
        by: who carries it out. Ranks agree on a step boundary; agents need none, so they reach a job that hangs; each
            rank by itself answers at a boundary of its own.
        takes: the fields of a request beside ``reason``, ``expires_s`` and ``idempotency_key``.
        expires_s: nobody may begin with it after so long, seconds, where the request names nothing else.
        max_expires_s: the most that a request may name, seconds.
        answered: of agents, the state once all of them have answered and one has done it.
        unanswered: of agents, what is not known where one ended before it answered.
        beside: it leaves the ranks as they are, so that a rollback or restart need not wait for it.
        moves: it ends or moves training: the two persons' rule is about it.
        acted: of ranks that all have acted, what they did. nothing: of ranks, what did not happen where none acted.
    """

    by: Literal["ranks", "agents", "each rank"]
    takes: frozenset[str]
    expires_s: float
    max_expires_s: float = MAX_EXPIRES_S
    answered: State = "acted"
    unanswered: str = ""
    beside: bool = False
    moves: bool = False
    acted: str = ""
    nothing: str = ""


#: The one table of kinds. A further kind is a line here, a Struct below, and what carries it out in the client.
KINDS: Mapping[Kind, CommandKind] = {
    # Long enough for a few slow steps, short enough that nobody is surprised by a rollback ordered before lunch.
    "rollback": CommandKind(
        "ranks",
        frozenset({"to_step", "branch", "lr_scale", "seed", "skip_batches", "skip_range"}),
        expires_s=600.0,
        moves=True,
        acted="rolled back",
        nothing="nothing was rolled back",
    ),
    # As a rollback.
    "stop": CommandKind(
        "ranks", frozenset({"save"}), expires_s=600.0, moves=True, acted="stopped", nothing="the job was not stopped"
    ),
    "checkpoint_now": CommandKind(
        "ranks", frozenset(), expires_s=600.0, acted="saved a checkpoint", nothing="no checkpoint was saved"
    ),
    # It waits for ranks that leave by themselves.
    "restart": CommandKind(
        "agents",
        frozenset(
            {"to_step", "lr_scale", "seed", "skip_batches", "skip_range", "exclude_nodes", "keep_nodes", "grace_s"}
        ),
        expires_s=60.0,
        unanswered="whether its ranks were ended is not known",
        moves=True,
    ),
    # At most 3 s a node.
    "dump_stacks": CommandKind(
        "agents",
        frozenset(),
        expires_s=15.0,
        max_expires_s=MAX_DUMP_EXPIRES_S,
        answered="done",
        unanswered="its stacks are missing",
        beside=True,
    ),
    # As long as the agent waits for its function.
    "task": CommandKind(
        "agents",
        frozenset({"task"}),
        expires_s=60.0,
        answered="done",
        unanswered="whether it was done is not known",
        beside=True,
    ),
    # A rank reads it with its next batch: a step of a large model takes half a minute.
    "show_batches": CommandKind(
        "each rank", frozenset({"incident_id", "step"}), expires_s=120.0, answered="done", beside=True
    ),
}
