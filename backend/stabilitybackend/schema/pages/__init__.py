"""What pages ask for beside one run: the table of all runs, and views that people saved."""
