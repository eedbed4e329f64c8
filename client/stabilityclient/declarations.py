"""What a job says once about itself, beside its steps: which of its metrics is what, which data it means to take."""

from __future__ import annotations

from stabilityclient.arguments import step_of
from stabilityclient.errors import RefusedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from stabilityclient.guard import Guard
    from stabilityclient.run_components import RunComponents

__all__ = ["Declarations"]

#: Longest name of a metric or data set, characters, as ``log()`` takes it.
MAX_NAME_CHARS = 200
#: Data sets of one declaration.
MAX_DATASETS = 64
#: Shares add up to 1 within this: they are written with two or three digits.
SUM_ERROR = 0.01


class Declarations:
    """The part of a run that takes declarations."""

    _guard: Guard
    _components: RunComponents | None

    def _event(self, kind: str, step: int | None, data: dict[str, Any]) -> bool:
        raise NotImplementedError

    def update_config(self, values: Mapping[str, Any]) -> None:
        """Add to the config that ``init()`` was given; a key that is there already gets the new value.

        Call it now and then at most: the node's agent introduces the run to the server again.

        Args:
            values: anything that JSON can hold; other things become their text.
        """
        parts = self._components
        if parts is None:
            return
        try:
            from stabilityclient.start import add_config

            add_config(parts.folder, values, lambda text: self._guard.note("update_config()", text))
        except Exception as error:
            self._guard.caught("update_config()", error)

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

    def mixture(self, shares: Mapping[str, float], *, unit: str = "tokens", step: int | None = None) -> None:
        """Declare which share of the data each data set is to be; what is logged of each is compared with that.

        What was taken comes from metrics: ``tokens/<data set>`` or ``samples/<data set>`` (in each row, or growing), or
        shares such as ``ratio/<data set>``; :meth:`names` tells others. A later call is a new target; call it once for
        tokens and once for samples where both are meant.

        Args:
            shares: data set -> share; all of them, together 1.
            unit: ``tokens`` or ``samples``.
            step: the step from which they hold, for a schedule that is known before; None: from the next one on.
        """
        try:
            if unit not in ("tokens", "samples"):
                raise RefusedError([f"unit is {unit!r:.80}, expected 'tokens' or 'samples'"])
            given = {_name("a data set", one): _share(one, share) for one, share in shares.items()}
            whole = sum(given.values())
            if not 1 <= len(given) <= MAX_DATASETS or abs(whole - 1) > SUM_ERROR:
                raise RefusedError(
                    [f"{len(given)} shares add up to {whole:.6g}, expected 1 to {MAX_DATASETS} that add up to 1"]
                )
            data = {"shares": {one: share / whole for one, share in given.items()}, "unit": unit}
            self._event("mixture", None if step is None else step_of(step), data)
        except Exception as error:
            self._guard.caught("mixture()", error)


def _share(dataset: str, share: object) -> float:
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
        raise RefusedError([f"the share of {dataset!r:.80} is {share!r:.80}, expected a number from 0 to 1"])
    return float(share)


def _by_dataset(role: str, metrics: Mapping[str, str]) -> dict[str, str]:
    if len(metrics) > MAX_DATASETS:
        raise RefusedError([f"{role} names {len(metrics)} data sets, expected at most {MAX_DATASETS}"])
    return {_name(f"a data set of {role}", one): _name(f"{role} of {one}", metric) for one, metric in metrics.items()}


def _name(what: str, name: object) -> str:
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME_CHARS:
        raise RefusedError([f"{what} is {name!r:.80}, expected a name of 1 to {MAX_NAME_CHARS} characters"])
    return name
