"""Remedies and checklists of others: the texts of suggestions, each with its source.

No own measurements unless marked. A source is "title (arXiv number): result".
"""

from __future__ import annotations

RULE_OF_THUMB = "rule of thumb"
PALM = "PaLM (arXiv 2204.02311): restart about 100 steps before the spike and skip 200 to 500 batches"
OPT = "OPT-175B (arXiv 2205.01068): after a divergence, an earlier checkpoint with a lower learning rate"
IDEFICS = (
    "IDEFICS-80B training chronicle (huggingface/m4-logs): spikes that come at once mostly recover; after a rollback "
    "that did not help, an earlier checkpoint and a lower learning rate"
)
RESUMES = "IDEFICS-80B training chronicle (huggingface/m4-logs): a learning rate that was silently reset cost rollbacks"
PROXIES = "Small-scale proxies for training instabilities (arXiv 2309.14322)"
ADAM = (
    "StableAdamW (arXiv 2304.13013): loss spikes come 1 to 8 steps after Adam's second moment under-estimates the "
    "gradients; the same mechanism in arXiv 2506.04805 and 2304.09871"
)
MEGATRON = "Megatron-LM's rerun state machine: the same step again, on the same and on another GPU"
MEASURED_GRADIENTS = (
    "measured on public logs: of 56 gradient spikes above 4x none was followed by a rise of the loss beyond its noise"
)

#: Changes for a suspected state of Adam.
ADAM_CHECKS = (
    "Adam's beta2: 0.95 instead of 0.999 lets the second moment follow the gradients in tens of steps.",
    "Clip the update, not only the gradient (StableAdamW divides the rate by max(1, RMS of g/sqrt(v))).",
    "Adam's epsilon: where the gradients' RMS has fallen towards 1e-8 it eats the update; lower it (2309.14322).",
)
OUTPUT_LOGITS = "{grew}: add z-loss with coefficient 1e-4, or see that it is on."
ATTENTION_LOGITS = "{grew}: normalise queries and keys (QK-norm) before the next long run."
ATTENTION_LOGITS_WITH_NORM = (
    "{grew} although QK-norm is on: see that it reaches every layer, or clip heads beyond 100 (QK-clip, Kimi K2, arXiv "
    "2507.20534)."
)

# --- choices of a config, each against stable trainings of others -----------------------------------------------------

BETA2 = (
    "Config: Adam's beta2 is {beta2:g}; GPT-3 (arXiv 2005.14165) and LLaMA (arXiv 2302.13971) used 0.95, whose second "
    "moment follows the gradients in tens of steps."
)
EPSILON = (
    "Config: Adam's epsilon is {epsilon:g}; OLMo 2 (arXiv 2501.00656) went down to 1e-8, which let the gradient norm "
    "settle earlier."
)
FP16 = (
    "Config: fp16 ends at 65,504 and needs a loss scale; BLOOM (arXiv 2211.05100) took bf16 after fp16 had been "
    "suspected of the instability of its 104 B trial."
)
PURE_BF16 = (
    "Config: weights or Adam's moments in bf16 lose small updates; keep an fp32 copy of the weights (Gopher, arXiv "
    "2112.11446), and norms, softmax and moments in fp32."
)
QK_NORM_OFF = "Config: QK-norm is off; it keeps attention logits bounded at high learning rates (arXiv 2309.14322)."
Z_LOSS_OFF = "Config: z-loss is off; 1e-4 (PaLM, arXiv 2204.02311) or 1e-5 (OLMo 2, arXiv 2501.00656) holds the logits."
LAYER_NORM = "Config: LayerNorm; OLMo 2 (arXiv 2501.00656) went over to RMSNorm for its stability."
BIASES = "Config: layers have biases; PaLM (arXiv 2204.02311) left them out, which made large models more stable."
BATCH = (
    "Config: {tokens:,.0f} tokens a step; Llama 3 405B (arXiv 2407.21783) began with 4 M and went on with 8 M, and saw "
    "few spikes."
)
MUP = (
    "Config: muP is not named; with it a learning rate found on a small model holds for a wide one (arXiv 2203.03466), "
    "and its coordinate check shows a layer that does not."
)

# --- lists to go through ----------------------------------------------------------------------------------------------

#: Equal before and after a good resume.
RESUME_CHECKS = (
    "Learning rate: is the first logged one that of the schedule at this step?",
    "Optimizer: were both moments and the step count loaded, on every rank?",
    "Data position: does the sampler go on after step x batch size samples, or from the beginning?",
    "Seed of the shuffle: does it depend on the epoch (set_epoch), so that the order is the one of before?",
    "RNG states of every rank, dropout and loss scaler: restored, or new?",
    "World size, batch size and accumulation: as before?",
)
ORDER_CHECKS = (
    "skip_batches: is the loader moved on after its state was restored, on every rank?",
    "lr_scale: does the schedule set the rate again at the next step, base_lrs included?",
    "What does the handler return: what it did, or what was ordered?",
    *RESUME_CHECKS,
)
MIX_CHECKS = (
    "Sampling weights after the resume: from the configuration, or from the state of the loader?",
    "Position of each data set: did one start over, or run out?",
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
DATASET_CHECKS = (
    "Its shards: which ones are read since the onset, and are they whole, in the same format and language?",
    "Its filter, tokeniser and labels: another version of the preprocessing from these shards on?",
    "Its share of the mixture, and what was added to it or taken away.",
)
RATE_CHECKS = (
    "Was it meant: an edit of the schedule, a warm-up after a resume, another total of steps?",
    "Schedule: its step count and its length after a resume; a decay with the wrong sign; calls twice a step.",
    "What else scales it: batch size, warm-up factor, gradient accumulation, a scale of an earlier rollback.",
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

# --- machines ---------------------------------------------------------------------------------------------------------

XID_CATALOG = "NVIDIA's Xid catalog (docs.nvidia.com/deploy/xid-errors): the action to take at once for each number"
RECOVERY_ACTION = "NVIDIA's driver itself (NVML recovery action, field 230), which counts more than any table"
GPU_THRESHOLDS = "thresholds of Meta's GPU cluster monitoring (facebookresearch/gcm) and of gpud (leptonai/gpud)"
LEMON_NODES = (
    "Revisiting Reliability in Large-Scale Machine Learning Research Clusters (arXiv 2410.21680): taking out the few "
    "nodes that fail again and again made large jobs fail less"
)
HANG_CAUSES = (
    "ByteRobust (arXiv 2509.16293): hangs came from the machines four times as often as from the code, wrong memory "
    "accesses more often from the code"
)
GEMINI_REPLAY = "Gemini 2.5 report: suspicious steps are computed again, few of them differ; the device is then found"

HANG_CHECKS = (
    "Stacks of all ranks (this page): which one is elsewhere, and in whose code?",
    "Its GPU: Xids, lowered clocks, a lost device at the same time?",
    "Its node: full memory, a file system that does not answer, a stopped process?",
    "Before a restart: the stacks are stored; a core or a py-spy dump is lost with the process.",
)
COLLECTIVE_CHECKS = (
    "Which rank did not join, and what does its stack show?",
    "Flight Recorder: the first collective that not all of them reached (TORCH_FR_BUFFER_SIZE=2000).",
    "Network of its node: link down, counters of errors, a cable that was touched?",
    "Same order of collectives on every rank: a branch that depends on the rank or its data?",
)
NODE_CHECKS = (
    "Does the node answer: ping, its management controller, the scheduler's view?",
    "Did others on the same switch or power line go at the same time?",
    "Is only the way to this server cut: proxy, firewall, DNS?",
)
OOM_CHECKS = (
    "Which process grew: loader workers, a cache, a checkpoint that is gathered on the host?",
    "Limit of the container or job against what the node has.",
)
SIGNAL_CHECKS = (
    "The scheduler's log: preemption, time limit, maintenance, another user's cancel?",
    "The launcher's log: it ends all ranks when one fails; which one was first?",
)
CRASH_CHECKS = (
    "Its last output (evidence): Python's stack at the moment of the crash.",
    "A new library, driver or kernel since the last good run?",
    "The same rank, node or GPU as an earlier crash: then the machine is a suspect.",
)
GPU_CHECKS = (
    "Does it come again on this GPU: its earlier faults are in the text, and on the page of interruptions.",
    "nvidia-smi -q on the node: recovery action, remapped rows, ECC counters, before a reset wipes them.",
    "After the reset or reboot: NVIDIA's field diagnostic or dcgmi diag before it goes back.",
    "Restart the job without this node, or with a spare one.",
)
APPLICATION_XID_CHECKS = (
    "Run once with CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer: which kernel?",
    "The same batch or step again: then it is data or code.",
    "Other GPUs with the same error: then it is code. Always this one: then it is the GPU.",
)
THERMAL_CHECKS = (
    "Temperatures and fans of the node against its neighbours'.",
    "All GPUs of the node at once: air, water or power supply. One alone: its cooler or sensor.",
    "What it costs: the step time while the clocks are low.",
)
SDC_CHECKS = (
    "The same step with the same data twice on this GPU: other numbers mean a transient error.",
    "The same step on another GPU: other numbers mean this one computes wrongly.",
    "Earlier suspicions of the same GPU (page of interruptions): few devices make most of such errors.",
    "Checkpoints since the suspicion: keep the last one from before it.",
)
