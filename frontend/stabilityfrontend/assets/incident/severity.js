// How grave an incident is: its tone, and whether it is an alarm at all.

/** From the worst to the least. */
export const SEVERITIES = ["critical", "warning", "info"];

export const severityOf = (incident) => (SEVERITIES.includes(incident.severity) ? incident.severity : "info");

/** Whether an incident is only worth knowing: shown quietly, never an alarm. */
export const onlyKnown = (incident) => incident.alarm === false;

/** Whether the server offers to do something about an incident: acknowledge, roll_back, restart, dump_stacks. */
export const offers = (incident, action) => (incident.actions || []).includes(action);
