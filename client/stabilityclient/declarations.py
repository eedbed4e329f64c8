"""What a job says once about itself, beside its steps: which of its metrics is what."""

from __future__ import annotations

from stabilityclient.errors import RefusedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from stabilityclient.guard import Guard

__all__ = ["Declarations"]

#: Longest name of a metric or data set, characters, as ``log()`` takes it.
MAX_NAME_CHARS = 200
#: Data sets of one declaration.
MAX_DATASETS = 64


class Declarations:
    """The part of a run that takes declarations."""

    _guard: Guard

    def _event(self, kind: str, step: int | None, data: dict[str, Any]) -> None:
        raise NotImplementedError

    def names(
        self,
        *,
        loss: str | None = None,
        grad_norm: str | None = None,
        lr: str | None = None,
        batch_size: str | None = None,
        val_loss: str | None = None,
        tokens_per_s: str | None = None,
        step_time_s: str | None = None,
        losses: Mapping[str, str] | None = None,
        ratio: Mapping[str, str] | None = None,
        tokens: Mapping[str, str] | None = None,
        samples: Mapping[str, str] | None = None,
    ) -> None:
        """Say which of the metrics that the job logs is what, where their names do not.

        Known names (``train/loss``, ``learning_rate``, ...) need no call. A name that never comes is reported on the
        run's page.

        Args:
            loss, grad_norm, lr, batch_size, val_loss: names of metrics.
            tokens_per_s: any speed, whose unit does not matter. step_time_s: seconds of a step.
            losses: data set -> the metric that is its loss.
            ratio: data set -> the metric with its share of the data, of 1 or in percent.
            tokens, samples: data set -> the metric that counts what it gave, in each row or since the start.
        """
        roles = {
            "loss": loss, "grad_norm": grad_norm, "lr": lr, "batch_size": batch_size, "val_loss": val_loss,
            "tokens_per_s": tokens_per_s, "step_time_s": step_time_s,
        }  # fmt: skip
        sets = {"loss": losses, "ratio": ratio, "tokens": tokens, "samples": samples}
        try:
            data = {
                "roles": {role: _name(role, metric) for role, metric in roles.items() if metric is not None},
                "datasets": {role: _by_dataset(role, some) for role, some in sets.items() if some is not None},
            }
            self._event("names", None, data)
        except Exception as error:
            self._guard.caught("names()", error)


def _by_dataset(role: str, metrics: Mapping[str, str]) -> dict[str, str]:
    if len(metrics) > MAX_DATASETS:
        raise RefusedError([f"{role} names {len(metrics)} data sets, expected at most {MAX_DATASETS}"])
    return {_name(f"a data set of {role}", one): _name(f"{role} of {one}", metric) for one, metric in metrics.items()}


def _name(what: str, name: object) -> str:
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME_CHARS:
        raise RefusedError([f"{what} is {name!r:.80}, expected a name of 1 to {MAX_NAME_CHARS} characters"])
    return name
