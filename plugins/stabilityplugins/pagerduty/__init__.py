"""PagerDuty: incidents as events, and webhooks back. Prose: docs/alerting.md."""
