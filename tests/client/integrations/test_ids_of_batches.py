"""Class labels name no samples: whole numbers are ids where each sample has its own, or where they are called so."""

from __future__ import annotations

from typing import Any

import pytest

from stabilityclient.integrations.data import ids_of

torch = pytest.importorskip("torch")


def drawn(*shape: int, high: int = 50_000) -> Any:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(5))


FLOATS = torch.randn(16, 3, 8, 8)


@pytest.mark.parametrize(
    "batch",
    [
        (FLOATS, drawn(16, high=8)),
        [FLOATS, drawn(16, high=1_000)],
        (FLOATS, torch.arange(16)),
        (drawn(16, high=8),),
        drawn(16, high=8),
        (FLOATS, (drawn(16, high=10), FLOATS)),
        (FLOATS, drawn(16, 5, high=2)),
        {"image": FLOATS, "label": drawn(16, high=8)},
    ],
    ids=["classes", "many classes", "distinct classes", "alone", "bare", "nested", "several labels", "by name"],
)
def test_labels_are_no_ids(batch: Any) -> None:
    assert ids_of(batch) is None


@pytest.mark.parametrize(
    "batch",
    [
        (drawn(16, 128), drawn(16, 128)),
        (FLOATS, drawn(16, 77)),
        (torch.randperm(1_000)[:16], drawn(16, high=8)),
        {"image": FLOATS, "index": drawn(16, high=8)},
        {"input_ids": drawn(16, 128), "labels": drawn(16, 128)},
    ],
    ids=["tokens", "image and caption", "distinct numbers first", "called so", "tokens by name"],
)
def test_tokens_distinct_numbers_and_what_is_called_so_are_ids(batch: Any) -> None:
    found = ids_of(batch)
    assert found is not None
    assert len(found) == 16
