"""Says which labelled logs the authors of today's numbers had in sight: a score on those is no claim."""

from __future__ import annotations

import subprocess
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from constants import constants_of

__all__ = ["chosen_on", "constant_texts"]

REPOSITORY = Path(__file__).resolve().parents[2]
#: Version whose rules were written with some folders of public logs in sight -> these folders. What changed since was
#: written with all of them in sight.
SEEN: Mapping[str, tuple[str, ...]] = {"62f28c5": ("dev",)}
#: Folder of the detectors, now and at versions before.
_DETECTORS = ("backend/stabilitybackend/judging/detectors/", "backend/stabilitybackend/detectors/")


def constant_texts(packages: Collection[str] = ("judging/detectors",)) -> dict[str, tuple[str, str]]:
    """Return the documented constants of the detectors as ``file:NAME`` -> (value, what it is).

    Args:
        packages: folders below the backend's that are looked through; files are named below the backend's package.
    """
    package = REPOSITORY / "backend" / "stabilitybackend"
    files = sorted(path for folder in packages for path in (package / folder).rglob("*.py"))
    return {
        f"{path.relative_to(package)}:{name}": (value, text)
        for path in files
        for name, value, text in _of(path.read_text())
    }


def chosen_on(folders: list[str]) -> str:
    """Return in sentences which of the folders each constant of the detectors was chosen on.

    Args:
        folders: names of the folders that are scored.
    """
    now = [(name.partition(":")[2], value) for name, (value, _) in constant_texts().items()]
    lines = []
    for version, seen in SEEN.items():
        before = _at(version)
        if before is None:
            lines.append(f"Version {version} is not in this clone: which constants changed since can't be said.")
            continue
        same = sum(one in before for one in now)
        unseen = [folder for folder in folders if folder not in seen]
        lines.append(
            f"{same} of {len(now)} constants of the detectors are as in {version}, chosen with {', '.join(seen)} in "
            f"sight{f' and never on {chr(44).join(unseen)}' if unseen else ''}; {len(now) - same} are new or changed "
            f"since, by people who had {', '.join(folders)} before them."
        )
    return "\n".join(lines)


def _at(version: str) -> set[tuple[str, str]] | None:
    """Return (name, value) of the constants of the detectors at a version, None where git does not know it."""
    listed = _git("ls-tree", "-r", "--name-only", version, *_DETECTORS)
    if listed is None:
        return None
    sources = [_git("show", f"{version}:{path}") for path in listed.splitlines() if path.endswith(".py")]
    return {(name, value) for source in sources if source for name, value, _ in _of(source)}


def _of(source: str) -> Iterator[tuple[str, str, str]]:
    """Yield (name, value, text) of each documented constant; those that are assigned together one by one."""
    for names, values, text in constants_of(source):
        several = [name.strip() for name in names.split(",")]
        if len(several) == 1:
            yield names, values, text
        else:
            for name, value in zip(several, values.split(","), strict=True):
                yield name, value.strip(), text


def _git(*command: str) -> str | None:
    done = subprocess.run(["git", *command], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None
