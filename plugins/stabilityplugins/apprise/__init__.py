"""Mail, Teams, Discord, ntfy and others, by addresses of Apprise. Prose: docs/alerting.md."""
