"""Policy of a run's autopilot, read from YAML. Pure."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from stabilitybackend.base.yaml_file import BadYaml, read_yaml

__all__ = ["POLICY_FILE", "Limit", "Policy", "read_policy"]

Kind = Literal["spike", "divergence", "nonfinite"]
Change = Literal["skip_batches", "lr_scale", "seed"]
Checkpoints = Literal["verified", "announced"]

#: Possible kinds: those cured by a rollback. A ``level_shift`` is not, mostly accounting.
KINDS: tuple[Kind, ...] = get_args(Kind)
#: Changes of a rollback besides the step, in the order of the advice.
CHANGES: tuple[Change, ...] = get_args(Change)
#: The policy's name in messages without a file.
POLICY_FILE = "policy.yaml"

#: Steps to wait: BLOOM's team waited some 30 to 50 steps; a sudden spike mostly recovers.
WAIT_STEPS = 40
MAX_WAIT_STEPS = 10_000
#: More rollbacks in so many steps show that they do not help; people decide then.
ACTIONS, IN_STEPS = 3, 1_000
MAX_ACTIONS = 10
MIN_IN_STEPS, MAX_IN_STEPS = 100, 1_000_000


class Limit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """At most ``actions`` rollbacks in ``in_steps`` steps of the run, for any incidents."""

    actions: int = ACTIONS
    in_steps: int = IN_STEPS


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """A policy.

    Attributes:
        dry_run: entries without commands.
        act_on: kinds of incidents that it rolls back for.
        wait_steps: from the detection on; longer where the advice is.
        changes: allowed in a rollback besides the step. People are asked where the advice has another one.
        checkpoints: those that an agent ``verified``, or all that were ``announced`` and not found incomplete.
    """

    dry_run: bool = False
    act_on: tuple[Kind, ...] = KINDS
    wait_steps: int = WAIT_STEPS
    changes: tuple[Change, ...] = CHANGES
    checkpoints: Checkpoints = "verified"
    limit: Limit = Limit()


_FIELDS = Policy.__struct_fields__


def read_policy(text: str, file: str = POLICY_FILE) -> Policy:
    """Return the policy in a YAML text, with defaults.

    Args:
        file: its name, for messages.

    Raises:
        BadYaml: invalid; the text has file, line, given and expected values.

    Example:
        >>> read_policy("wait_steps: 30").limit
        Limit(actions=3, in_steps=1000)
    """
    root = read_yaml(text, file)
    given = root.fields(_FIELDS)
    if not given:
        # An empty file is more often a mistake than a wish for all defaults.
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
