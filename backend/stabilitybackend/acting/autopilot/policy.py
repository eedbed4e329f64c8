"""What the autopilot of a run may do, as somebody wrote it down in YAML. Pure."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from stabilitybackend.base.yaml_file import BadYaml, read_yaml

__all__ = ["POLICY_FILE", "Limit", "Policy", "read_policy"]

Kind = Literal["spike", "divergence", "nonfinite"]
Change = Literal["skip_batches", "lr_scale", "seed"]
Checkpoints = Literal["verified", "announced"]

#: Kinds of incidents that it may act on: what a rollback cures. A ``level_shift`` is none: it mostly is accounting, and
#: nobody knows but people.
KINDS: tuple[Kind, ...] = get_args(Kind)
#: What a rollback may change beside the step, in the order in which the advice comes to it.
CHANGES: tuple[Change, ...] = get_args(Change)
#: The policy's name in messages where it has no file.
POLICY_FILE = "policy.yaml"

#: Steps to wait: BLOOM's team waited some 30 to 50 steps, a spike that comes at once mostly recovers.
WAIT_STEPS = 40
MAX_WAIT_STEPS = 10_000
#: So many rollbacks in so many steps show that going back does not help; then it is a matter for people.
ACTIONS, IN_STEPS = 3, 1_000
MAX_ACTIONS = 10
MIN_IN_STEPS, MAX_IN_STEPS = 100, 1_000_000


class Limit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """At most ``actions`` rollbacks in ``in_steps`` steps of the run, whichever trouble they were for."""

    actions: int = ACTIONS
    in_steps: int = IN_STEPS


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """What it may do.

    Attributes:
        dry_run: it notes what it would have done, and orders nothing.
        act_on: kinds of incidents that it goes back for.
        wait_steps: how long it looks on from when such an incident was seen; longer where the advice says so.
        changes: what a rollback may change beside the step. Where the advice asks for another one, people are asked.
        checkpoints: those of which an agent has seen that all of it is there (``verified``), or all that were
            ``announced`` and of which nothing is known to be missing.
    """

    dry_run: bool = False
    act_on: tuple[Kind, ...] = KINDS
    wait_steps: int = WAIT_STEPS
    changes: tuple[Change, ...] = CHANGES
    checkpoints: Checkpoints = "verified"
    limit: Limit = Limit()


_FIELDS = Policy.__struct_fields__


def read_policy(text: str, file: str = POLICY_FILE) -> Policy:
    """Return the policy in a YAML text; what it does not name has its default.

    Args:
        file: its name, for messages.

    Raises:
        BadYaml: it is none; the text names file, line, what was given and what may stand there.

    Example:
        >>> read_policy("wait_steps: 30").limit
        Limit(actions=3, in_steps=1000)
    """
    root = read_yaml(text, file)
    given = root.fields(_FIELDS)
    if not given:
        # An empty file is a mistake more often than the wish for all defaults, and what it would begin is no small one.
        raise BadYaml(
            f"{file}, line 1: the policy is empty, expected some of {', '.join(_FIELDS)}",
            hint="dry_run: true is a good first one",
            file=file,
            line=1,
        )
    found: dict[str, object] = {}
    for name, place in given.items():
        if name == "dry_run":
            found[name] = place.flag()
        elif name == "act_on":
            found[name] = place.words(KINDS)
        elif name == "wait_steps":
            found[name] = place.whole(0, MAX_WAIT_STEPS)
        elif name == "changes":
            found[name] = place.words(CHANGES) if place.value != [] else ()
        elif name == "checkpoints":
            found[name] = place.word(get_args(Checkpoints))
        else:
            limits = place.fields(Limit.__struct_fields__)
            ranges = {"actions": (1, MAX_ACTIONS), "in_steps": (MIN_IN_STEPS, MAX_IN_STEPS)}
            found[name] = Limit(**{key: one.whole(*ranges[key]) for key, one in limits.items()})
    return msgspec.convert(found, Policy)
