"""Data of pages besides one run: table of all runs, saved views, headline."""
