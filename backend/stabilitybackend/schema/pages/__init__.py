"""What pages ask for beside one run: the table of all runs, saved views, and what a page shows first (headline)."""
