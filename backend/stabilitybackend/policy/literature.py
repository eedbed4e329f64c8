"""What others found to help, and the lists to go through: the words of the suggestions, each with its source.

Nothing here is measured by us unless it says so. A source is named as "title (arXiv number): what it found".
"""

from __future__ import annotations

__all__ = [
    "ADAM", "ADAM_CHECKS", "ATTENTION_LOGITS", "GRADIENTS", "IDEFICS", "LEVEL_CHECKS", "LOADER_CHECKS",
    "MEASURED_GRADIENTS", "MEGATRON", "MIX_CHECKS", "NONFINITE_CHECKS", "OPT", "OUTPUT_LOGITS", "PALM",
    "PLATEAU_CHECKS", "PROXIES", "REPEAT_CHECKS", "RESUMES", "RESUME_CHECKS", "RULE_OF_THUMB", "STRAGGLER_CHECKS",
]  # fmt: skip

RULE_OF_THUMB = "rule of thumb"
PALM = "PaLM (arXiv 2204.02311): restart about 100 steps before the spike and skip 200 to 500 batches"
OPT = "OPT-175B (arXiv 2205.01068): after a divergence, an earlier checkpoint with a lower learning rate"
IDEFICS = (
    "IDEFICS-80B training chronicle (huggingface/m4-logs): spikes that come at once mostly recover; after a rollback "
    "that did not help, an earlier checkpoint and a lower learning rate"
)
RESUMES = "IDEFICS-80B training chronicle (huggingface/m4-logs): a learning rate that was silently reset cost rollbacks"
PROXIES = (
    "Small-scale proxies for training instabilities (arXiv 2309.14322): z-loss 1e-4 against drifting output logits, "
    "QK-norm against growing attention logits"
)
ADAM = (
    "StableAdamW (arXiv 2304.13013): loss spikes come 1 to 8 steps after Adam's second moment under-estimates the "
    "gradients; the same mechanism in arXiv 2506.04805 and 2304.09871"
)
MEGATRON = "Megatron-LM's rerun state machine: the same step again, on the same and on another GPU"
MEASURED_GRADIENTS = (
    "measured on public logs: of 56 gradient spikes above 4x none was followed by a rise of the loss beyond its noise"
)

#: Adam's state is suspected: what to change before going on.
ADAM_CHECKS = (
    "Adam's beta2: 0.95 instead of 0.999 lets the second moment follow the gradients in tens of steps.",
    "Clip the update, not only the gradient (StableAdamW divides the rate by max(1, RMS of g/sqrt(v))).",
    "Adam's epsilon: where the gradients' RMS has fallen towards 1e-8 it eats the update; lower it (2309.14322).",
)
OUTPUT_LOGITS = "{metric} grew by {rise:.0f} %: add z-loss with coefficient 1e-4, or see that it is on."
ATTENTION_LOGITS = "{metric} grew by {rise:.0f} %: normalise queries and keys (QK-norm) before the next long run."
#: What must be equal before and after a resume.
RESUME_CHECKS = (
    "Learning rate: is the first logged one that of the schedule at this step?",
    "Optimizer: were both moments and the step count loaded, on every rank?",
    "Data position: does the sampler go on after step x batch size samples, or from the beginning?",
    "Seed of the shuffle: does it depend on the epoch (set_epoch), so that the order is the one of before?",
    "RNG states of every rank, dropout and loss scaler: restored, or new?",
    "World size, batch size and accumulation: as before?",
)
MIX_CHECKS = (
    "Sampling weights after the resume: from the configuration, or from the state of the loader?",
    "Position of each data set: did one start anew, or run out?",
    "Workers and shards: as many as before, each with its own seed?",
    *RESUME_CHECKS[2:4],
)
REPEAT_CHECKS = (
    RESUME_CHECKS[2],
    RESUME_CHECKS[3],
    "Epoch counter: was it stored, or does the first epoch begin again?",
    "run.batch(step, fingerprint) in the job: equal fingerprints prove it.",
)
NONFINITE_CHECKS = (
    "Which came first, loss or gradient norm? The table of first moves says so.",
    "Run the step again with the same batch: the same NaN points to data or code, another value to a machine.",
    "fp16: look at the loss scale; single overflows that the scaler skips are normal.",
    "Look at the batch: empty sequences, a mask that hides everything, a division by a count of 0.",
)
LEVEL_CHECKS = (
    "Learning rate and batch size at this step: as planned?",
    "Loss reduction: mean over tokens or over samples, and over how many ranks?",
    "Data: a new shard, another tokeniser, another length of the sequences?",
)
PLATEAU_CHECKS = (
    "Learning rate: too low, or so high that it only jumps about? Try three times and a third of it for some steps.",
    "Gradient norm: near 0 means a dead start (initialisation, frozen parameters, a detached loss).",
    "Labels: shuffled against the inputs, or all masked?",
    "Overfit one batch: a model that can't is broken, not slow.",
)
LOADER_CHECKS = (
    "Phases of the ranks: does the time go into data, checkpoint or eval?",
    "Clocks, power and temperature of the GPUs: throttled?",
    "The file system and the network of the loader; a node that swaps.",
)
STRAGGLER_CHECKS = (
    "Clocks, power and temperature of its GPU against the others'.",
    "Its node: a second job, full memory, a slow disk, network errors.",
    "Swap it with a healthy node: does the delay go with the machine or stay with the rank's share of the work?",
)
GRADIENTS = "On its own no reason to act: watch the loss."
