"""The table of all runs: rows in memory, a small language to filter them, orders that paging can't lose a run of."""
