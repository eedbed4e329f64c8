"""What only some formats need may be missing: the import says which package, and how to get it."""

from __future__ import annotations

import sys

import pytest

from stabilitybackend.errors import StabilityBoardError
from stabilitybackend.importers.packages import message_class


def test_a_missing_package_is_named_with_the_way_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(StabilityBoardError, match="read with the package wandb, which is not there") as trouble:
        message_class("wandb.proto.wandb_internal_pb2", "Record", "W&B files")
    assert "stabilityboard[import]" in trouble.value.hint
