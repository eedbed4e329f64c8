"""Alerting in this server: incidents that are news, their receivers, and actions from within messages."""
