"""The job of docs/integrations/megatron.md: ``python megatron_job.py FOLDER RANKS [an argument of Megatron] ...``.

Each process appends to ``FOLDER/truth.<rank>`` what it trains on: ``<step> <a number for its first batch>``. Megatron
itself prints rate and loss of each step. It ends when somebody orders a stop; ``job_faults`` may happen.
"""

from __future__ import annotations

import os
import sys
import zlib
from pathlib import Path
from typing import Any

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # it would compile for the GPU that is not there
os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"

import torch
from job_faults import in_the_loader, in_the_model
from megatron_on_cpu import pretend

pretend()

from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder  # noqa: E402
from megatron.core.datasets.gpt_dataset import GPTDatasetConfig, MockGPTDataset  # noqa: E402
from megatron.core.enums import ModelType  # noqa: E402
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.training import get_args, get_tokenizer, pretrain  # noqa: E402
from megatron.training.arguments import core_transformer_config_from_args  # noqa: E402
from megatron.training.utils import get_batch_on_this_tp_rank  # noqa: E402

_PAGE = Path(__file__).resolve().parents[3] / "docs/integrations/megatron.md"
#: Of a model that takes some 30 ms a step.
_MODEL = """
--num-layers 2 --hidden-size 32 --num-attention-heads 2 --seq-length 32 --max-position-embeddings 32
--micro-batch-size 2 --global-batch-size 8 --train-iters 100000 --lr 1e-3 --min-lr 1e-4 --lr-decay-style cosine
--lr-warmup-iters 4 --lr-decay-iters 400 --mock-data --tokenizer-type NullTokenizer --vocab-size 63
--transformer-impl local --distributed-backend gloo --use-cpu-initialization
--no-gradient-accumulation-fusion --no-masked-softmax-fusion --no-bias-dropout-fusion
--no-persist-layer-norm --log-interval 1 --log-throughput --hidden-dropout 0 --attention-dropout 0
--eval-interval 30 --eval-iters 2 --save-interval 20
--save checkpoints --load checkpoints --ckpt-format torch_dist
"""
_SEEN: set[int] = set()


def model(pre_process: bool = True, post_process: bool = True, **more: Any) -> Any:
    """Return one stage of a small GPT."""
    args = get_args()
    return GPTModel(
        config=more.get("config") or core_transformer_config_from_args(args),
        transformer_layer_spec=get_gpt_layer_local_spec(),
        vocab_size=args.padded_vocab_size,
        max_sequence_length=args.seq_length,
        pre_process=pre_process,
        post_process=post_process,
    )


class Data(MockGPTDataset):
    """What Megatron makes up; eight samples a step."""

    def __getitem__(self, index: int) -> Any:
        in_the_loader(index // 8 + 1)
        return super().__getitem__(index)


def datasets(samples: Any, vp_stage: int | None = None) -> Any:
    """Return the data sets, which Megatron makes up."""
    args = get_args()
    config = GPTDatasetConfig(
        random_seed=args.seed,
        sequence_length=args.seq_length,
        split="90,5,5",
        tokenizer=get_tokenizer(),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
    )
    return BlendedMegatronDatasetBuilder(Data, samples, lambda: True, config).build()


datasets.is_distributed = True  # type: ignore[attr-defined]


def forward_step(iterator: Any, model: Any) -> Any:
    """Return the losses of a batch, and what makes one of them."""
    batch = get_batch_on_this_tp_rank(iterator)
    step = get_args().curr_iteration + 1
    in_the_model(step, None)
    if torch.is_grad_enabled() and step not in _SEEN and batch["tokens"] is not None:
        _SEEN.add(step)
        with Path(f"truth.{torch.distributed.get_rank()}").open("a") as file:
            file.write(f"{step} {zlib.crc32(batch['tokens'].numpy().tobytes())}\n")
    output = model(batch["tokens"], batch["position_ids"], batch["attention_mask"], labels=batch["labels"])

    def loss_of(losses: Any) -> Any:
        mask = batch["loss_mask"].view(-1)
        loss, count = (losses.view(-1).float() * mask).sum(), mask.sum().int()
        return loss, count, {"lm loss": torch.stack([loss.detach(), count.float()])}

    return output, loss_of


def main() -> None:
    os.chdir(sys.argv[1])
    sys.argv[1:] = [*_MODEL.split(), *sys.argv[3:]]
    scope = {"pretrain": pretrain}
    exec(compile(_PAGE.read_text().split("```python\n")[1].split("```")[0], str(_PAGE), "exec"), scope)
    scope["pretrain"](datasets, model, ModelType.encoder_or_decoder, forward_step)


if __name__ == "__main__":  # Megatron's saves start processes that import this file
    main()
