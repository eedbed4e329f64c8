"""Ranks of a node that log together: their rows leave in one message, and arrive exactly once whatever is answered."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from stabilityclient.wire import Ack, Error, Frame, Message, Nack
from support.agent.gateway import Gateway
from support.agent.spooled import child
from support.waiting import wait_until

#: Steps of each rank.
STEPS = 400


def _job(agents: Path, server: Gateway) -> None:
    """Run two ranks to their end; both wait for the agent, so all is delivered when they have ended."""
    code = f"""
import stabilityclient, time
run = stabilityclient.init(run_id="r", dir={str(agents)!r}, url={server.url!r})
for step in range({STEPS}):
    run.log(step, {{"loss": 1.0, "lr": 0.5}})
    time.sleep(0.002)
print(run.finish())
"""
    ranks = [child(code, RANK=str(r), LOCAL_RANK=str(r), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2") for r in (0, 1)]
    outs = [rank.communicate(timeout=120) for rank in ranks]
    assert [out.strip() for out, _ in outs] == ["delivered", "delivered"], outs


def _everything(server: Gateway) -> list[list[int]]:
    return [server.store.steps(rank) for rank in (0, 1)]


def test_rows_of_two_ranks_leave_in_one_message(agents: Path) -> None:
    with Gateway() as server:
        _job(agents, server)
        assert _everything(server) == [list(range(STEPS))] * 2
        assert {len(message.parts) for message in server.node_frames} <= {2, 3}  # the agent's own records, too
        assert any(table.names == ["loss", "lr"] for message in server.node_frames for table in message.tables)


def _every(nth: int, wrong: Callable[[Frame], Message | None]) -> Callable[[Frame, Message], Message | None]:
    seen = 0

    def answer(frame: Frame, truth: Message) -> Message | None:
        nonlocal seen
        seen += 1
        return wrong(frame) if seen % nth == 0 else truth

    return answer


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda frame: Error("busy", "Redis is away"), id="busy"),
        pytest.param(lambda frame: Nack(frame.source.source, frame.first_seq, "lost"), id="nack"),
        pytest.param(
            lambda frame: Ack(frame.source.source, frame.first_seq - 1), id="ack-too-low", marks=pytest.mark.soak
        ),
    ],
)
def test_a_part_that_is_not_confirmed_goes_again(agents: Path, wrong: Callable[[Frame], Message]) -> None:
    with Gateway(answer=_every(7, wrong)) as server:
        _job(agents, server)
        assert _everything(server) == [list(range(STEPS))] * 2


def test_a_server_that_lost_what_it_confirmed_hears_of_the_process_first_that_started_first(agents: Path) -> None:
    code = f"""
import stabilityclient, sys
run = stabilityclient.init(run_id="r", dir={str(agents)!r}, url=sys.argv[1])
for line in sys.stdin:
    for step in range(*map(int, line.split())):
        run.log(step, {{"loss": 1.0}})
print(run.finish())
"""
    with Gateway() as server:
        ranks = []
        for rank in (1, 0):
            ranks.append(child(code, server.url, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2"))
            _say(ranks[-1], "0 50")
            wait_until(lambda rank=rank: server.store.steps(rank) == list(range(50)), 30, "its rows are there")
        for source in list(server.store.last_seq):
            server.store.forget_after(source, 0)
        _say(ranks[1], "50 60")  # the other one has nothing new
        wait_until(lambda: _everything(server) == [list(range(60)), list(range(50))], 30, "all is there again")
        heard = [
            frame.source for frame in server.store.frames if frame.source.rank is not None and frame.first_seq == 1
        ]
        assert [source.rank for source in heard] == [1, 0]
        outs = [rank.communicate(timeout=60) for rank in ranks]
        assert [out.strip() for out, _ in outs] == ["delivered"] * 2, outs


def _say(rank: subprocess.Popen[str], line: str) -> None:
    assert rank.stdin is not None
    rank.stdin.write(f"{line}\n")
    rank.stdin.flush()
