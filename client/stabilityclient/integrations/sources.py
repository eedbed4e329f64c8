"""The loss of each data set (source) of a mixture, and its share of the samples, in any loop.

    from stabilityclient.integrations.sources import Sources

    sources = Sources(run, ["web", "code"])
    ...
    sources.add(losses, batch["source"])  # where the loss is computed

Logged metrics and their cost: docs/integrations/sources.md.
"""

from __future__ import annotations

import torch

from stabilityclient.integrations.shared.adapter import guarded, stand_around
from stabilityclient.integrations.shared.ranks import rank_and_world
from stabilityclient.rollback.decision import Rollback

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from stabilityclient.run import Run

__all__ = ["Sources"]


class Sources:
    """Logs ``loss/<source>`` and ``ratio/<source>`` of each step.

    ``loss/<source>`` is the mean over the step's samples of that source, on all ranks and in all micro-batches; a step
    without such a sample has none. ``ratio/<source>`` is its share of the step's samples, 0.0 to 1.0. Both are logged
    at the step's end, which is where ``run.boundary`` is called, as all integrations do. All ranks make one, with the
    same names in the same order, after the process group.

    Args:
        run: of :func:`stabilityclient.init`.
        names: of the sources; a batch names them, or numbers them in this order, from 0.
        every: steps over which is counted: with 10 each tenth step has the numbers of ten.

    Raises:
        ValueError: no names, or one of them twice; ``every`` is no whole number from 1 on.
    """

    def __init__(self, run: Run, names: Sequence[str], *, every: int = 1) -> None:
        if isinstance(names, str) or not names or len(set(names)) != len(names):
            raise ValueError(f"names is {names!r:.200}, expected the names of the sources, each once")
        if type(every) is not int or every < 1:
            raise ValueError(f"every is {every!r:.80}, expected a whole number from 1 on")
        self._run, self._every = run, every
        self._numbers = {str(name): number for number, name in enumerate(names)}
        #: Sum of the losses and number of the samples of this rank, a column for each source and one for samples of
        #: no source; None before the first.
        self._sums: torch.Tensor | None = None
        stand_around(run, "boundary", self._boundary)

    @guarded
    def add(self, losses: torch.Tensor, sources: Any, samples: int = 1) -> None:
        """Count samples; in each micro-batch. Where no gradients are computed, as in an evaluation, none are counted.

        Args:
            losses: one a sample, shape (samples,); or of one source the mean over its samples, one number.
            sources: of each sample the name or the number: a sequence, or whole numbers in a tensor of the same shape;
                or one name for all.
            samples: how many one number of ``losses`` is the mean over.
        """
        if not torch.is_grad_enabled():
            return
        losses = losses.detach()
        if losses.ndim > 1:
            raise ValueError(f"losses has the shape {tuple(losses.shape)}, expected one number a sample")
        losses = losses.reshape(-1).to(torch.float64 if losses.device.type == "cpu" else torch.float32)
        numbers = self._numbered(sources, len(losses)).to(losses.device)
        if numbers.shape != losses.shape:
            raise ValueError(f"{len(losses)} losses and {numbers.numel()} sources, expected as many of both")
        if self._sums is None:
            self._sums = torch.zeros(2, len(self._numbers) + 1, dtype=losses.dtype, device=losses.device)
        self._sums[0].index_add_(0, numbers, losses * samples)
        self._sums[1].index_add_(0, numbers, torch.full_like(losses, samples))

    def _numbered(self, sources: Any, count: int) -> torch.Tensor:
        last = len(self._numbers)
        if isinstance(sources, torch.Tensor):
            numbers = sources.detach().reshape(-1).long()
            # On a GPU a number out of range would end the job.
            return torch.where((numbers >= 0) & (numbers < last), numbers, last)
        named = [sources] * count if isinstance(sources, str) else [*sources]
        numbers_of = [self._numbers.get(one, last) if isinstance(one, str) else int(one) for one in named]
        return torch.tensor([number if 0 <= number < last else last for number in numbers_of], dtype=torch.long)

    # --- at the end of a step ------------------------------------------------------------------------------------

    def _boundary(self, original: Callable[..., Any], step: int, *given: Any, **named: Any) -> Any:
        self.log(step - 1)
        order = original(step, *given, **named)
        if isinstance(order, Rollback):
            self._sums = None  # of steps that are dead now
        return order

    @guarded
    def log(self, step: int) -> None:
        """Log the counts up to the end of ``step``; for loops over ``run.steps``, on all ranks.

        In a loop with ``run.boundary``, and under every integration, that is done by itself.
        """
        if step % self._every:
            return
        sums, self._sums = self._sums, None
        if rank_and_world()[1] > 1:
            if sums is None:  # of a stage of a pipeline that computes no loss, say
                on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
                kind = {"dtype": torch.float32, "device": "cuda"} if on_gpu else {"dtype": torch.float64}
                sums = torch.zeros(2, len(self._numbers) + 1, **kind)
            torch.distributed.all_reduce(sums)
        if sums is None:
            return
        losses, counts = sums.tolist()
        if not (total := sum(counts)):
            return
        values: dict[str, float] = {}
        for name, loss, count in zip(self._numbers, losses, counts, strict=False):
            values[f"ratio/{name}"] = count / total
            if count:
                values[f"loss/{name}"] = loss / count
        self._run.log(step, values)
        if counts[-1]:
            known = ", ".join(self._numbers)
            self._run._guard.note("sources", f"{counts[-1]:g} samples of step {step} are of none of {known[:200]}")
