"""The SpikeScores of a run as it is now."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from stabilitybackend.detectors.engine.metric_roles import GRAD_NORM
from stabilitybackend.query.lineage_view import LineageView
from stabilitybackend.query.spike_score import spike_scores
from stabilitybackend.runs.worker import RunWorker
from stabilitybackend.schema.series import SpikeScores

__all__ = ["scores_of"]


def scores_of(worker: RunWorker) -> Callable[[], SpikeScores]:
    """Return a function that reads them, for a thread; call this one on the event loop."""
    state, names = worker.state, worker.state.judge.names
    loss = worker.run().loss_metric
    norm = next((name for name in state.store.metrics() if names.compared_as(name) == GRAD_NORM), None)
    view = state.store.view([name for name in (loss, norm) if name is not None])
    return partial(spike_scores, view, LineageView.of(state.fold), loss, norm)
