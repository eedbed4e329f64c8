"""The one reader of rows, for imports and backtests: opens a file, chooses its columns, makes batches of its rows."""
