"""Says what a path holds, by content, and which runs come out of it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stabilitybackend.errors import BadRequest
from stabilitybackend.importers.csv_files import sniff_columns
from stabilitybackend.importers.jsonl import MAX_LINE_BYTES, export_header
from stabilitybackend.importers.parquet import parquet_header
from stabilitybackend.importers.tfrecords import is_event_file
from stabilitybackend.importers.trainer_state import trainer_state
from stabilitybackend.importers.troubles import Trouble
from stabilitybackend.importers.wandb_files import MAGIC, wandb_run

__all__ = ["KNOWN", "Part", "Plan", "find_plans"]

#: What can be imported, for messages.
KNOWN = (
    "a spool folder (run.json and sources/), TensorBoard event files, JSON lines with a key step, W&B offline files "
    "(run-*.wandb), Parquet or CSV with a step column, trainer_state.json of Hugging Face, metrics.csv of Lightning, "
    "and our own exports"
)
#: Kinds that are looked for in a folder, in this order: a folder often holds the same run in several forms, and only
#: the
#: first is taken.
_KINDS = ("spool", "tensorboard", "wandb", "trainer_state", "parquet", "jsonl", "csv")
_SUFFIXES = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".wandb": "wandb",
}
_HEAD_BYTES = 64 * 1024
#: A byte order mark and white space.
_BLANK = b"\xef\xbb\xbf \t\r\n"
#: Files of a folder that are looked at.
MAX_FILES = 100_000
_RANK = re.compile(r"rank[_-]?(\d+)", re.IGNORECASE)
_PLAIN = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Part:
    """Files of one start or folder of a run. rank: whose. prefix: put before every metric name."""

    paths: tuple[Path, ...]
    rank: int = 0
    prefix: str = ""


@dataclass(slots=True)
class Plan:
    """One run to import.

    Attributes:
        kind: one of the readers. parts: its files, in order. name: for people.
        run_id: None: made from the name and the content. project, config: what the files say.
        notes: what was decided. refused: files beside these that can't be read.
    """

    kind: str
    parts: list[Part]
    name: str
    run_id: str | None = None
    project: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    refused: list[Trouble] = field(default_factory=list)

    @property
    def paths(self) -> list[Path]:
        """All files, in order."""
        return [path for part in self.parts for path in part.paths]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(path.stat().st_size for path in self.paths if path.is_file())


def find_plans(paths: list[Path], *, run_id: str | None = None) -> list[Plan]:
    """Return the runs in files and folders.

    Args:
        run_id: given: everything becomes one run of this id. Folders and files named ``rank<n>`` are its ranks, other
            sub-folders of event files become a prefix of the names, as TensorBoard shows them.

    Raises:
        BadRequest: a path is not there or holds nothing that is known; kinds are mixed under one ``run_id``.
    """
    plans: list[Plan] = []
    paths = list({path.resolve(): path for path in paths}.values())
    event_files: list[Path] = []  # those of one folder are one run, also when they are named one by one
    for path in paths:
        if path.is_dir():
            plans += _of_folder(path)
        elif path.is_file():
            kind = _kind_of(path)
            if kind == "tensorboard":
                event_files.append(path)
            else:
                plans += _PLANNERS[kind]([path], path.parent)
        else:
            what = "is a pipe or a device" if path.exists() else "is not there"
            raise BadRequest(f"{path} {what}, expected a file or a folder", hint=f"known are: {KNOWN}")
    plans += _tensorboard(sorted(event_files), Path())
    plans = _newest_states(_by_wandb_run(plans))
    if run_id is None:
        return plans
    return [_merged(plans, run_id)]


def _of_folder(folder: Path) -> list[Plan]:
    if (folder / "run.json").is_file() or any(folder.glob("*/run.json")):
        found = [folder] if (folder / "run.json").is_file() else sorted(p.parent for p in folder.glob("*/run.json"))
        return [Plan("spool", [Part((path,))], path.name) for path in found]
    by_kind: dict[str, list[Path]] = {}
    refused: list[Trouble] = []
    for path in _files(folder):
        try:
            kind = _kind_by_name(path)
            if kind in _LOOKS:
                _LOOKS[kind](path)
        except BadRequest as error:
            refused.append(Trouble(path, "the whole file", error.message.removeprefix(f"{path} ")))
        else:
            if kind:
                by_kind.setdefault(kind, []).append(path)
    kinds = [kind for kind in _KINDS if kind in by_kind]
    if not kinds:
        if refused:
            raise BadRequest(f"{refused[0].file} {refused[0].reason}", hint=f"known are: {KNOWN}")
        raise BadRequest(f"{folder} holds nothing that can be imported", hint=f"known are: {KNOWN}")
    plans = _PLANNERS[kinds[0]](by_kind[kinds[0]], folder)
    plans[0].refused = refused
    for kind in kinds[1:]:
        rest = by_kind[kind]
        plans[0].notes.append(
            f"{folder} also holds {len(rest)} file(s) of kind {kind} ({rest[0].name}, ...): left out, for they are "
            "often the same run again; name them to import them"
        )
    return plans


def _files(folder: Path) -> Iterator[Path]:
    count = 0
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            count += 1
            if count > MAX_FILES:
                raise BadRequest(f"{folder} holds more than {MAX_FILES} files", hint="name the folder of one run")
            yield Path(place) / name


def _kind_by_name(path: Path) -> str:
    """Return what a file in a folder probably is; most files there are none of ours and are not opened.

    Raises:
        BadRequest: it has a name that we know, and holds nothing that we do.
    """
    named = {"trainer_state.json": "trainer_state"}.get(path.name) or ("tensorboard" if "tfevents" in path.name else "")
    kind = named or _SUFFIXES.get(path.suffix.lower(), "")
    if kind and not path.is_file():
        raise BadRequest(f"{path} is a link to nothing, a pipe or a device, expected a file")
    return kind if named or kind == "wandb" or (kind and _kind_of(path) == kind) else ""


def _kind_of(path: Path) -> str:
    """Return what a file is, from its content.

    Raises:
        BadRequest: none of what is known.
    """
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        raise BadRequest(f"{path} can't be read: {error.strerror}") from error
    if head[:4] == b"PAR1":
        return "parquet"
    if head[:4] == MAGIC:
        return "wandb"
    if is_event_file(head) or ("tfevents" in path.name and not head):
        return "tensorboard"
    text = head.lstrip(_BLANK)
    if path.name == "trainer_state.json" or (text[:1] == b"{" and b'"log_history"' in head):
        trainer_state(path)
        return "trainer_state"
    if any(_is_object(line) for line in _first_lines(path)):
        return "jsonl"
    if text[:1] == b"{":
        trainer_state(path)
        return "trainer_state"
    if text and b"\0" not in head and sniff_columns(path)[0]:
        return "csv"
    what = "is empty" if not head else f"begins with {head[:20]!r}"
    raise BadRequest(f"{path} {what}: nothing that can be imported", hint=f"known are: {KNOWN}")


def _first_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines that begin in the head of a file: the first one may be damaged, or very long."""
    with path.open("rb") as file:
        while file.tell() < _HEAD_BYTES and (line := file.readline(MAX_LINE_BYTES)):
            yield line.strip(_BLANK)


def _is_object(line: bytes) -> bool:
    if line[:1] != b"{":
        return False
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _rank_of(path: Path) -> int | None:
    match = _RANK.search(path.stem)
    return int(match[1]) if match else None


def _tensorboard(paths: list[Path], root: Path) -> list[Plan]:
    folders: dict[Path, list[Path]] = {}
    for path in paths:
        folders.setdefault(path.parent, []).append(path)
    return [Plan("tensorboard", [Part(tuple(files))], _name(folder, root)) for folder, files in folders.items()]


def _wandb(paths: list[Path], root: Path) -> list[Plan]:
    plans = []
    for path in paths:
        said = wandb_run(path)
        plans.append(Plan("wandb", [Part((path,))], said.name or said.run_id, said.run_id, said.project, said.config))
    return plans


def _trainer_state(paths: list[Path], root: Path) -> list[Plan]:
    """Return one run for an output folder and its checkpoints: each holds the history up to it."""
    return [Plan("trainer_state", [Part((path,))], _name(_output_folder(path), root)) for path in paths]


def _single(kind: str) -> Callable[[list[Path], Path], list[Plan]]:
    def plans(paths: list[Path], root: Path) -> list[Plan]:
        found = []
        for path in paths:
            header = _HEADERS[kind](path) if kind in _HEADERS else None
            name = _name(path.parent / path.stem, root)
            if path.name == "metrics.csv":
                name = _name(path.parent, root)  # Lightning: the folder is the run
            plan = Plan(kind, [Part((path,))], name)
            if header is not None:
                plan.run_id = str(header.get("run_id") or "") or None
                plan.name = str(header.get("name") or plan.name)
                plan.project = str(header.get("project") or "")
                config = header.get("config")
                plan.config = config if isinstance(config, dict) else {}
            found.append(plan)
        return found

    return plans


#: Kinds that may be our own exports -> what reads their word about the run.
_HEADERS: dict[str, Callable[[Path], dict[str, Any] | None]] = {
    "jsonl": export_header,
    "parquet": parquet_header,
}
#: What tells whether a file of a kind can be read at all, where a damaged one would stop its whole folder.
_LOOKS: dict[str, Callable[[Path], object]] = {"wandb": wandb_run, "trainer_state": trainer_state}
_PLANNERS: dict[str, Callable[[list[Path], Path], list[Plan]]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "trainer_state": _trainer_state,
    "parquet": _single("parquet"),
    "jsonl": _single("jsonl"),
    "csv": _single("csv"),
}


def _output_folder(path: Path) -> Path:
    return path.parent.parent if path.parent.name.startswith("checkpoint-") else path.parent


def _name(place: Path, root: Path) -> str:
    """Return what people call a run: its path below the folder that was given, with that folder's own name."""
    place, root = place.resolve(), root.resolve()
    if place == root or root not in place.parents:
        return place.name
    return f"{root.name}/{place.relative_to(root)}"


def _by_wandb_run(plans: list[Plan]) -> list[Plan]:
    """Put the files of one W&B run (each resume writes another) together, by the time at which they were begun."""
    runs: dict[str, Plan] = {}
    rest: list[Plan] = []
    for plan in plans:
        if plan.kind != "wandb" or plan.run_id is None:
            rest.append(plan)
            continue
        known = runs.setdefault(plan.run_id, plan)
        if known is not plan:
            known.parts += plan.parts
            known.refused += plan.refused
            known.parts.sort(key=lambda part: wandb_run(part.paths[0]).started)
    return rest + list(runs.values())


def _newest_states(plans: list[Plan]) -> list[Plan]:
    """Of the states in one output folder take the longest: each checkpoint repeats the history of those before it."""
    longest: dict[Path, Plan] = {}
    rest: list[Plan] = []
    for plan in plans:
        if plan.kind != "trainer_state":
            rest.append(plan)
            continue
        folder = _output_folder(plan.paths[0].resolve())
        known = longest.get(folder)
        if known is None:
            longest[folder] = plan
            continue
        kept, other = sorted((known, plan), key=lambda each: len(trainer_state(each.paths[0])["log_history"]))[::-1]
        longest[folder] = kept
        kept.notes = [f"{kept.paths[0]} is taken: of the states in {folder.name} it has the longest history"]
        kept.name = other.name
        kept.refused = known.refused + plan.refused
    return rest + list(longest.values())


def _merged(plans: list[Plan], run_id: str) -> Plan:
    kinds = {plan.kind for plan in plans}
    if len(kinds) > 1 or "spool" in kinds:
        raise BadRequest(
            f"--run-id {run_id} with {', '.join(sorted(kinds))}: one run is made of files of one kind, and a spool has "
            "its own id",
            hint="import them one by one",
        )
    merged = plans[0]
    common = Path(os.path.commonpath([path.resolve().parent for plan in plans for path in plan.paths]))
    parts: list[Part] = []
    for plan in plans:
        for part in plan.parts:
            first = part.paths[0].resolve()
            inside = first.parent if plan.kind == "tensorboard" else first.with_suffix("")
            rank = _rank_of(inside) if len(plans) > 1 else None
            below = str(first.parent.relative_to(common)) if plan.kind == "tensorboard" else "."
            prefix = f"{below}/" if len(plans) > 1 and rank is None and below != "." else ""
            parts.append(Part(part.paths, rank or 0, prefix))
    merged.parts, merged.run_id = parts, run_id
    merged.notes = [note for plan in plans for note in plan.notes]
    merged.refused = [trouble for plan in plans for trouble in plan.refused]
    if len(plans) > 1 and merged.kind == "tensorboard":
        merged.name = common.name
    return merged


def slug(text: str) -> str:
    """Return ``text`` as a part of a run id."""
    return _PLAIN.sub("-", text).strip("-._") or "run"
