"""Facts of a run besides its points: config, launches, tags, notes; and differences between runs."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

#: Limits of a run's tags, characters of one, of its notes and of its name; the same as in the client.
MAX_TAGS, MAX_TAG_CHARS, MAX_NOTES_CHARS, MAX_NAME_CHARS = 32, 64, 10_000, 200

_Line = Annotated[str, Meta(max_length=2_000)]
_Name = Annotated[str, Meta(max_length=256)]


class Checkout(msgspec.Struct, frozen=True):
    """Git state of the script's folder.

    Attributes:
        folder: of the checkout. commit: "" for none. branch: "" of a detached head. subject: first line of the commit's
            message. remote: address of ``origin``, without user and password.
        dirty: uncommitted changes; null for an error, see ``why``.
        changed: files with changes, new ones too. files: the first of them.
    """

    folder: _Line = ""
    commit: _Name = ""
    branch: _Name = ""
    subject: _Line = ""
    remote: _Line = ""
    dirty: bool | None = None
    changed: Annotated[int, Meta(ge=0, le=2**53)] = 0
    files: Annotated[list[_Line], Meta(max_length=64)] = []
    why: _Line = ""


class LaunchReported(msgspec.Struct):
    """``launch``: a start of the job on a node, without secrets (docs/wire.md).

    Attributes:
        source: of the process. node: its name in the job. host: of the machine.
        command: the arguments of the process. folder: its working folder. python: the interpreter.
        image: of the container, where a variable names it. launcher: variables of launcher and scheduler.
    """

    source: _Name
    rank: Annotated[int, Meta(ge=0, lt=2**31)] = 0
    world_size: Annotated[int, Meta(ge=0, le=2**31)] = 1
    node: _Name = ""
    host: _Name = ""
    user: _Name = ""
    command: Annotated[list[_Line], Meta(max_length=512)] = []
    folder: _Line = ""
    script: _Line = ""
    python: _Line = ""
    image: _Line = ""
    launcher: Annotated[dict[_Name, _Line], Meta(max_length=64)] = {}
    git: Checkout = msgspec.field(default_factory=Checkout)


class Difference(msgspec.Struct):
    """One difference.

    Attributes:
        name: dotted key of the config, or name of the fact.
        before, now: as text; null for none.
    """

    name: str
    before: str | None
    now: str | None


class RunLaunch(msgspec.Struct):
    """One launch of a run.

    Attributes:
        started: unix seconds by the node's clock. ranks: of the job. segment: id of its segment now.
        hosts: the first 256. host_count: all that reported.
        command: the arguments, ready for a shell. environment: versions, devices and settings, variables with ``$``.
        changed: differences from the launch before it.
    """

    started: float
    ranks: int
    segment: int | None
    hosts: list[str]
    host_count: int
    user: str
    command: str
    folder: str
    script: str
    python: str
    image: str
    launcher: dict[str, str]
    git: Checkout
    environment: dict[str, str]
    changed: list[Difference]


class RunDiff(msgspec.Struct):
    """Differences between another run (``before``) and this one (``now``).

    Attributes:
        run_id, name: of the other run. why: reason of its choice, "" for the caller's.
        config: differing keys, at most 500. left_out: further ones. equal: keys that are the same.
        facts: differences of the newest launches. no_facts: the side without any, "" for neither.
    """

    run_id: str
    name: str
    why: str
    config: list[Difference]
    left_out: int
    equal: int
    facts: list[Difference]
    no_facts: str


class AboutLine(msgspec.Struct):
    """A run in one line.

    Attributes:
        git: of the newest launch. host_count: its hosts. launches: of the run that reported facts.
        commit_changed: the newest launch has another commit than the one before.
        printed: lines of its ranks are stored.
    """

    git: Checkout
    host_count: int
    launches: int
    commit_changed: bool
    printed: bool


class AboutEdit(msgspec.Struct, frozen=True):
    """Edits on the page; null: the job's own.

    Attributes:
        who, time: of the newest change; time in unix seconds.
    """

    who: str
    time: float
    name: str | None = None
    tags: list[str] | None = None
    notes: str | None = None


class AboutRun(msgspec.Struct):
    """All facts of a run besides its points.

    Attributes:
        config: argument of ``init()``; likely secrets are ``(hidden)``.
        edited: author of the last edit of name, tags or notes, null for none.
        launches: newest first, at most 50. older: further ones.
        diff: to another run, if requested and found; else ``no_diff`` has the reason.
    """

    run_id: str
    name: str
    project: str
    config: dict[str, Any]
    tags: list[str]
    notes: str
    edited: AboutEdit | None
    launches: list[RunLaunch]
    older: int
    diff: RunDiff | None
    no_diff: str
