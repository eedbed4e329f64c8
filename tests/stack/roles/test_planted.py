"""Each fault that can be planted into the server turns a test red: the tests can fail, and see what they are for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
#: Fault -> the test that sees it for certain; the chaos of many kills sees the first one, too.
SEEN_BY = {
    "no_fence": "backend/runs/ownership/test_fence.py::"
    "test_nothing_of_a_write_is_carried_out_once_another_worker_took_the_run",
    "number_only": "backend/runs/ownership/test_fence.py::"
    "test_a_takeover_that_redis_lost_gives_no_right_where_its_number_is_given_out_again",
    "lost_writes": "backend/runs/ownership/test_fence.py::"
    "test_no_write_is_carried_out_once_redis_lost_the_one_before_it",
    "young_sweep": "backend/runs/ownership/test_taken_over.py::"
    "test_files_that_a_server_left_unfinished_stay_until_it_can_no_longer_be_writing_them",
    "stored_is_durable": "backend/ingest/test_lost_tail.py::"
    "test_a_primary_that_is_killed_after_the_end_while_its_replica_was_stalled_is_filled_again",
    "no_connection_numbers": "stack/roles/test_roles.py::"
    "test_the_end_of_an_older_connection_that_a_door_notices_late_is_no_end_of_the_newer_one",
}


@pytest.mark.soak
@pytest.mark.parametrize("fault", SEEN_BY)
def test_a_planted_fault_is_seen(fault: str) -> None:
    outcomes = []
    for planted in (fault, ""):
        command = [sys.executable, "-m", "pytest", "-q", "-m", "", str(TESTS / SEEN_BY[fault])]
        environ = os.environ | {"STABILITY_TEST_PLANTED": planted}
        outcomes.append(subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300, check=False))
    seen, sound = outcomes
    assert (seen.returncode, sound.returncode) == (1, 0), seen.stdout[-2000:] + sound.stdout[-2000:]
