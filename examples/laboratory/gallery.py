"""All faults by name, in the order of the documentation."""

from __future__ import annotations

from data_faults import (
    CorruptDataset,
    EmptyRow,
    GarbageBatches,
    LabelNoise,
    LabelNoiseDataset,
    MixDrift,
    WrongTokenizer,
)
from fault import Fault
from harmless import HARMLESS
from machine_faults import SlowLoader, SlowRank
from more_harmless import MORE_HARMLESS
from optimizer_faults import (
    GradSpikes,
    KilledByLr,
    LossScale,
    LrBump,
    LrCreep,
    LrWindow,
    NegativeDecay,
    NeverLearns,
    StaleParameters,
)
from restart_faults import LostShard, LrReset, MixAfterResume, RepeatData
from seeds import TUNING_SEEDS
from slow_faults import BitFlip, EarlyCreep, LowLossSpike, PartlyCorruptDataset, SlowCreep
from train_faults import OddBatch, SparseSpike, SpikeAfterKill, SpikeTrain
from wave_faults import HealthyLargeResume, LostOptimizer, SmallMoments, WarmUpAgain

__all__ = ["FAULTS", "TUNING_SEEDS", "make_fault"]

_ALL: tuple[type[Fault], ...] = (
    GarbageBatches, CorruptDataset, WrongTokenizer, LrBump, LrWindow, KilledByLr, LrCreep, NegativeDecay, NeverLearns,
    StaleParameters, EmptyRow, LossScale, LabelNoise, LabelNoiseDataset, MixDrift, MixAfterResume, LostShard,
    LrReset, RepeatData, GradSpikes, SlowLoader, SlowRank, SpikeTrain, SpikeAfterKill, OddBatch, SparseSpike,
    EarlyCreep, SlowCreep, LostOptimizer, SmallMoments, WarmUpAgain, PartlyCorruptDataset, BitFlip, LowLossSpike,
    *HARMLESS, *MORE_HARMLESS, HealthyLargeResume,
)  # fmt: skip
#: Name for ``--fault`` -> fault.
FAULTS: dict[str, type[Fault]] = {fault.name: fault for fault in _ALL}


def make_fault(name: str, seed: int) -> Fault:
    """Return the fault called ``name`` with its dice thrown by ``seed``.

    Raises:
        ValueError: there is no such fault.
    """
    if name not in FAULTS:
        raise ValueError(f"there is no fault {name!r}, expected one of {', '.join(FAULTS)}")
    return FAULTS[name](seed)
