"""A sample has one hash wherever and however it is handed over, and batches are told apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stabilityclient.data.samples import event_data, taken
from support.installed import needs

pytestmark = needs("torch", "tensors are PyTorch's")

IDS = list(range(1_000, 1_300))
TOKENS = np.random.default_rng(1).integers(0, 50_000, (64, 2_048))


def data(ids: Any) -> dict[str, Any]:
    return event_data(taken(ids))


def tensor(values: Any, dtype: str = "int64") -> Any:
    import torch

    return torch.tensor(values, dtype=getattr(torch, dtype))


@pytest.mark.parametrize("given", [tuple, np.array, lambda ids: np.array(ids, np.int32), tensor, lambda ids: ids[::-1]],
                         ids=["tuple", "int64", "int32", "tensor", "reversed"])  # fmt: skip
def test_ids_are_the_same_as_a_list_an_array_or_a_tensor_in_any_order(given: Callable[[list[int]], Any]) -> None:
    assert data(given(IDS)) == data(IDS)


def test_ids_may_be_a_range() -> None:
    assert data(range(1_000, 1_300)) == data(IDS)


@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_tokens_are_the_same_as_an_array_or_a_tensor_of_any_width(dtype: str) -> None:
    assert data(tensor(TOKENS, dtype)) == data(TOKENS)


@pytest.mark.parametrize("columns", [1, 32, 33, 47, 64, 2_048])
def test_a_batch_is_the_sum_of_its_parts_whatever_the_ranks(columns: int) -> None:
    rows = TOKENS[:, :columns]
    parts = [int(data(part)["fingerprint"], 16) for part in (rows[:10], rows[10:11], rows[11:])]

    assert int(data(rows)["fingerprint"], 16) == sum(parts) % 2**64


def test_what_differs_has_another_id() -> None:
    first, last, shorter = TOKENS.copy(), TOKENS.copy(), TOKENS[:, :-1]
    first[3, 25] += 1
    last[5, 7 * 256] += 1

    ids = {data(one)["fingerprint"] for one in (TOKENS, first, last, shorter, TOKENS[:-1])}

    assert len(ids) == 5


def test_of_a_batch_some_samples_are_kept_and_the_same_ones_at_every_step() -> None:
    kept = data(IDS)["sets"][0]
    half = data(IDS[:150])["sets"][0]

    assert 96 // 2 <= len(kept["kept"]) <= 256
    assert (kept["shift"], half["shift"], kept["samples"]) == (5, 4, 300)


def test_a_sample_of_one_data_set_is_none_of_another() -> None:
    one = data({"web": IDS})["sets"][0]
    two = data({"code": IDS})["sets"][0]

    assert one["kept"] != two["kept"]
    assert data({"web": IDS, "code": IDS})["samples"] == 600


def test_texts_are_ids() -> None:
    texts = [f"shard-{number}/doc-7" for number in range(5)]

    assert data(texts) == data(np.array(texts)) == data(texts[::-1])
    assert data(texts) != data([*texts[:4], "other"])


def test_what_a_buffer_holds_later_does_not_matter() -> None:
    buffer = tensor(TOKENS)
    batch = taken(buffer)
    buffer.zero_()

    assert event_data(batch) == data(TOKENS)


@pytest.mark.parametrize("ids", [5, "text", np.zeros((2, 2)), np.zeros((2, 2, 2), int), [1.5], [None]])
def test_what_names_no_samples_is_refused_with_words(ids: Any) -> None:
    with pytest.raises(ValueError, match=r"ids= .*expected"):
        data(ids)


def test_a_tensor_of_fractions_is_refused_with_the_same_words() -> None:
    with pytest.raises(ValueError, match=r"ids= .*expected"):
        data(tensor([0.0, 0.0, 0.0], "float32"))
