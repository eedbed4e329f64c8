"""Base of all importers: one format of files that runs are made from, one class, one line in ``formats.py``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from stabilitybackend.base.errors import StabilityBoardError
from stabilityplugins.importers.batches import PAUSE, Batch
from stabilityplugins.importers.problems import Problem, Reading

__all__ = ["FilePart", "ImportPlan", "Importer", "in_turn", "message_class", "name_below"]


@dataclass(frozen=True, slots=True)
class FilePart:
    """Files of one start or folder of a run.

    Args:
        rank: whose. prefix: put before every metric name. run: of a file that holds several, the one that is read.
    """

    paths: tuple[Path, ...]
    rank: int = 0
    prefix: str = ""
    run: str = ""


@dataclass(slots=True)
class ImportPlan:
    """One run to import.

    Attributes:
        importer: of its format. parts: its files, in order. name: for display.
        run_id: None: made from the name and the content. project, config: from the files.
        notes: decisions. refused: files among these that can't be read.
        exported: the run's facts in an export of this server, None of other files.
    """

    importer: Importer
    parts: list[FilePart]
    name: str
    run_id: str | None = None
    project: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    refused: list[Problem] = field(default_factory=list)
    exported: dict[str, Any] | None = None

    @property
    def kind(self) -> str:
        """Name of its format."""
        return self.importer.name

    @property
    def paths(self) -> list[Path]:
        """All files, in order."""
        return [path for part in self.parts for path in part.paths]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(path.stat().st_size for path in self.paths if path.is_file())


class Importer:
    """Knows one format of files: which they are, which runs they hold, and their rows.

    Only ``takes`` and ``read`` have to be there; the rest is for formats in which a run is more than a file.

    Class attributes:
        name: unique, lower case. label: its common name. known: its files, within a sentence.
        suffixes: of its files, lower case. In a folder only files of such a name are opened.
        may_hold: of files that may be such; in a folder they are opened where no other file is recognized.
        by_name: a file of such a name is one, whatever its content: a damaged one is reported and not passed over.
        by_folder: the files of one folder are one run.
        follows: its reader heeds ``Reading.following``, so that files of this format can be followed as they grow.
        rewritten: such a file is rewritten when something is added, and not appended to.
    """

    name: ClassVar[str]
    label: ClassVar[str]
    known: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]] = ()
    may_hold: ClassVar[tuple[str, ...]] = ()
    by_name: ClassVar[bool] = False
    by_folder: ClassVar[bool] = False
    follows: ClassVar[bool] = False
    rewritten: ClassVar[bool] = False

    def named(self, path: Path) -> bool:
        """Say whether a file has a name as these files do."""
        return path.name.lower().removesuffix(".gz").endswith(self.suffixes) if self.suffixes else False

    def takes(self, path: Path, head: bytes) -> bool:
        """Say whether a file is of this format, from its first 64 KiB.

        Raises:
            BadRequest: it is, and can't be read.
        """
        raise NotImplementedError

    def sniff(self, path: Path) -> object:
        """Look into a file of a folder before the others are read with it. Raises BadRequest where it can't be read."""
        return None

    def plans(self, paths: list[Path], root: Path) -> list[ImportPlan]:
        """Return the runs in files of this format below ``root``: here one a file, called by its path."""
        return [ImportPlan(self, [FilePart((path,))], name_below(path.parent / path.stem, root)) for path in paths]

    def joined(self, plans: list[ImportPlan]) -> list[ImportPlan]:
        """Return all runs of this format that were found, those put together that are one."""
        return plans

    def prepare(self, parts: Sequence[FilePart], reading: Reading) -> Any:
        """Return the input of ``batches``, once a run; decisions are noted."""
        return parts

    def batches(self, prepared: Any, reading: Reading, step_key: str | None) -> Iterator[Batch]:
        """Yield the rows of a run, from the beginning, at every call."""
        reading.parts = prepared
        return in_turn((self._whole(part, at, reading, step_key) for at, part in enumerate(prepared)), reading)

    def _whole(self, part: FilePart, number: int, reading: Reading, step_key: str | None) -> Iterator[Batch]:
        of_run = {"run": part.run} if part.run else {}  # only formats with several runs in a file know it
        path, prefix = part.paths[0], part.prefix
        yield from self.read(path, number, reading, rank=part.rank, prefix=prefix, step_key=step_key, **of_run)
        yield from reading.rest_of_file()

    def read(
        self, path: Path, number: int, reading: Reading, *, rank: int = 0, prefix: str = "", step_key: str | None = None
    ) -> Iterator[Batch]:
        """Yield the rows of one file.

        Args:
            number: of the file in its run. rank: whose rows these are. prefix: put before every name.
            reading: takes unreadable places (``problem``), decisions (``note``) and the progress.
            step_key: the column that holds the step; None: the usual ones.

        Raises:
            BadRequest: no row can be read.
        """
        raise NotImplementedError

    def place(self, plan: ImportPlan) -> Path:
        """Return the identity of a run whose files grow in number: here its first file."""
        return plan.paths[0]

    def appended(self, plan: ImportPlan) -> list[Path]:
        """Return the files of a run that grow at their ends only: one that changes otherwise was replaced."""
        return [] if self.rewritten else plan.paths

    def start_of_file(self, path: Path) -> tuple[str, int] | None:
        """Return host and process id of the start that a file is of, None where the format knows none."""
        return None


def in_turn(readers: Iterable[Iterator[Batch]], reading: Reading) -> Iterator[Batch]:
    """Yield the rows of several files, one file after the other; of files that are followed, from end to end in turn.

    ``PAUSE`` comes once all of them are at their ends.
    """
    left = list(readers)
    while left:
        for reader in list(left):
            for batch in reader:
                if batch is PAUSE:
                    break
                yield batch
            else:
                left.remove(reader)
        if left and reading.following:
            yield PAUSE


def message_class(module: str, name: str, files: str) -> Any:
    """Return the protobuf class ``name`` of ``module``.

    Args:
        files: read with it, for the message.

    Raises:
        StabilityBoardError: its package is not installed.
    """
    try:
        return getattr(import_module(module), name)
    except ImportError as error:
        package = module.partition(".")[0]
        raise StabilityBoardError(
            f"{files} are read with the package {package}, which is not there ({error})",
            hint='pip install "stabilityboard[import]"',
            code="missing_package",
        ) from error


def name_below(place: Path, root: Path) -> str:
    """Return a run's display name: its path below the folder that was given, with that folder's own name."""
    place, root = place.resolve(), root.resolve()
    if place == root or root not in place.parents:
        return place.name
    return f"{root.name}/{place.relative_to(root)}"
