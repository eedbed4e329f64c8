"""The agent: one process a node, started by the first rank, that carries the spool to the server and commands back.

It may load third-party modules (websockets, msgspec, pynvml); the training process never imports this package.
"""
