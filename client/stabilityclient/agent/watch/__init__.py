"""The agent's view of the node's ranks from outside: ends, memory, kernel log, stacks."""
