"""What ``accelerator.save_state`` writes becomes a checkpoint that is known, with the place in the data beside it."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from typing import NamedTuple

from stabilityclient.integrations.shared.guarded import guarded, stand_around

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from stabilityclient.run import Run

__all__ = ["Saved", "Saving"]

#: A file of ours in the folder: an object registered for checkpointing would make it unreadable to other scripts.
_FILE = "stabilityboard.json"


class Saved(NamedTuple):
    """Where training is.

    Args:
        step: the last that was trained. epoch: passes that are over. gone: batches of the next pass, on this rank, that
            were trained or left out.
        order: state of the generator from which the order of this pass was drawn, in hex, None where none is.
        ordered: id of the rollback that changed the state last (``Unsaved.ordered``).
    """

    step: int = 0
    epoch: int = 0
    gone: int = 0
    order: str | None = None
    ordered: str = ""


class Saving:
    """Stands around ``save_state`` and ``backward`` of an accelerator.

    Args:
        state: returns what is saved now, None amid a step. enter: names the phase that begins.
        saved: is told the folder of each checkpoint, on the main process.
    """

    def __init__(
        self,
        accelerator: Any,
        run: Run,
        state: Callable[[], Saved | None],
        enter: Callable[[str | None], None],
        saved: Callable[[Any], None],
    ) -> None:
        self._accelerator, self._run, self._state, self._enter, self._saved = accelerator, run, state, enter, saved
        #: The step of the newest checkpoint, and its folder.
        self.step: int | None = None
        self.path = ""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Stand around until the end."""
        accelerator = self._accelerator
        leave = [
            stand_around(accelerator, "save_state", self._save_state),
            stand_around(accelerator, "backward", self._backward),
        ]
        try:
            yield
        finally:
            for put_back in leave:
                put_back()

    def _save_state(self, original: Callable[..., Any], *given: Any, **named: Any) -> Any:
        self._enter(None)
        with self._run.phase("checkpoint"):
            path = original(*given, **named)
            self._report(path)
        return path

    def _backward(self, original: Callable[..., Any], *given: Any, **named: Any) -> Any:
        self._enter("backward")
        done = original(*given, **named)
        self._enter(None)
        return done

    @guarded
    def _report(self, path: Any) -> None:
        state = self._state()
        if state is None:
            return
        self.step, self.path = state.step, os.path.abspath(path)
        if not self._accelerator.is_main_process:
            return
        with open(os.path.join(path, _FILE), "w") as file:
            json.dump(state._asdict(), file)
        self._saved(path)
        self._run.checkpoint(state.step, path)

    def read(self, path: Any) -> Saved:
        """Return where training was when a folder was written.

        Raises:
            OSError: it was written by somebody else.
        """
        with open(os.path.join(path, _FILE)) as file:
            return Saved(**json.load(file))
