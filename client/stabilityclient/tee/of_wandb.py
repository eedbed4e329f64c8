"""W&B: ``wandb.log``, ``Run.log``, ``wandb.init``, ``wandb.config``, ``define_metric``; disabled and offline too."""

from __future__ import annotations

import sys

from stabilityclient.step_names import whole
from stabilityclient.tee.counting import Counting
from stabilityclient.tee.library import Library
from stabilityclient.tee.recording import Recording, Stream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType
    from typing import Any

__all__ = ["Wandb"]


class _Run:
    """State of a run of W&B."""

    def __init__(self, run: Any, recording: Recording) -> None:
        label = str(getattr(run, "name", None) or getattr(run, "id", None) or "wandb")
        self.run = run  # kept: its id() is its name here
        self.stream = Stream(Wandb.title, label)
        self.steps = Counting(recording, Wandb.title, whole(getattr(run, "starting_step", 0)) or 0)
        #: Values of a row that is not complete.
        self.held: dict[str, Any] = {}
        self.config: dict[str, Any] = {}
        self.begun = False


class Wandb(Library):
    """W&B's Python package."""

    title = "W&B"
    modules = ("wandb",)

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording)
        self._runs: dict[int, _Run] = {}
        self._kind: Any = object
        recording.closing.append(self._close)

    def patch(self, name: str, module: ModuleType) -> None:
        self._kind = getattr(module, "Run", None) or module.sdk.wandb_run.Run
        kinds: list[Any] = [self._kind]
        while kinds:
            kind = kinds.pop()
            kinds += kind.__subclasses__()  # that of a disabled run has functions of its own
            for function, told in (("log", self._logged), ("define_metric", self._defined), ("finish", self._finished)):
                if function in vars(kind):
                    self.follow(kind, function, told, whole=function == "log")
        self.follow(module, "init", self._began, whole=False)

    def _known(self, run: Any) -> _Run:
        found = self._runs.get(id(run))
        if found is None:
            found = self._runs[id(run)] = _Run(run, self._recording)
        return found

    def _began(self, run: Any, *given: Any, **named: Any) -> None:
        if not isinstance(run, self._kind):
            # In old versions (0.16) a disabled run is no run, and has functions of its own.
            self.follow(run, "log", lambda _, *given, **named: self._logged(_, run, *given, **named))
            sys.modules["wandb"].log = run.log  # type: ignore[attr-defined]
        self._take_config(self._known(run))
        wandb = {key: getattr(run, key, None) for key in ("project", "name", "id", "group")}
        self._recording.config(
            {"wandb": {key: value for key, value in wandb.items() if value and isinstance(value, str)}}
        )

    def _logged(
        self,
        _: Any,
        run: Any,
        data: Mapping[str, Any],
        step: Any = None,
        commit: bool | None = None,
        *given: Any,
        **named: Any,
    ) -> None:
        known = self._known(run)
        if not known.begun:
            known.begun = True
            self._take_config(known)  # again: Hugging Face adds entries after init()
        steps = known.steps
        if step is None and commit is False:
            known.held.update(data)
            return
        values = data
        if known.held:
            values = {**known.held, **data}
            known.held = {}
        if step is not None:
            steps.count_to(int(step))
        self._recording.row(known.stream, steps.place(values, step), values)
        if step is None or commit:
            steps.commit()

    def _defined(self, _: Any, run: Any, name: Any = None, step_metric: Any = None, *given: Any, **named: Any) -> None:
        if step_metric is not None:
            self._known(run).steps.declare(str(getattr(step_metric, "name", step_metric)), str(name))

    def _finished(self, _: Any, run: Any, *given: Any, **named: Any) -> None:
        self._complete(self._known(run))

    def _complete(self, known: _Run) -> None:
        if known.held:
            values, known.held = known.held, {}
            self._recording.row(known.stream, known.steps.place(values), values)
        self._take_config(known)

    def _take_config(self, known: _Run) -> None:
        config = {key: value for key, value in dict(known.run.config).items() if not str(key).startswith("_")}
        if config != known.config:
            known.config = config
            self._recording.config(config)

    def _close(self) -> None:
        for known in self._runs.values():
            self._complete(known)
