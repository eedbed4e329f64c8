// What the settings of a run's detectors say, as pure functions: the run's panel and the incident's page change them alike.

/** The detector that found an incident, or null. */
export function detectorOf(list, incident) {
  const named = (incident.evidence || {}).detector;
  return (
    list.find((one) => one.name === named) || list.find((one) => !named && one.kinds.includes(incident.kind)) || null
  );
}

export const parameterOf = (detector, name) => detector.parameters.find((one) => one.name === name);

/** What a parameter is set to, in `settings`. */
export function settingOf(settings, detector, name) {
  const own = settings[detector.name];
  return own && own[name] !== undefined ? own[name] : parameterOf(detector, name).default;
}

/** `settings` with one parameter changed; what is the default is not in them. */
export function withSetting(settings, detector, name, value) {
  const next = structuredClone(settings);
  const own = { ...next[detector.name], [name]: value };
  if (value === parameterOf(detector, name).default) delete own[name];
  if (Object.keys(own).length) next[detector.name] = own;
  else delete next[detector.name];
  return next;
}

/** Half of a sensitivity: only what is twice as high is reported. */
export const halfAsSensitive = (detector, now) =>
  Math.max(parameterOf(detector, "sensitivity").low, Number((now / 2).toPrecision(2)));
