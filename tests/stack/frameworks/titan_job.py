"""The job of docs/integrations/torchtitan.md, its Llama 3 debug model made small: ``titan_job.py FOLDER RANKS KIND``.

KIND is ``plain`` or ``accumulated`` (two micro-batches a step). Each process appends to ``FOLDER/truth.<rank>`` the
samples, the learning rate and the loss of each step that it trained:
``step <n> <lr> <first token of the first micro-batch> <loss of the last one>``. It ends when somebody orders a stop;
``job_faults`` may happen to it.

torchtitan runs on accelerators only. Here it is told that the processor is one, with a stub in place of ``torch.cuda``.
"""

from __future__ import annotations

import json
import os
import sys
import types
from pathlib import Path
from typing import Any

import torch
from absent import standing_in_for
from job_faults import in_the_model, trained

_PAGE = Path(__file__).resolve().parents[3] / "docs/integrations/torchtitan.md"
_WORDS = 2_000
_names: dict[str, Any] = {}


def _take_the_processor() -> None:
    none = {"memory_stats": lambda device: {}, "get_device_name": lambda device: "cpu", "current_device": lambda: 0}
    for name in ("set_device", "reset_peak_memory_stats", "empty_cache", "synchronize"):
        none[name] = lambda *given: None
    memory = types.SimpleNamespace(total_memory=1 << 30, name="cpu")
    stub = types.SimpleNamespace(**none, device_count=lambda: 1, get_device_properties=lambda device=None: memory)
    torch.distributed.set_timeout = lambda *given: None  # type: ignore[attr-defined] # torch 2.13 has none yet
    torch._utils._get_available_device_type = lambda: "cpu"  # type: ignore[assignment]
    torch._utils._get_device_module = lambda kind: stub  # type: ignore[assignment,return-value]


def _write_data(folder: Path) -> None:
    """Write a tokenizer that knows numbers as words, and documents in which each number says its place."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    if folder.exists():
        return
    folder.mkdir()
    words = {str(number): number for number in range(_WORDS)} | {"<s>": _WORDS, "</s>": _WORDS + 1, "<unk>": _WORDS + 2}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    (folder / "data").mkdir()
    with (folder / "data/data.json").open("w") as file:
        for number in range(4_000):
            # 15 words, their begin and the step between two of them are of the document.
            text = " ".join(str((number * 7 + word * (1 + number % 3)) % _WORDS) for word in range(15))
            file.write(json.dumps({"text": text}) + "\n")


def _config(kind: str, world: int) -> Any:
    from torchtitan.components.loss import CrossEntropyLoss
    from torchtitan.models.common.attention import ScaledDotProductAttention
    from torchtitan.models.llama3.config_registry import llama3_debugmodel

    config = llama3_debugmodel()
    model = config.model_spec.model
    model.layers = model.layers[:1]
    # FlexAttention, the debug model's own, has no backward pass on the processor.
    model.layers[0].attention.inner_attention = ScaledDotProductAttention.Config()
    config.loss = CrossEntropyLoss.Config(global_vocab_size=2_048)
    config.hf_assets_path, config.dump_folder = "data", "outputs"
    config.dataloader.dataset_path = "data/data"
    training = config.training
    training.local_batch_size, training.seq_len, training.steps = 2, 16, 100_000
    training.disable_cuda_graphs = True
    training.global_batch_size = 2 * world * (2 if kind == "accumulated" else 1)
    config.optimizer.implementation = "foreach"
    config.parallelism.spmd_backend = "partial_dtensor"  # FSDP2 of torch 2.13 does not take what the default hands it
    config.checkpoint.enable, config.checkpoint.interval, config.checkpoint.keep_latest_k = True, 20, 0
    config.validator.enable = False
    config.metrics.log_freq = 5
    config.debug.seed = 1
    config.comm.trace_buf_size = 0
    return config


def _watch(trainer: Any) -> None:
    """Write down what is trained."""
    for module in trainer.model_parts[0].modules():
        if hasattr(module, "set_force_sum_reduction_for_comms"):
            module.set_force_sum_reduction_for_comms(True)  # gloo has no other for FSDP2
    inner, first = trainer.forward_backward_step, []

    def step(**given: Any) -> torch.Tensor:
        in_the_model(trainer.step, next(iter(trainer.optimizers)))
        tokens = given["input_dict"]["input"]
        first.append(int(tokens[0, 1]) * _WORDS + int(tokens[0, 2]))
        loss: torch.Tensor = inner(**given)
        if len(first) == trainer.gradient_accumulation_steps:
            rate = next(iter(trainer.optimizers)).param_groups[0]["lr"]
            share = given["global_valid_tokens"] / (given["labels"] != -100).sum()
            with Path(f"truth.{os.environ['RANK']}").open("a") as file:
                file.write(f"step {trainer.step} {float(rate)!r} {first[0]} {float(loss.detach() * share)!r}\n")
            first.clear()
            trained(trainer.step)
        return loss

    trainer.forward_backward_step = step


def main() -> None:
    os.chdir(sys.argv[1])
    world, kind = int(sys.argv[2]), sys.argv[3]
    os.environ["HF_HOME"] = os.path.abspath("cache")
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("MASTER_ADDR", "localhost")
    os.environ.setdefault("MASTER_PORT", "0")
    _take_the_processor()
    torch.distributed.init_process_group("gloo")
    if int(os.environ["RANK"]) == 0:
        _write_data(Path("data"))
    torch.distributed.barrier()
    with standing_in_for("torchtitan.distributed.minimal_async_ep.kernels"):
        config = _config(kind, world)
    build = config.build

    class Config:
        """Builds the trainer, and writes down what it trains."""

        def build(self) -> Any:
            trainer = build()
            _watch(trainer)
            _names["trainer"] = trainer
            return trainer

    code = _PAGE.read_text().split("```python\n")[1].split("```")[0]
    _names["config"] = Config()
    exec(compile(code, str(_PAGE), "exec"), _names)
    torch.distributed.destroy_process_group()


main()
