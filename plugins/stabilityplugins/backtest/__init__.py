"""Judges runs of the past with the code that judges live ones. Prose: docs/backtest.md."""

from stabilityplugins.backtest.run import Backtest, backtest
from stabilityplugins.backtest.sources import Log, read_files

__all__ = ["Backtest", "Log", "backtest", "read_files"]
