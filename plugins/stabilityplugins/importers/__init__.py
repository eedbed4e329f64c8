"""Reads the files of other trackers and our own exports, and sends them through the gateway. Prose:
docs/import-export.md."""
