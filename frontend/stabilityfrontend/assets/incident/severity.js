// How grave an incident is: its tone, and whether it is an alarm at all.

/** From the worst to the least. */
export const SEVERITIES = ["critical", "warning", "info"];

export const severityOf = (incident) => (SEVERITIES.includes(incident.severity) ? incident.severity : "info");

/** Whether an incident is only worth knowing: shown quietly, never an alarm. */
export const onlyKnown = (incident) => incident.alarm === false;
