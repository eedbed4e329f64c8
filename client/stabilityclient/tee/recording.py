"""Values that the script gave other trackers, as rows of the run. No failure here reaches the script."""

from __future__ import annotations

from stabilityclient.metrics.schemas import name_trouble
from stabilityclient.metrics.values import Types, flat, sort_values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from stabilityclient.run import Run

__all__ = ["Recording", "Stream"]

#: Sets of names remembered of a stream; a script with more of them is recorded more slowly, nothing else.
MAX_SHAPES = 1_000
#: Names with a recorded owner, at most: a name beyond them is taken from any stream.
MAX_NAMES = 20_000


class Stream:
    """Where values come from within a library: a run of W&B or MLflow, a folder of event files.

    Args:
        library: its title. label: distinguishes it from others of the library, where two use the same name.
    """

    def __init__(self, library: str, label: str) -> None:
        self.library = library
        self.label = label
        #: Names of a row -> their names here, None where all stay.
        self.renamed: dict[tuple[str, ...], dict[str, str] | None] = {}


class Recording:
    """The run, and the recorded values.

    Args:
        say: prints a text. step_key: the value that is the step, where it is configured.

    Attributes:
        newest: the newest step that the script gave, in any library; -1 before the first.
        stride: steps between the two newest rows, 0 before the second.
    """

    def __init__(self, run: Run, say: Callable[[str], None], step_key: str | None = None) -> None:
        self.run = run
        self.step_key = step_key
        self.newest = -1
        self.stride = 0
        self.closing: list[Callable[[], None]] = []
        self._steps: dict[str, int] = {}
        self._say = say
        self._said: set[str] = set()
        self._owners: dict[str, Stream] = {}
        self._types = Types()
        self._rows = 0
        self._troubles = 0

    def note_step(self, library: str, step: int) -> None:
        """Note a step that the script gave a library."""
        self._steps[library] = self.newest = step

    def elsewhere(self, library: str) -> int:
        """Return the newest step that the script gave another library, -1 for none."""
        return max((step for other, step in self._steps.items() if other != library), default=-1)

    def row(self, stream: Stream, step: int, values: Mapping[str, Any]) -> None:
        """Store the values that a stream gave at a step."""
        shape = tuple(values)
        try:
            renamed = stream.renamed[shape]
        except KeyError:
            renamed = self._named(stream, shape)
        if renamed is not None:
            values = {renamed[name]: value for name, value in values.items() if name in renamed}
        if not self._types.plain.issuperset(map(type, values.values())):
            values = self._numbers(values)
        run = self.run
        if not values:
            return
        before = run.logged_step
        run.log(step, values)
        self._rows += 1
        if step > before >= 0:
            self.stride = step - before

    def config(self, values: Mapping[str, Any]) -> None:
        """Add to the config of the run."""
        if values:
            self.run.update_config(values)

    def tell(self, text: str) -> None:
        """Print a text, once."""
        if text not in self._said:
            self._said.add(text)
            self._say(text)

    def trouble(self, what: str, error: Exception) -> None:
        """Count an exception of this package, and report it once."""
        self._troubles += 1
        try:
            if what not in self._said:
                self._said.add(what)
                self._say(f"{what}: {type(error).__name__}: {str(error)[:300]}; the script goes on")
        except Exception:  # a foreign __str__
            pass

    def close(self) -> None:
        """The process ends: take the held values, and report the untaken ones."""
        for each in self.closing:
            try:
                each()
            except Exception as error:
                self.trouble("the last values could not be taken", error)
        if not self._rows and self.run.folder is not None and self.run._settings.ranks.rank == 0:
            self._say("no values came: the script logged none to W&B, TensorBoard, MLflow or Trackio")
        if self._troubles:
            self._say(f"{self._troubles} calls could not be taken")

    def _named(self, stream: Stream, shape: tuple[str, ...]) -> dict[str, str] | None:
        """Return the names of a row as stored: a name belongs to the stream that used it first."""
        names: dict[str, str] = {}
        for name in shape:
            if name_trouble(name):
                continue
            owner = self._owners.get(name)
            if owner is None and len(self._owners) < MAX_NAMES:
                self._owners[name] = stream
            if owner is None or owner is stream:
                names[name] = name
            elif owner.library == stream.library:
                names[name] = f"{stream.label}/{name}"
            # else the script gives two libraries the same
        found = None if all(names.get(name) == name for name in shape) else names
        if len(stream.renamed) < MAX_SHAPES:
            stream.renamed[shape] = found
        return found

    def _numbers(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the storable part of values of any kind."""
        found = {
            name: value for name, value in flat(values, joint=".") if not (value is None or isinstance(value, str))
        }
        good, device, _ = sort_values(found, self._types)
        return {**good, **device}
