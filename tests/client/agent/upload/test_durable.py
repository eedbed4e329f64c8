"""A spool goes when the server can't lose what it has, and not before."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import structs

import stabilityclient
from stabilityclient.sidecar import agent_lives
from stabilityclient.wire import Durable, Hello, Welcome
from support.agent.gateway import Gateway
from support.agent.spooled import spools
from support.waiting import wait_until

Start = Callable[..., stabilityclient.Run]


def test_the_spool_of_a_run_that_has_ended_stays_until_the_server_can_t_lose_it(start: Start) -> None:
    def says_so(hello: Hello, welcome: Welcome) -> Welcome:
        return structs.replace(welcome, durable=True)

    with Gateway(welcome=says_so) as server:
        run = start(url=server.url)
        run.log(1, {"loss": 1.0})
        assert run.finish() == "delivered"
        wait_until(lambda: server.healths and server.store.events("finish"), 10, "all is stored")
        server.say(Durable(dict.fromkeys(server.store.last_seq, 1)))
        assert spools(run.folder)
        assert agent_lives(run.folder)
        wait_until(
            lambda: server.say(Durable(dict(server.store.last_seq))) or not agent_lives(run.folder), 20, "it leaves"
        )
    assert spools(run.folder) == []
