"""How much is kept of what a job and its machines say: a program that goes wrong must not fill the server's memory."""

from __future__ import annotations

#: Ranks, and GPUs, of a job that are followed; more are counted, not followed.
MAX_RANKS = 20_000
#: Nodes of a job that are followed; those that have been silent longest go first.
MAX_NODES = 5_000
#: Characters kept of a name: of a node, a phase, a function, a batch, a process group.
NAME_CHARS = 128
#: Characters kept of a sentence: why a rank did not do something, the message of an exception, a line of a log.
SENTENCE_CHARS = 300
#: Characters kept of a longer text: a reason that people give, a fact in evidence.
TEXT_CHARS = 2_000
#: Entries of a list that people read, in evidence or on a page.
MAX_LISTED = 16
#: Of those the ones that a sentence names; of the others it gives the number.
MAX_NAMED = 3

__all__ = ["MAX_LISTED", "MAX_NAMED", "MAX_NODES", "MAX_RANKS", "NAME_CHARS", "SENTENCE_CHARS", "TEXT_CHARS"]
