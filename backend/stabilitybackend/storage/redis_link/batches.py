"""Batches of commands on a cluster, with the face of redis-py's pipeline of a single server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redis.asyncio.client import Pipeline
from redis.asyncio.cluster import _ClusterNodePoolAdapter
from redis.exceptions import AskError, TryAgainError

if TYPE_CHECKING:
    from stabilitybackend.storage.redis_link.cluster import ClusterClient

__all__ = ["ClusterBatch"]


class ClusterBatch(Pipeline):
    """Commands that are sent together.

    Args:
        transaction: all of them are of one slot, and are carried out together or not at all; with ``watch`` before
            them only while nobody changes what is watched. Else each is for itself, and may be of any slot.
    """

    def __init__(self, client: ClusterClient, *, transaction: bool) -> None:
        super().__init__(None, client.response_callbacks, transaction, None)  # type: ignore[arg-type]  # it has none yet
        self._client = client

    async def watch(self, *names: Any) -> Any:  # type: ignore[override]  # redis-py's own is one too
        """Watch keys of one slot, on a connection that is held until ``reset``."""
        await self._client.initialize()
        node = self._client.nodes_manager.nodes_cache[self._client.master_of(names[0])]
        self.connection_pool = _ClusterNodePoolAdapter(node)  # type: ignore[assignment]
        try:
            return await super().watch(*names)
        except AskError as error:
            raise await self._moved(error) from error

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Send the commands and return the answers.

        Args:
            raise_on_error: the first error among the answers is raised.
        """
        if self.watching or self.explicit_transaction:
            try:
                return await super().execute(raise_on_error)
            except AskError as error:
                raise await self._moved(error) from error
        commands, self.command_stack = self.command_stack, []
        if not commands:
            return []
        answers = await (self._client.together if self.is_transaction else self._client.scattered)(commands)
        if raise_on_error:
            for at, answer in enumerate(answers):
                if isinstance(answer, Exception):
                    self.annotate_exception(answer, at + 1, commands[at][0])
                    raise answer
        return answers

    async def _moved(self, error: AskError) -> TryAgainError:
        await self._client._redirected(error)
        return TryAgainError("the slot moved while its keys were watched")
