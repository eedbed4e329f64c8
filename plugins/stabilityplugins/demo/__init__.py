"""``stabilityboard demo``: a server, a real training job that goes wrong, and somebody who puts it back."""

from __future__ import annotations

from stabilityplugins.demo.stage import main

__all__ = ["main"]
