"""Detection of a path's format, by content, and of the runs in it."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from stabilitybackend.base.errors import BadRequest, StabilityBoardError
from stabilityplugins.importers.base import FilePart, Importer, ImportPlan
from stabilityplugins.importers.formats import FORMATS, known
from stabilityplugins.importers.problems import Problem, Reading
from stabilityplugins.importers.rows.opened import head_of, is_inside, unreadable

__all__ = ["find_plans", "list_files", "slug"]

#: Files of a folder that are looked at.
MAX_FILES = 100_000


class _Spool(Importer):
    """A folder that a client wrote without a server; the client's own upload reads it."""

    name: ClassVar[str] = "spool"
    label: ClassVar[str] = "A spool"


_SPOOL = _Spool()
_DIGITS = re.compile(r"(\d+)")
_RANK = re.compile(r"rank[_-]?(\d+)", re.IGNORECASE)
_PLAIN = re.compile(r"[^A-Za-z0-9._-]+")


def find_plans(
    paths: list[Path], *, run_id: str | None = None, formats: Sequence[Importer] = FORMATS
) -> list[ImportPlan]:
    """Return the runs in files and folders.

    Args:
        formats: those that are looked for.
        run_id: given: everything becomes one run of this id. Folders and files named ``rank<n>`` are its ranks, other
            sub-folders of event files become a prefix of the names, as TensorBoard shows them.

    Raises:
        BadRequest: a path is not there or holds no supported format; kinds are mixed under one ``run_id``.
    """
    plans: list[ImportPlan] = []
    refused: list[tuple[Path, BadRequest]] = []
    paths = list({path.resolve(): path for path in paths}.values())
    by_folder: dict[Importer, list[Path]] = {}  # those of one folder are one run, also when they are named one by one
    for path in paths:
        try:
            importer = None if path.is_dir() else _importer_of(path, formats)
            if importer is None:
                plans += _of_folder(path, formats)
            elif importer.by_folder:
                by_folder.setdefault(importer, []).append(path)
            else:
                plans += importer.plans([path], path.parent)
        except BadRequest as error:
            refused.append((path, error))
    if refused and not plans and not by_folder:
        raise refused[0][1]
    for importer, files in by_folder.items():
        plans += importer.plans(sorted(files), Path())
    for importer in formats:
        found = [plan for plan in plans if plan.kind == importer.name]
        joined = importer.joined(found)
        if joined is not found:
            plans = [plan for plan in plans if plan.kind != importer.name] + joined
    plans[0].refused += [_problem(path, error) for path, error in refused]
    if run_id is None:
        return plans
    return [_merged(plans, run_id)]


def _of_folder(folder: Path, formats: Sequence[Importer]) -> list[ImportPlan]:
    if (folder / "run.json").is_file() or any(folder.glob("*/run.json")):
        found = [folder] if (folder / "run.json").is_file() else sorted(p.parent for p in folder.glob("*/run.json"))
        return [ImportPlan(_SPOOL, [FilePart((path,))], path.name) for path in found]
    by_format, refused = _formats_in(folder, formats)
    present = [importer for importer in formats if importer in by_format]
    if not present:
        if refused:
            raise BadRequest(f"{refused[0].file} {refused[0].reason}", hint=f"known are: {known(formats)}")
        raise BadRequest(f"{folder} holds nothing that can be imported", hint=f"known are: {known(formats)}")
    plans = present[0].plans(by_format[present[0]], folder)
    plans[0].refused = refused
    for other in present[1:]:
        rest = by_format[other]
        plans[0].notes.append(
            f"{folder} also holds {len(rest)} file(s) of kind {other.name} ({rest[0].name}, ...): left out, for they "
            "are often the same run again; name them to import them"
        )
    return plans


def _formats_in(folder: Path, formats: Sequence[Importer]) -> tuple[dict[Importer, list[Path]], list[Problem]]:
    """Return the files of a folder by their formats, and those that can't be read.

    Files with vague names (``log.txt``) are looked at only where no other file is recognized.
    """
    by_format: dict[Importer, list[Path]] = {}
    refused: list[Problem] = []
    doubtful: list[Path] = []
    for path in list_files(folder):
        try:
            importer = _importer_by_name(path, folder, formats)
            if importer is not None:
                importer.sniff(path)
        except BadRequest as error:
            refused.append(_problem(path, error))
        else:
            if importer is not None:
                by_format.setdefault(importer, []).append(path)
            elif any(path.name.lower().endswith(other.may_hold) for other in formats if other.may_hold):
                doubtful.append(path)
    for path in doubtful if not by_format else ():
        with contextlib.suppress(BadRequest):
            found = _importer_of(path, formats) if is_inside(path, folder) else None
            if found is not None and _has_rows(found, path):
                by_format.setdefault(found, []).append(path)
    return by_format, refused


def _has_rows(importer: Importer, path: Path) -> bool:
    """Say whether a file holds a row: a configuration is a JSON object, too."""
    batches = importer.read(path, 0, Reading())
    return any(len(batch) and batch.names for batch in batches)


def _problem(path: Path, error: BadRequest) -> Problem:
    return Problem(path, "the whole file", error.message.removeprefix(f"{path} "))


def list_files(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder, in order: ``version_2`` before ``version_10``.

    Raises:
        BadRequest: there are more than MAX_FILES.
    """
    count = 0
    for place, folders, names in os.walk(folder):
        folders.sort(key=_natural)
        for name in sorted(names, key=_natural):
            count += 1
            if count > MAX_FILES:
                raise BadRequest(f"{folder} holds more than {MAX_FILES} files", hint="name the folder of one run")
            yield Path(place) / name


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in _DIGITS.split(name)]


def _importer_by_name(path: Path, folder: Path, formats: Sequence[Importer]) -> Importer | None:
    """Return the probable importer of a file in a folder; most files there have none and are not opened.

    Raises:
        BadRequest: it has a name that we know, and holds nothing that we do.
    """
    named = next((importer for importer in formats if importer.named(path)), None)
    if named is None:
        return None
    if not path.is_file():
        raise BadRequest(f"{path} is a link to nothing, a pipe or a device, expected a file")
    if not is_inside(path, folder):
        raise BadRequest(f"{path} is a link out of {folder}", hint="name the file itself to import it")
    return named if named.by_name or _importer_of(path, formats) is named else None


def _importer_of(path: Path, formats: Sequence[Importer]) -> Importer:
    """Return a file's importer, by its content.

    Raises:
        BadRequest: no supported format.
    """
    if not path.is_file():
        what = "is a pipe or a device" if path.exists() else "is not there"
        raise BadRequest(f"{path} {what}, expected a file or a folder", hint=f"known are: {known(formats)}")
    try:
        head = head_of(path)
        found = next((importer for importer in formats if importer.takes(path, head)), None)
    except StabilityBoardError:
        raise
    except Exception as error:  # a file of another program may hold anything, and the next one is to be read
        raise unreadable(path, error) from error
    if found is not None:
        return found
    what = "is empty" if not head else f"begins with {head[:20]!r}"
    raise BadRequest(f"{path} {what}: nothing that can be imported", hint=f"known are: {known(formats)}")


def _rank_of(path: Path) -> int | None:
    match = _RANK.search(path.stem)
    return int(match[1]) if match else None


def _merged(plans: list[ImportPlan], run_id: str) -> ImportPlan:
    kinds = {plan.kind for plan in plans}
    if len(kinds) > 1 or "spool" in kinds:
        raise BadRequest(
            f"--run-id {run_id} with {', '.join(sorted(kinds))}: one run is made of files of one kind, and a spool has "
            "its own id",
            hint="import them one by one",
        )
    several = next((part for plan in plans for part in plan.parts if part.run and len(plans) > 1), None)
    if several is not None:
        raise BadRequest(
            f"--run-id {run_id} with {several.paths[0]}, which holds several runs: they can't become one",
            hint="import it without --run-id",
        )
    merged = plans[0]
    by_folder = merged.importer.by_folder
    common = Path(os.path.commonpath([path.resolve().parent for plan in plans for path in plan.paths]))
    parts: list[FilePart] = []
    for plan in plans:
        for part in plan.parts:
            first = part.paths[0].resolve()
            inside = first.parent if by_folder else first.with_suffix("")
            rank = _rank_of(inside) if len(plans) > 1 else None
            below = str(first.parent.relative_to(common)) if by_folder else "."
            prefix = f"{below}/" if len(plans) > 1 and rank is None and below != "." else ""
            parts.append(replace(part, rank=rank or 0, prefix=prefix))
    merged.parts, merged.run_id = parts, run_id
    merged.notes = [note for plan in plans for note in plan.notes]
    merged.refused = [problem for plan in plans for problem in plan.refused]
    if len(plans) > 1 and by_folder:
        merged.name = common.name
    return merged


def slug(text: str) -> str:
    """Return ``text`` as a part of a run id."""
    return _PLAIN.sub("-", text).strip("-._") or "run"
