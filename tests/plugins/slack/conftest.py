"""A workspace of Slack."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.slack.fake_slack import FakeSlack


@pytest.fixture
def slack() -> Iterator[FakeSlack]:
    """A workspace; a message that Slack would not take fails the test."""
    with FakeSlack() as running:
        yield running
