"""MLflow: ``mlflow.log_metric(s)`` and ``log_param(s)``, and the same of ``MlflowClient`` with ``log_batch``."""

from __future__ import annotations

import sys

from stabilityclient.step_names import whole
from stabilityclient.tee.library import Library
from stabilityclient.tee.recording import Recording, Stream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import ModuleType
    from typing import Any

__all__ = ["Mlflow"]


class Mlflow(Library):
    """MLflow's tracking."""

    title = "MLflow"
    modules = ("mlflow.tracking.client", "mlflow.tracking.fluent")

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording)
        self._streams: dict[str, Stream] = {}
        #: (run, metric) -> values without a step.
        self._counts: dict[tuple[str, str], int] = {}

    def patch(self, name: str, module: ModuleType) -> None:
        if name.endswith("client"):
            client = module.MlflowClient
            self.follow(client, "log_metric", self._client_metric)
            self.follow(client, "log_batch", self._client_batch)
            self.follow(client, "log_param", self._client_param)
        else:  # functions that a script calls; the client's functions below them know no missing step
            self.follow(module, "log_metric", self._metric)
            self.follow(module, "log_metrics", self._metrics)
            self.follow(module, "log_param", self._param)
            self.follow(module, "log_params", self._params)

    def _metric(
        self, _: Any, key: str, value: Any, step: Any = None, *given: Any, run_id: str | None = None, **named: Any
    ) -> None:
        self._row(run_id, {key: value}, step)

    def _metrics(
        self,
        _: Any,
        metrics: Mapping[str, Any],
        step: Any = None,
        *given: Any,
        run_id: str | None = None,
        **named: Any,
    ) -> None:
        self._row(run_id, metrics, step)

    def _param(self, _: Any, key: str, value: Any, *given: Any, **named: Any) -> None:
        self._recording.config({key: value})

    def _params(self, _: Any, params: Mapping[str, Any], *given: Any, **named: Any) -> None:
        self._recording.config(params)

    def _client_metric(
        self,
        _: Any,
        client: Any,
        run_id: str,
        key: str,
        value: Any,
        timestamp: Any = None,
        step: Any = None,
        *given: Any,
        **named: Any,
    ) -> None:
        self._row(run_id, {key: value}, step)

    def _client_batch(
        self,
        _: Any,
        client: Any,
        run_id: str,
        metrics: Iterable[Any] = (),
        params: Iterable[Any] = (),
        *given: Any,
        **named: Any,
    ) -> None:
        rows: dict[int | None, dict[str, Any]] = {}
        for one in metrics:
            row = rows.setdefault(one.step, {})
            if one.key in row:
                self._row(run_id, {one.key: one.value}, one.step)
            else:
                row[one.key] = one.value
        for step, row in rows.items():
            self._row(run_id, row, step)
        self._recording.config({one.key: one.value for one in params})

    def _client_param(self, _: Any, client: Any, run_id: str, key: str, value: Any, *given: Any, **named: Any) -> None:
        self._recording.config({key: value})

    def _row(self, run_id: str | None, values: Mapping[str, Any], given: Any) -> None:
        if run_id is None:
            run_id = _active_run()
        stream = self._streams.get(run_id)
        if stream is None:
            stream = self._streams[run_id] = Stream(self.title, run_id[:8] or "mlflow")
        step = whole(given)
        if step is not None:
            self._recording.note_step(self.title, step)
        elif (step := self._recording.newest) < 0:
            for name in values:  # MLflow itself stores them all at step 0
                place = (run_id, name)
                step = max(step, self._counts.get(place, 0))
                self._counts[place] = self._counts.get(place, 0) + 1
        self._recording.row(stream, step, values)


def _active_run() -> str:
    active = sys.modules["mlflow.tracking.fluent"].active_run()
    return "" if active is None else str(active.info.run_id)
