"""The commands of a drill's legs: the user's own, with the leg's folder and the number of ranks filled in."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from stabilitybackend.base.errors import WRONG_USE, BadRequest

__all__ = ["Commands", "fill"]

_DIR = "{dir}"
_VARIABLE = "STABILITY_DRILL_DIR"
#: How torchrun is given its ranks, in one argument or in two.
_NPROC = re.compile(r"--nproc[-_]per[-_]node(=\d+)?")
#: Of a working folder these are not copied: large, and no job writes there.
_NOT_COPIED = shutil.ignore_patterns(".git", ".venv", "__pycache__", "node_modules", ".stability*")


class Commands:
    """Checks how the job was given, before anything is started.

    Args:
        command: of the straight and the stopped leg. resume_command: a whole command line of the resumed leg, or empty.
        resume_args: added to ``command`` for the resumed leg. ranks: of the resumed leg, None for as many.
        copy: run each leg in a copy of the working folder. here: the job itself keeps its files apart.

    Raises:
        BadRequest: there is no command, it could write over real checkpoints, or its ranks can't be set.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        resume_command: str = "",
        resume_args: str = "",
        ranks: int | None = None,
        copy: bool = False,
        here: bool = False,
    ) -> None:
        self._copy = copy
        self.here = here
        self.straight = list(command)
        if not self.straight:
            raise BadRequest("no command is given", hint="stabilityboard drill -- COMMAND...", code=WRONG_USE)
        if resume_command and resume_args:
            raise BadRequest("--resume-command and --resume-args are both given, expected one", code=WRONG_USE)
        self.resumed = shlex.split(resume_command) or [*self.straight, *shlex.split(resume_args)]
        if ranks is not None:
            self.resumed = _with_ranks(self.resumed, ranks)
        for each in (self.straight, self.resumed):
            if not (copy or here or any(_DIR in part or _VARIABLE in part for part in each)):
                raise BadRequest(
                    f"nothing keeps the drill's checkpoints apart from the real ones: {shlex.join(each)}",
                    hint="write {dir} where the command names its checkpoint folder, e.g. --output {dir}/checkpoints "
                    f"(or ${_VARIABLE} in a shell or a config); --copy runs it in a copy of the working folder; "
                    "--here if the job keeps them apart by itself",
                    code=WRONG_USE,
                )

    def working_folder(self, job_dir: Path) -> Path:
        """Return where a leg runs; with ``copy`` a copy of the present folder, made when it is not there yet."""
        job_dir.mkdir(parents=True, exist_ok=True)
        if not self._copy:
            return Path.cwd()
        place = job_dir / "copy"
        if not place.exists():
            shutil.copytree(Path.cwd(), place, symlinks=True, ignore=_NOT_COPIED)
        return place


def fill(command: Sequence[str], job_dir: Path) -> list[str]:
    """Return the command with the leg's folder in place of ``{dir}``."""
    return [part.replace(_DIR, str(job_dir)) for part in command]


def _with_ranks(command: list[str], ranks: int) -> list[str]:
    """Return the command with torchrun's ``--nproc-per-node`` set to so many ranks."""
    found, given = list(command), False
    for at, part in enumerate(command):
        match = _NPROC.fullmatch(part)
        if match and match[1]:
            found[at], given = f"{part.partition('=')[0]}={ranks}", True
        elif match and at + 1 < len(found):
            found[at + 1], given = str(ranks), True
    if not given:
        raise BadRequest(
            "--ranks: the command says nowhere on how many ranks it runs",
            hint="give torchrun's --nproc-per-node in the command, or the whole --resume-command",
            code=WRONG_USE,
        )
    return found
