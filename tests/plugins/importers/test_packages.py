"""What only some formats need may be missing: the import says which package, and how to get it."""

from __future__ import annotations

import pytest

from stabilitybackend.base.errors import StabilityBoardError
from stabilityplugins.importers.base import message_class


def test_a_missing_package_is_named_with_the_way_to_install_it() -> None:
    with pytest.raises(StabilityBoardError, match="read with the package not_installed, which is not there") as problem:
        message_class("not_installed.event_pb2", "Event", "event files")
    assert "stabilityboard[import]" in problem.value.hint
