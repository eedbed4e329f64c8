"""Bundled plug-ins: verticals that the core finds through its hooks and never imports."""
