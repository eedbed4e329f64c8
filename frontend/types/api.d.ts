// Made by `make types` from the server's OpenAPI. Change stabilitybackend/schema/ instead.

/** Changes; a missing or null field stays. An empty name restores that of the job. */
export interface AboutBody {
  name?: string | null;
  /** all tags */
  tags?: string[] | null;
  /** to those that it has: of two who add at once none is lost */
  add_tags?: string[];
  /** from those that it has */
  remove_tags?: string[];
  notes?: string | null;
  /** the notes that these were written over: 409 notes_changed where it has others by now */
  notes_before?: string | null;
}

/**
 * Edits on the page; null: the job's own.
 *
 * Attributes:
 *     who, time: of the newest change; time in unix seconds.
 */
export interface AboutEdit {
  who: string;
  time: number;
  name: string | null;
  tags: string[] | null;
  notes: string | null;
}

/**
 * A run in one line.
 *
 * Attributes:
 *     git: of the newest launch. host_count: its hosts. launches: of the run that reported facts.
 *     commit_changed: the newest launch has another commit than the one before.
 *     printed: lines of its ranks are stored.
 */
export interface AboutLine {
  git: Checkout;
  host_count: number;
  launches: number;
  commit_changed: boolean;
  printed: boolean;
}

/**
 * All facts of a run besides its points.
 *
 * Attributes:
 *     config: argument of ``init()``; likely secrets are ``(hidden)``.
 *     edited: author of the last edit of name, tags or notes, null for none.
 *     launches: newest first, at most 50. older: further ones.
 *     diff: to another run, if requested and found; else ``no_diff`` has the reason.
 */
export interface AboutRun {
  run_id: string;
  name: string;
  project: string;
  config: Record<string, unknown>;
  tags: string[];
  notes: string;
  edited: AboutEdit | null;
  launches: RunLaunch[];
  older: number;
  diff: RunDiff | null;
  no_diff: string;
}

/**
 * The newest report of one agent.
 *
 * Attributes:
 *     gpu: the node's GPUs in a line. gpus: index -> field -> newest reading.
 */
export interface AgentHealth {
  agent: string;
  node: string;
  time: number;
  connected: boolean;
  gpu: GpuNote;
  gpus: Record<string, Record<string, number>>;
  agent_state: AgentState;
  ranks: RankHealth[];
}

/** The agent itself. */
export interface AgentState {
  gpu?: GpuNoteNow | null;
  frames_sent?: number | null;
  records_sent?: number | null;
  bad_records?: number | null;
  version?: string | null;
  started?: number | null;
  spool?: SpoolFacts | null;
  clock_step_s?: number | null;
  blind?: VisibilityGap[] | null;
  log?: LogFacts | null;
}

/**
 * Receivers of an incident if it opened now.
 *
 * Attributes:
 *     labels: for routes and mutes. routes: matching ones, from 1.
 */
export interface AlertPreview {
  labels: Record<string, string>;
  routes: number[];
  receivers: ReceiverPreview[];
}

/**
 * State of alerting.
 *
 * Attributes:
 *     sending: this process sends. False for a second without harm; then another one does, or Redis is away.
 *     unreadable: events that were no incidents.
 *     labels: for routes and mutes to match.
 */
export interface AlertingStatus {
  receivers: Receiver[];
  sending: boolean;
  unreadable: number;
  routes: Routes;
  mutes: MuteShown[];
  labels: string[];
}

/** A line: ``xs`` in steps since its start or the fork. ``level``: its buckets are of ``2**level`` steps. */
export interface AlignedCurve {
  xs: number[];
  values: (number | "-Infinity" | "Infinity" | "NaN")[];
  level: number;
}

/** The process answers. */
export interface Alive {
  status: "ok";
}

/**
 * A note at the steps ``first_step..last_step``, both inclusive, equal for one step.
 *
 * Attributes:
 *     metric: its chart, null for all of them.
 *     segment: of its first step when it was made; it stays with that branch.
 *     author, created: name of the key, and unix seconds.
 *     edited_by, edited: of the newest change, null for none.
 *     imported_by: name of the key that imported it; author and times are then the export's.
 *     dead: its first step is off the effective timeline now.
 */
export interface Annotation {
  annotation_id: string;
  first_step: number;
  last_step: number;
  text: string;
  metric: string | null;
  segment: number;
  author: string;
  created: number;
  edited_by: string | null;
  edited: number | null;
  imported_by: string | null;
  dead: boolean;
}

/** A new annotation, or a change of an old one: text, and the place where given. */
export interface AnnotationRequest {
  /** what to note, 1 to 2,000 characters, plain text */
  text: string;
  /** the step that it is about */
  step?: number | null;
  /** or the first step of a range, with last_step */
  first_step?: number | null;
  /** last step of the range, inclusive */
  last_step?: number | null;
  /** the chart that it is about; left out: all */
  metric?: string | null;
  /** the segment that it is about; left out: that of the step on the head's path */
  segment?: number | null;
  /** PUT of a new one, from an export: who made it */
  author?: string | null;
  /** PUT of a new one, from an export: when, unix seconds */
  created?: number | null;
}

/** By first step. */
export interface Annotations {
  annotations: Annotation[];
}

/**
 * An interval from a start, rollback or restart to the next one.
 *
 * Attributes:
 *     start_step: the step whose state it began with: x = 0. steps: from there to its last one.
 *     ended: over; else at work.
 *     how: its end, or its present state, as text. why: the given reason.
 *     incident_id, kind, title: the incident that began last in it; null and "" for none.
 */
export interface Attempt {
  segment: number;
  label: string;
  start_step: number;
  last_step: number;
  steps: number;
  ended: boolean;
  how: string;
  why: string;
  incident_id: string | null;
  kind: string | null;
  title: string;
  curve: AlignedCurve;
}

/**
 * The attempts of a run over each other, oldest first.
 *
 * Attributes:
 *     text: common traits, a sentence or two.
 *     left_out: older ones that are not here.
 */
export interface Attempts {
  metric: string;
  text: string;
  attempts: Attempt[];
  left_out: number;
  problems: string[];
}

/** Audit log, newest first. */
export interface Audit {
  entries: AuditEntry[];
}

/**
 * One audited action.
 *
 * Attributes:
 *     time: unix seconds.
 *     who: the key's name, ``local`` without one, ``user@host`` at the command line, or the setting's name for the
 *         server's own actions.
 *     key_id: of the key, null without one.
 *     action: from the general to the special: ``command.order``, ``key.create`` (docs/security.md has all).
 *     target: run, command, incident, key or view; "" for none.
 *     detail: free text.
 *     run: its run, "" for none.
 */
export interface AuditEntry {
  time: number;
  who: string;
  key_id: string | null;
  action: string;
  target: string;
  detail: string;
  run: string;
}

/**
 * The autopilot of a run.
 *
 * Attributes:
 *     policy: the YAML, null while it is off.
 *     set_by, set_at: author and time (unix seconds) of the last change; null for none.
 *     phase: its state. text: the same in a sentence or two, with the reason.
 *     until_step: the step it waits for, null for none.
 *     to_step: target of its rollback, null for none.
 *     incident_id: null for none.
 *     entries: newest first, 200 at most.
 */
export interface Autopilot {
  mode: "dry run" | "off" | "on";
  policy: string | null;
  set_by: string | null;
  set_at: number | null;
  phase: "handed over" | "held" | "idle" | "off" | "under way" | "waits";
  text: string;
  until_step: number | null;
  to_step: number | null;
  incident_id: string | null;
  entries: ShownEntry[];
}

/**
 * Answers of the ranks to one command, without samples.
 *
 * Attributes:
 *     request: id of the command. time: of the first answer, unix seconds.
 *     first, last: steps in the rings; null before an answer.
 *     held: capacity of a ring, batches.
 *     ranks: that answered. failed: rank -> error of the job's callable.
 *     seconds: longest delay of a rank.
 *     batches: by step.
 */
export interface BatchAnswer {
  request: string;
  time: number;
  first: number | null;
  last: number | null;
  held: number;
  ranks: number[];
  failed: Record<string, string>;
  seconds: number;
  batches: KeptBatch[];
}

/**
 * The newest answers of a run, newest first.
 *
 * Attributes:
 *     ranks: that keep batches now. held: batches each; on_spike: asked without a person, too.
 */
export interface BatchAnswers {
  ranks: number[];
  held: number;
  on_spike: boolean;
  answers: BatchAnswer[];
}

/**
 * One sample, explained by the job's callable; null for no answer.
 *
 * Attributes:
 *     loss: of this sample, with the weights of that moment.
 *     text: decoded; beginning and end of a long one, with a mark between.
 *     shape: of anything but text.
 *     tokens: of the sample; repeated: share of them in runs of five that occurred before in it.
 *     discarded: a rollback discarded its step.
 */
export interface BatchSample {
  rank: number;
  step: number;
  id: string | null;
  dataset: string | null;
  loss: number | "-Infinity" | "Infinity" | "NaN" | null;
  text: string | null;
  shape: number[] | null;
  tokens: number | null;
  repeated: number | null;
  discarded: boolean;
}

/**
 * Answers of the ranks to one command.
 *
 * Attributes:
 *     samples: the worst first. left_out: samples sent beyond these.
 */
export interface BatchSamples {
  request: string;
  time: number;
  first: number | null;
  last: number | null;
  held: number;
  ranks: number[];
  failed: Record<string, string>;
  seconds: number;
  batches: KeptBatch[];
  samples: BatchSample[];
  left_out: number;
}

/**
 * Data of a run, and repeats.
 *
 * Attributes:
 *     steps: with ids, on the effective path; last: the newest of them, null for none.
 *     repeated: steps with an earlier batch. partial: steps without the ids of some ranks.
 *     of: content of the ids. parts, samples: of one step, now.
 *     notes: missing or incomparable data, a sentence each.
 *     repeats: newest first. new_samples: over the run, empty without named samples.
 *     other_runs: with the data of this one, newest first; also for runs without ids.
 */
export interface Batches {
  steps: number;
  last: number | null;
  repeated: number;
  partial: number;
  of: string;
  parts: number;
  samples: number;
  notes: string[];
  repeats: Repeated[];
  datasets: DatasetSamples[];
  new_samples: NewSamples[];
  overlap: SampleOverlap | null;
  other_runs: SharedData[];
}

/** A segment in a command: its id, and its key at the ranks, which is stable across imports. */
export interface Branch {
  segment: number;
  segment_key: string;
}

/** Both branches at one step, ``after`` steps behind the fork; ``difference``: new minus discarded. */
export interface BranchRow {
  after: number;
  step: number;
  left: number | "-Infinity" | "Infinity" | "NaN";
  right: number | "-Infinity" | "Infinity" | "NaN";
  difference: number | "-Infinity" | "Infinity" | "NaN";
}

/**
 * The two branches of a fork by their steps behind it: ``left`` was discarded, ``right`` continues.
 *
 * Attributes:
 *     difference: right minus left at the steps that both logged, of the first 50,000.
 *     table: both at steps near and far behind the fork.
 */
export interface Branches {
  metric: string;
  label: string;
  fork_step: number;
  text: string;
  left: AlignedCurve;
  right: AlignedCurve;
  difference: AlignedCurve;
  table: BranchRow[];
  problems: string[];
}

/**
 * Numbers of an entry's buckets besides the extremes; one a bucket.
 *
 * Attributes:
 *     last: last logged step of each, rising: it has the steps after the one before it.
 *     mean: of its finite values, over every logged row; null for none, or for a sum that overflowed.
 *     count: of its finite values.
 */
export interface Buckets {
  last: number[];
  mean: (number | null)[];
  count: number[];
}

/** The category of an interruption, corrected by a user. */
export interface CategoryBody {
  /** a category of the table; null undoes an earlier correction */
  category: string | null;
}

/** One changed entry of the environment: a version, a device, a setting, or ``$`` and a variable. */
export interface Changed {
  name: string;
  before: string;
  since: string;
}

/** A new, changed or deleted (``annotation`` null) one; also the live feed's message ``annotation``. */
export interface ChangedAnnotation {
  annotation_id: string;
  annotation: Annotation | null;
}

/**
 * Git state of the script's folder.
 *
 * Attributes:
 *     folder: of the checkout. commit: "" for none. branch: "" of a detached head. subject: first line of the commit's
 *         message. remote: address of ``origin``, without user and password.
 *     dirty: uncommitted changes; null for an error, see ``why``.
 *     changed: files with changes, new ones too. files: the first of them.
 */
export interface Checkout {
  folder: string;
  commit: string;
  branch: string;
  subject: string;
  remote: string;
  dirty: boolean | null;
  changed: number;
  files: string[];
  why: string;
}

/**
 * A checkpoint announced by the job.
 *
 * Attributes:
 *     available: still present. dead: of a discarded branch.
 *     inside: null for one from before every open incident, and for a dead one.
 *     unfit: why it is not offered although present, half a sentence: incomplete, still being written, or loadable
 *         with another number of ranks only. "": no reason.
 *     kind: of its files, found by the agent; null: no agent has looked.
 *     complete: all of its files are there and whole; null: unknown. writing: still being written.
 *     unchecked: why its completeness is unknown, half a sentence; "": complete, or no look yet.
 *     size_bytes, files: of all its files.
 *     world_size: ranks that wrote it; null: unknown by its layout.
 *     loads_with: ranks that can load it: ``any`` number, or the ``same`` number; null: unknown.
 *     took_s: delay of training by the save, of the slowest rank, seconds; null without a phase.
 *     unverified: its only fault is an unknown writer: a command has to set ``accept_unverified``.
 */
export interface Checkpoint {
  step: number;
  path: string;
  segment: number;
  time: number;
  available: boolean;
  dead: boolean;
  inside: SpoiledBy | null;
  unfit: string;
  kind: string | null;
  complete: boolean | null;
  writing: boolean;
  size_bytes: number | null;
  files: number | null;
  world_size: number | null;
  loads_with: "any" | "same" | null;
  took_s: number | null;
  unchecked: string;
  unverified: boolean;
}

/** Save a checkpoint on all ranks at one step boundary; training continues. */
export interface CheckpointNow {
  kind: "checkpoint_now";
  command_id: string;
  run_id: string;
  to_step: number | null;
  lr_scale: number | null;
  seed: number | null;
  skip_batches: number | null;
  skip_range?: [number, number];
  reason: string;
  issuer: string;
  issued: number;
  expires: number;
  fence: CommandFence;
  state: "acted" | "delivered" | "done" | "expired" | "failed" | "pending" | "ready" | "rejected";
  attempt: number;
  apply_at_step: number | null;
  world_size: number;
  ranks: Record<string, RankState>;
  history: HistoryEntry[];
  checkpoint: string | null;
  segment: number | null;
  first_step: number | null;
  idempotency_key: string | null;
  waits?: string;
  warning?: string;
  progress?: Progress;
}

/** Newest first. */
export interface Checkpoints {
  checkpoints: Checkpoint[];
}

/** Points of a run in files. */
export interface ColdPoints {
  parts: number;
  rows: number;
  bytes: number;
  location: string;
}

/**
 * A column of the table, also for filter, order and groups.
 *
 * Attributes:
 *     key: built-in name, ``config.<path>`` or ``metric.<name>``.
 *     label: head of the column.
 *     kind: of its values, for display and comparison; ``any`` for several kinds.
 *     what: a sentence about it.
 *     runs: visible runs with a value; absent for a built-in column.
 *     values: some of its values, the most frequent first, for completion; none of a column of numbers.
 *     gone: no run has it.
 */
export interface ColumnFacts {
  key: string;
  label: string;
  kind: "age" | "any" | "count" | "curve" | "number" | "share" | "state" | "tags" | "text";
  what?: string;
  runs?: number | null;
  values?: string[];
  gone?: boolean;
}

/**
 * State that a command was decided on: invalid on another segment, a restart also for later processes.
 *
 * Attributes:
 *     starts: of a restart, node -> newest start of its ranks, ns in hex: JavaScript would round the number.
 */
export interface CommandFence {
  segment: number;
  segment_key: string;
  starts?: Record<string, string>;
}

/**
 * Whether one command would be accepted now.
 *
 * Attributes:
 *     why: reason against it, half a sentence; "" for none.
 *     works: kinds that reach this job instead.
 */
export interface CommandOffer {
  possible: boolean;
  why: string;
  works: ("checkpoint_now" | "dump_stacks" | "restart" | "rollback" | "show_batches" | "stop" | "task")[];
}

/**
 * Commands that a job would accept now.
 *
 * Attributes:
 *     ranks: that act at one step boundary, or none.
 *     last_checkpoint: step of the newest usable one, null for none.
 *     steps_lost, seconds_lost: by a stop without a save; null before the first step.
 */
export interface CommandOffers {
  stop: CommandOffer;
  checkpoint_now: CommandOffer;
  ranks: number;
  last_checkpoint: number | null;
  steps_lost: number | null;
  seconds_lost: number | null;
}

/** Request of a command (``POST .../commands``). Ranges are checked in ``acting.commands.request``. */
export interface CommandRequest {
  kind: "rollback" | "restart" | "stop" | "checkpoint_now" | "dump_stacks" | "task" | "show_batches";
  /** step of a checkpoint: training goes on from the step after it */
  to_step?: number | null;
  /** rollback: the discarded segment whose checkpoint it is; none if left out */
  branch?: number | null;
  /** factor on what the schedule of the restored checkpoint gives, (0, 10] */
  lr_scale?: number | null;
  /** new seed of the data order */
  seed?: number | null;
  /** global batches to skip after the checkpoint */
  skip_batches?: number | null;
  /** [first, last]: steps whose batches are left out, not those right behind */
  skip_range?: number[] | null;
  /** restart: nodes that the job shall come up without */
  exclude_nodes?: string[] | null;
  /** restart: nodes that the plan would leave out and shall not */
  keep_nodes?: string[] | null;
  /** restart: seconds from SIGTERM to SIGKILL, 10 if left out */
  grace_s?: number | null;
  /** task: its name, as a plug-in of the agents registered it */
  task?: string | null;
  /** stop: save a checkpoint first */
  save?: boolean | null;
  /** show_batches: the step whose batch is looked at first, then its neighbours */
  step?: number | null;
  /** show_batches: the incident that it is about */
  incident_id?: string | null;
  /** rollback, restart: also to a checkpoint from inside an open incident */
  accept_inside_incident?: boolean;
  /** rollback, restart: also to a checkpoint that no rank of the run is known to have written */
  accept_unverified?: boolean;
  /** why, for the record */
  reason?: string;
  /** seconds after which nobody may begin with it; rollback 600, stop 600, checkpoint_now 600, restart 60, dump_stacks 15, task 60, show_batches 120 if left out */
  expires_s?: number | null;
  /** the same key gives the same command again */
  idempotency_key?: string | null;
}

/**
 * Stage of a command: one per state of ranks, one per node of agents.
 *
 * Attributes:
 *     active: awaited now. failed: it ended the command.
 *     after_s: seconds from the request to its end.
 */
export interface CommandStage {
  key: string;
  label: string;
  state: "active" | "done" | "failed" | "waiting";
  after_s: number | null;
}

/** Newest first. ``proposals``: open and decided ones, the newest 50. */
export interface Commands {
  commands: (Rollback | Restart | Stop | CheckpointNow | StackDump | Task | ShowBatches)[];
  proposals: Proposal[];
}

/**
 * One metric on both branches.
 *
 * Attributes:
 *     points: common steps; equal: those with bit-equal values.
 *     first_difference: the first other step.
 *     difference: median of new minus old, null without finite ones.
 *     ratio: median of new over old, null for undefined.
 */
export interface Compared {
  metric: string;
  points: number;
  equal: number;
  first_difference: number | null;
  difference: number | null;
  ratio: number | null;
}

/**
 * The effective curves of one run, moved to its own x = 0.
 *
 * Attributes:
 *     offset: subtracted from the steps or times.
 *     same_data: intervals with the data of the first run; empty for the first one.
 */
export interface ComparedCurves {
  run_id: string;
  name: string;
  offset: number;
  fork_step: number | null;
  level: number;
  problems: string[];
  series: SeriesEntry[];
  same_data: SameData[];
}

/** Curves of several runs over each other. */
export interface Comparison {
  align: "fork" | "step" | "time";
  runs: ComparedCurves[];
}

/**
 * Passes over the samples of a data set on the effective path.
 *
 * Attributes:
 *     name: of the data set, "" for unnamed.
 *     seen, distinct: samples, and different ones; exact where ``one_in`` is 1, else estimated.
 *     once, twice, more: shares of the different ones.
 *     never: unseen share of the data set; null without its size.
 *     one_in: one of so many samples was counted. error: of the shares, one standard deviation.
 */
export interface DatasetSamples {
  name: string;
  seen: number;
  distinct: number;
  once: number;
  twice: number;
  more: number;
  never: number | null;
  one_in: number;
  error: number;
}

/**
 * The mixture of one unit.
 *
 * Attributes:
 *     unit: ``tokens`` or ``samples``.
 *     measure: of the comparison: ``tokens``, ``samples`` or ``ratio`` (shares, in the job's unit); "" for nothing
 *         comparable.
 *     sets: in the order of the declaration. stages: all declarations, future ones too.
 *     note: why there is no comparison, "" otherwise.
 *     curves: along the effective path, null without ``buckets`` or without a comparison.
 */
export interface DeclaredMixture {
  unit: string;
  measure: string;
  sets: MixtureShare[];
  stages: MixtureStage[];
  note: string;
  curves: MixtureCurves | null;
}

/** Why it is not wanted; may be left out. */
export interface Declined {
  reason?: string;
}

/** A deleted run. */
export interface Deleted {
  deleted: string;
}

/**
 * A change of a run's settings: the whole set of overrides.
 *
 * Attributes:
 *     position: first stream id it holds for; "" while it waits for a worker.
 *     settings: values other than the default.
 *     who: name of the key, or of the machine's own user.
 */
export interface DetectorChange {
  position: string;
  settings: Record<string, Record<string, number>>;
  who: string;
  time: number;
}

/**
 * A detector.
 *
 * Attributes:
 *     kinds: of its incidents.
 *     text: description, paragraphs with a newline between; the first one is a sentence or two.
 *     every_rank: it reads all ranks, not only the lowest that logs the loss.
 */
export interface DetectorInfo {
  name: string;
  title: string;
  kinds: string[];
  parameters: DetectorParameter[];
  text: string;
  every_rank: boolean;
}

/** A number to set. Every detector has ``sensitivity``: thresholds are divided by it, 0 finds nothing. */
export interface DetectorParameter {
  name: string;
  default: number;
  low: number;
  high: number;
  unit: string;
  text: string;
}

/** All detectors, in the order of their priority for an event. */
export interface Detectors {
  detectors: DetectorInfo[];
}

/** Whether this job is deterministic: ``equal`` after a bit-equal replay. */
export interface Determinism {
  known: "different" | "equal" | "not_seen";
  text: string;
}

/**
 * One difference.
 *
 * Attributes:
 *     name: dotted key of the config, or name of the fact.
 *     before, now: as text; null for none.
 */
export interface Difference {
  name: string;
  before: string | null;
  now: string | null;
}

/**
 * Realised shares in the discarded steps of a segment, in buckets of as many steps.
 *
 * Attributes:
 *     realised: data set -> as of the curve, a value for each bucket.
 */
export interface DiscardedShares {
  segment: number;
  first: number[];
  last: number[];
  realised: Record<string, (number | "-Infinity" | "Infinity" | "NaN" | null)[]>;
}

/** Stack of one rank; ``missing``: reason for none. */
export interface DumpedRank {
  node: string;
  pid: number;
  proc: Record<string, unknown>;
  slot: Record<string, unknown>;
  missing: string | null;
}

/** Every answer with a status of 400 or more, but for the probes. */
export interface ErrorAnswer {
  error: ErrorFacts;
}

/**
 * An error.
 *
 * Attributes:
 *     code: for programs.
 *     message: given and expected values. hint: remedy, "" where the message has it.
 */
export interface ErrorFacts {
  code: string;
  message: string;
  hint: string;
}

/**
 * Progress of an export; read from another thread.
 *
 * Attributes:
 *     total: estimated points (a step that was logged twice counts twice).
 *     points: written so far. rows: lines or rows written so far. done: the last byte was made.
 *     problems: read errors.
 */
export interface ExportProgress {
  total: number;
  points: number;
  rows: number;
  done: boolean;
  problems: string[];
}

/** A fault that the server keeps beyond the run. */
export interface FleetFault {
  run_id: string;
  run_name: string;
  project: string;
  incident_id: string;
  time: number;
  node: string;
  index: number | null;
  ranks: number[];
  what: string;
  xids: number[];
  class: string;
  severity: "critical" | "info" | "warning";
  title: string;
  open: boolean;
}

/**
 * A GPU with a remembered fault; errors of the job itself are not counted.
 *
 * Attributes:
 *     count: faults in ``runs`` runs. recent: of the last 14 days.
 *     faults: newest first, at most 32.
 */
export interface FleetGpu {
  uuid: string;
  name: string;
  node: string;
  index: number | null;
  count: number;
  runs: number;
  first: number;
  last: number;
  recent: number;
  faults: FleetFault[];
}

/** Every GPU with a remembered fault, newest fault first. */
export interface FleetGpus {
  gpus: FleetGpu[];
}

/**
 * Costs of the rollbacks of all runs.
 *
 * Attributes:
 *     month: since ``month_began``, the first of this month in UTC, unix seconds, for any ``days``.
 *     runs: largest losses first, at most 500; the numbers are of all. run_count: all.
 *     unknown: runs with rollbacks whose costs are not computed yet.
 */
export interface FleetRollbacks {
  rollbacks: number;
  steps_lost: number;
  wall_lost_s: number;
  downtime_s: number;
  gpu_hours_lost: number;
  days: number | null;
  project: string | null;
  now: number;
  month: RollbackSum;
  month_began: number;
  runs: RollbacksOfRun[];
  run_count: number;
  unknown: number;
}

/** An incident that a search found, with the name of its run. */
export interface FoundIncident {
  run_id: string;
  run_name: string;
  incident_id: string;
  label: string;
  title: string;
  severity: "critical" | "info" | "warning";
  state: "open" | "recovered" | "resolved";
}

/**
 * A node, or a GPU of one.
 *
 * Attributes:
 *     node: its host name. gpu: UUID, "" for the node itself.
 *     run_id, run_name: its last run.
 */
export interface FoundMachine {
  node: string;
  gpu: string;
  run_id: string;
  run_name: string;
}

/** A run that a search found. */
export interface FoundRun {
  run_id: string;
  name: string;
  project: string;
  created: number;
}

/**
 * A GPU of a run's nodes.
 *
 * Attributes:
 *     state: sick: stops or endangers the job, needs a reset or has memory errors; watch: minor faults; lost: the node
 *         does not reach it.
 *     faults: newest first, at most 16.
 */
export interface Gpu {
  node: string;
  index: number | null;
  uuid: string;
  name: string;
  bus_id: string;
  serial: string;
  memory_mib: number | null;
  ranks: number[];
  state: "lost" | "ok" | "sick" | "watch";
  faults: GpuFault[];
  offences: Offences | null;
}

/**
 * A fault of a GPU in one run.
 *
 * Attributes:
 *     what: the first sign, e.g. xid, ecc_uncorrected, lost.
 *     incident_id: null for a symptom alone.
 */
export interface GpuFault {
  time: number;
  last: number;
  step: number | null;
  what: string;
  text: string;
  class: "application" | "drain" | "reboot" | "reset" | "symptom" | "watch";
  severity: "critical" | "info" | "warning";
  open: boolean;
  count: number;
  xids: number[];
  incident_id: string | null;
}

/** ``gpu_note``: the node's GPUs in one line. */
export interface GpuNote {
  visible: boolean;
  text: string;
}

/** The node's GPUs in one line, and the time of the last reading. */
export interface GpuNoteNow {
  visible?: boolean | null;
  text?: string | null;
  time?: number | null;
}

/** The GPU that a rank computes on. */
export interface GpuOfRank {
  index?: number | null;
  uuid?: string | null;
}

/** The GPUs of a run by node and index. */
export interface Gpus {
  gpus: Gpu[];
}

/**
 * Main metrics of a run.
 *
 * Attributes:
 *     main: of the large chart, null with readings of GPUs only.
 *     below: of the row below it (the gradient norm), null for none.
 *     cells: at most eight, the most important first.
 *     charts: at most nine.
 */
export interface Headline {
  main: string | null;
  below: string | null;
  cells: HeadlineCell[];
  charts: HeadlineChart[];
}

/**
 * A metric whose newest value is shown.
 *
 * Attributes:
 *     id: short name, the same in all runs for the same role: ``loss``, ``grad``, ``kl``, ``other-2``.
 *     metric: its name, also the caption of the number.
 *     role: as of ``WatchedMetric``, or by its name (``reward``, ``kl``, ``accuracy`` ...); "" for any other.
 *     unit: behind the number, by its name; "" for none.
 *     median: a noisy metric: show the median of the newest nine.
 */
export interface HeadlineCell {
  id: string;
  metric: string;
  role: string;
  unit: string;
  median: boolean;
}

/**
 * A small chart at the top of a run's page.
 *
 * Attributes:
 *     id: as of a cell; ``datasets`` and ``ratio`` are of a family.
 *     title: name of the metric or family.
 *     metrics: names, or ``prefix*`` for all names that begin so.
 *     unit: next to the title.
 *     per_rank: a line for each rank instead of the lowest one.
 *     log: begins with a logarithmic y axis.
 */
export interface HeadlineChart {
  id: string;
  title: string;
  metrics: string[];
  unit: string;
  per_rank: boolean;
  log: boolean;
}

/**
 * The newest report of every agent.
 *
 * Attributes:
 *     waits_for: culprits of open verdicts.
 */
export interface HealthAnswer {
  agents: AgentHealth[];
  waits_for: number[];
}

/** One line of a command's history; of a rank where one is named. */
export interface HistoryEntry {
  state: string;
  time: number;
  detail: string;
  rank: number | null;
  step: number | null;
}

/** Points of a run in Redis and in memory; ``bytes`` with the overhead of an entry in Redis. */
export interface HotPoints {
  bytes: number;
  limit_bytes: number;
  frames: number;
  values: number;
}

/**
 * Numbers of incidents.
 *
 * Attributes:
 *     open, recovered, resolved: by state.
 *     critical, warning, info: of the open ones, by severity.
 *     alarms: open ones but those of severity info.
 *     unacknowledged: of the alarms.
 */
export interface IncidentCounts {
  open: number;
  recovered: number;
  resolved: number;
  critical: number;
  warning: number;
  info: number;
  alarms: number;
  unacknowledged: number;
}

/** All kinds of incidents. */
export interface IncidentKinds {
  kinds: ServedKind[];
}

/**
 * A page of the incidents of all runs.
 *
 * Attributes:
 *     incidents: open ones first, by severity, then unacknowledged ones, causes before their effects, those that stop
 *         a job, newest first; closed ones follow, newest first.
 *     total: matches of the filters on all pages. counts: matches in any state.
 *     next: ``cursor`` of the next page, null on the last one. Unchanged incidents are never repeated or left out.
 *     complete: false while a new server still reads the store.
 *     left_out: closed incidents dropped beyond the limit; pages of their runs have them.
 *     now: unix seconds by the server's clock.
 */
export interface IncidentPage {
  incidents: ListedIncident[];
  total: number;
  counts: IncidentCounts;
  next: string | null;
  complete: boolean;
  left_out: number;
  now: number;
}

/** Newest first. */
export interface Incidents {
  incidents: ShownIncident[];
}

/**
 * One stop of a job, however many incidents report it.
 *
 * Attributes:
 *     since: the last row before. resumed: the first row after, null before it.
 *     counted: false for a stop by hand and for a stall that ended by itself.
 *     downtime_s, time_lost_s: 0 of a stop by hand without a resume.
 *     step, resumed_step: of these rows. redone_steps: trained again.
 *     gpus: UUIDs. evidence: sentences.
 *     unsure: evidence against the category, "" for none.
 *     seen_category: by the rules; ``category`` is a person's correction where there is one.
 *     deleted: its run is deleted.
 */
export interface Interruption {
  id: string;
  incident_id: string | null;
  incidents: string[];
  what: "death" | "hang" | "node_lost" | "restart" | "stall";
  since: number;
  resumed: number | null;
  open: boolean;
  step: number | null;
  resumed_step: number | null;
  redone_steps: number;
  redone_s: number;
  ranks: number[];
  nodes: string[];
  gpus: string[];
  evidence: string[];
  confidence: "high" | "low" | "medium";
  unsure: string;
  seen_category: string;
  run_id: string;
  run_name: string;
  project: string;
  category: string;
  label: string;
  visible: "direct" | "indirect" | "no";
  counted: boolean;
  downtime_s: number;
  time_lost_s: number;
  set_by: SetBy | null;
  deleted: boolean;
}

/**
 * A category of the table, in the order of Llama 3's table, then own ones.
 *
 * Attributes:
 *     share: of all that count, 0 to 1.
 *     visible, sees: visibility of this cause to a client.
 *     published, published_share: in Llama 3's table, null for own rows.
 */
export interface InterruptionRow {
  category: string;
  label: string;
  count: number;
  share: number;
  time_lost_s: number;
  visible: "direct" | "indirect" | "no";
  sees: string;
  published: number | null;
  published_share: number | null;
}

/**
 * Interruptions of the jobs of this server.
 *
 * Attributes:
 *     count: interruptions that count; not_counted: the others.
 *     mtbi_s: mean time between interruptions, ``running_s / count``; null without one.
 *     runs: with an interruption or at work in these days.
 *     projects: all with runs here.
 *     down: not ended yet, at any age: newest first, at most 500.
 *     interruptions: newest first, at most 500; the numbers are of all.
 */
export interface Interruptions {
  count: number;
  time_lost_s: number;
  running_s: number;
  rank_s: number;
  gpu_hours: number;
  mtbi_s: number | null;
  per_1000_gpu_hours: number | null;
  days: number | null;
  project: string | null;
  now: number;
  not_counted: number;
  runs: number;
  projects: string[];
  down: Interruption[];
  interruptions: Interruption[];
  table: InterruptionRow[];
  published: Published;
}

/**
 * Answers of all ranks about one step.
 *
 * Attributes:
 *     ranks: with its batch. samples: inspected; 0 where time ran out.
 *     loss: mean of the finite losses of samples. worst: the largest. nonfinite: losses that are NaN or infinite.
 *     repeated: the largest share of repeated tokens.
 *     whole: every sample was inspected.
 *     discarded: a rollback discarded the step, so it may occur twice.
 */
export interface KeptBatch {
  step: number;
  ranks: number;
  samples: number;
  loss: number | null;
  worst: number | null;
  nonfinite: number;
  repeated: number | null;
  whole: boolean;
  discarded: boolean;
}

/**
 * Precision of the alerts of one kind.
 *
 * Attributes:
 *     incidents: alarms. useful, noise: ratings.
 *     precision: useful of the rated ones, null for none.
 *     noise_per_job_day: null where no job ran.
 */
export interface KindPrecision {
  kind: string;
  label: string;
  incidents: number;
  useful: number;
  noise: number;
  precision: number | null;
  noise_per_job_day: number | null;
}

/**
 * An incident in the list over all runs; shared fields as of ``ShownIncident``.
 *
 * Attributes:
 *     run_name, project: of its run, now.
 *     stops_job: of its kind.
 *     advice: action of its suggestion, "" for none.
 */
export interface ListedIncident {
  run_id: string;
  run_name: string;
  project: string;
  incident_id: string;
  kind: string;
  label: string;
  about: "data" | "gpu" | "model" | "process" | "user";
  stops_job: boolean;
  severity: "critical" | "info" | "warning";
  state: "open" | "recovered" | "resolved";
  status: "accepted" | "acknowledged" | "discarded" | "ended" | "open" | "recovered" | "resolved";
  since: number;
  alarm: boolean;
  dead: boolean;
  title: string;
  metric: string | null;
  dataset: string | null;
  rank: number | null;
  node: string | null;
  onset_step: number;
  step: number;
  opened: number;
  updated: number;
  resolved: number | null;
  acknowledged_by: string | null;
  acknowledged: number | null;
  train: string;
  nth: number;
  caused_by: string;
  advice: string;
  version: number;
}

/** Settings of a run, and all that can be set. */
export interface ListedRunDetectors {
  settings: Record<string, Record<string, number>>;
  changes: DetectorChange[];
  detectors: DetectorInfo[];
}

/**
 * A log followed from outside, without an agent at the job.
 *
 * Attributes:
 *     name: of the file. quiet_s: seconds without a new row. limit_s: longest usual pause.
 */
export interface LogFacts {
  name: string;
  quiet_s: number;
  limit_s: number;
}

/**
 * A closed session.
 *
 * Attributes:
 *     go_to: page of the provider that ends the sign-in there too, null for none.
 */
export interface LoggedOut {
  go_to: string | null;
}

/** A key, pasted by a person. */
export interface Login {
  key: string;
}

/**
 * The caller and its permissions.
 *
 * Attributes:
 *     project: the only visible one, null for all.
 *     role: viewer, operator, admin, agent or assistant; "" for scopes without a name.
 *     two_persons: rollbacks and restarts are proposed, and another person approves them.
 */
export interface Me {
  name: string;
  scopes: string[];
  project: string | null;
  by: "key" | "local" | "proxy" | "session";
  role: string;
  two_persons: boolean;
}

/**
 * Names of metrics of a run, in the order of appearance.
 *
 * Attributes:
 *     total: matches of the search. next: ``after`` of the next page, null on the last one.
 */
export interface MetricList {
  metrics: string[];
  total: number;
  next: number | null;
}

/** Declared mixtures by unit; empty for none. */
export interface Mixture {
  mixtures: DeclaredMixture[];
}

/**
 * A data set along the effective path; each list has a value for each bucket.
 *
 * Attributes:
 *     declared: null before the first declaration.
 *     realised: null without counts, "NaN" where a count was not finite or restarted.
 *     low, high: band of a bucket by chance; null for too few rows.
 */
export interface MixtureCurve {
  dataset: string;
  declared: (number | null)[];
  realised: (number | "-Infinity" | "Infinity" | "NaN" | null)[];
  low: (number | null)[];
  high: (number | null)[];
}

/**
 * Shares over steps, in buckets of ``bucket_steps`` steps, cut at forks and at declarations.
 *
 * Attributes:
 *     first, last, rows: first and last step with a row, and rows of each bucket: 8 at least.
 *     discarded: the newest discarded branches, oldest first.
 */
export interface MixtureCurves {
  bucket_steps: number;
  first: number[];
  last: number[];
  rows: number[];
  sets: MixtureCurve[];
  discarded: DiscardedShares[];
}

/**
 * A data set. Shares are 0 to 1.
 *
 * Attributes:
 *     metric: its logged metric, null before the first one.
 *     drawn_as: whether ``metric`` is this share itself, so that a chart may draw ``declared`` with it.
 *     declared: its target now; 0 of an undeclared one.
 *     realised: of the newest 128 rows. realised_since: of all rows since the declaration or the last resume.
 *     low, high: band of ``realised`` by chance; 0 and 1 for too few rows.
 *     off: an incident about it is open.
 */
export interface MixtureShare {
  dataset: string;
  metric: string | null;
  drawn_as: boolean;
  declared: number;
  realised: number | "-Infinity" | "Infinity" | "NaN" | null;
  realised_since: number | "-Infinity" | "Infinity" | "NaN" | null;
  low: number;
  high: number;
  off: boolean;
}

/** One declaration, valid from ``step`` on. */
export interface MixtureStage {
  step: number;
  shares: Record<string, number>;
}

/** A new mute. */
export interface MuteBody {
  /** label -> patterns, as in a route */
  match: Record<string, string | number | (string | number)[]>;
  /** 1 to 300 characters */
  reason: string;
  /** unix seconds; left out: now */
  starts?: number | null;
  /** unix seconds, at most 30 days after the start */
  ends: number;
}

/**
 * One mute.
 *
 * Attributes:
 *     match: label -> patterns. starts, ends: unix seconds.
 *     state: ``pending``, ``active`` or ``expired``.
 */
export interface MuteShown {
  mute_id: string;
  match: Record<string, string | number | (string | number)[]>;
  owner: string;
  reason: string;
  starts: number;
  ends: number;
  state: "active" | "expired" | "pending";
}

/** Mutes, the next to end first; of ended ones those of the last seven days. */
export interface Mutes {
  mutes: MuteShown[];
}

/** Share of the samples of ``first..last`` that no earlier step saw. */
export interface NewSamples {
  first: number;
  last: number;
  new: number;
}

/**
 * Progress of a command at one node's agent.
 *
 * Attributes:
 *     state: as the agent reported it.
 *     gone: the agent ended for good, and the server answered for it.
 */
export interface NodeState {
  state: string;
  time: number;
  detail: string;
  gone?: boolean;
}

/**
 * An alarm that ended because its level became the usual one, without recovery.
 *
 * Attributes:
 *     what: the metric, or the data set's loss: ``loss``, ``loss of code``.
 *     step: its onset.
 */
export interface NotBack {
  what: string;
  step: number;
}

/** A change of a rollback that did not happen: expected and actual, as text. */
export interface NotFollowed {
  change: "lr_scale" | "seed" | "skip_batches" | "skip_range";
  ordered: string;
  observed: string;
}

/** Faults of a GPU in other runs. */
export interface Offences {
  runs: number;
  faults: number;
  last: number;
}

/**
 * The suggested rollback of a run, the same on every page and the command line.
 *
 * Attributes:
 *     incident_id, onset_step: of its incident, null for none.
 *     to_step: null where no checkpoint is from before the onset.
 *     skip_range: steps whose batches are left out, inclusive; it reaches to the newest step at least, so it grows
 *         with the run. skip_batches: their number for a job that can only leave out those right behind the
 *         checkpoint. null: the data are not the cause, or the job does not promise it.
 *     lr_scale: factor on the schedule of the restored checkpoint.
 *     cannot: changes that the job does not promise, with reasons; none of them is suggested.
 *     checkpoints: the newest 40 usable ones, and the suggested one.
 *     withheld: the newest 40 unusable ones: see ``unfit``.
 *     branches: discarded branches with a usable checkpoint, newest first, 20 at most.
 *     no_return: why none of them can be returned to now, half a sentence; "" for no reason.
 *     no_rollback: as of the ``Run``.
 */
export interface Offer {
  incident_id: string | null;
  onset_step: number | null;
  to_step: number | null;
  skip_batches: number | null;
  skip_range: number[] | null;
  lr_scale: number | null;
  reseed: boolean;
  cannot: Record<string, string>;
  text: string;
  checkpoints: OfferedCheckpoint[];
  withheld: Checkpoint[];
  branches: OfferedBranch[];
  no_return: string;
  no_rollback: string;
}

/**
 * A discarded branch that a command can return to: it undoes a rollback.
 *
 * Attributes:
 *     segment: ``branch`` of the command. label: of the fork that left it, "" for none.
 *     alive_until: its last step on the effective timeline; below its first one for none.
 *     left_at: its last step.
 *     to_step: of the newest checkpoint.
 *     text: a warning, a sentence or two.
 *     checkpoints: newest first, 40 at most; ``where`` is relative to the first incident of the branch.
 */
export interface OfferedBranch {
  segment: number;
  label: string;
  alive_until: number;
  left_at: number;
  to_step: number;
  text: string;
  checkpoints: OfferedCheckpoint[];
}

/**
 * A checkpoint for a rollback.
 *
 * Attributes:
 *     skip_batches: batches to leave out; null for none.
 *     where: ``20 steps before the onset``, "" without an incident.
 */
export interface OfferedCheckpoint {
  step: number;
  path: string;
  segment: number;
  time: number;
  available: boolean;
  dead: boolean;
  inside: SpoiledBy | null;
  unfit: string;
  kind: string | null;
  complete: boolean | null;
  writing: boolean;
  size_bytes: number | null;
  files: number | null;
  world_size: number | null;
  loads_with: "any" | "same" | null;
  took_s: number | null;
  unchecked: string;
  unverified: boolean;
  skip_batches: number | null;
  where: string;
}

/**
 * An OpenID provider for sign-in.
 *
 * Attributes:
 *     name: for display. start: address that begins a sign-in; takes ``next`` and ``other``.
 *     trouble: why it can't be used now, a sentence; "" where it answers.
 *     refusal: why the named sign-in was refused, a sentence; "" for none.
 */
export interface OidcWay {
  name: string;
  start: string;
  trouble: string;
  refusal: string;
}

/**
 * Lines of a run, oldest first.
 *
 * Attributes:
 *     ranks: with stored lines, by rank. total: their stored lines.
 *     first_rank: the one to read first: blamed by an open incident, else the lowest; null without any line.
 *     skipped: lines left out beyond the limit.
 *     at: id of the line at the requested step, null without one.
 *     older, newer: further lines on either side.
 */
export interface OutputAnswer {
  lines: PrintedLine[];
  ranks: number[];
  total: number;
  first_rank: number | null;
  skipped: number;
  at: string | null;
  older: boolean;
  newer: boolean;
}

/**
 * The outcome of a webhook.
 *
 * Attributes:
 *     outcome: ``acknowledged``; ``noted``: in the audit log; ``ignored``: of no use here; ``repeated``: applied
 *         before; ``unknown``: not an incident of this server.
 *     text: the same for display.
 */
export interface PagerDutyAnswer {
  outcome: "acknowledged" | "ignored" | "noted" | "repeated" | "unknown";
  text: string;
}

/** Whether one part was restored, with the evidence; ``ordered``: a requested change. */
export interface PartSeen {
  part: "environment" | "learning_rate" | "loader" | "mixture" | "optimizer" | "rng" | "weights";
  known: "different" | "equal" | "not_seen";
  why: string;
  ordered: boolean;
}

/** A phase in a slot's table: passes, total seconds, and seconds of the longest pass. */
export type PhaseTimes = [number, number, number];

/**
 * Next action of a launcher.
 *
 * Attributes:
 *     checkpoint: null: none. warning: reason against it, a sentence.
 *     skip_range: the steps whose batches are left out, [first, last]. skip_batches: their number for a job that can
 *         only leave out those right behind the checkpoint.
 *     seed: new one of the data order; only from a person's command.
 *     exclude_nodes: nodes to come up without.
 *     verdict: of the incident.
 *     text: sentences for display.
 *     exit_code: of ``stabilityboard plan``.
 *     command_id: of its restart command.
 */
export interface Plan {
  version: number;
  run_id: string;
  written: number;
  action: "none" | "relaunch" | "relaunch_without" | "stop" | "wait";
  checkpoint: PlannedCheckpoint | null;
  warning: string | null;
  skip_batches: number | null;
  skip_range: [number, number] | null;
  lr_scale: number | null;
  seed?: number;
  exclude_nodes: string[];
  suspects: PlannedSuspect[];
  incident_id: string | null;
  verdict: Verdict | null;
  exit_code: number;
  text: string;
  command_id?: string;
}

/** Checkpoint to start from. ``inside``: the open incident at or after whose onset it was saved. */
export interface PlannedCheckpoint {
  step: number;
  path: string | null;
  inside: SpoiledBy | null;
}

/** A suspect. ``gpu``: its UUID. */
export interface PlannedSuspect {
  rank: number;
  node: string | null;
  gpu: string | null;
}

/** A policy, as docs/autopilot.md has it. */
export interface PolicyBody {
  /** the YAML */
  policy: string;
  /** its name, for messages */
  file?: string;
}

/**
 * The loader's position at the fork against the first one after it.
 *
 * Attributes:
 *     saved_step, saved: the newest position before the fork, null for none.
 *     step, position: the first one since.
 *     by: its distance from the expected one, in its own unit; null for unordered positions.
 *     ordered: batches were to be left out, and so many were.
 */
export interface PositionCheck {
  went: "began_again" | "elsewhere" | "goes_on" | "not_seen" | "repeats" | "skipped";
  why: string;
  saved_step: number | null;
  saved: number | string | null;
  step: number | null;
  position: number | string | null;
  by: number | null;
  ordered: boolean;
}

/**
 * Precision of alerts in the last days.
 *
 * Attributes:
 *     job_days: days that jobs ran, over all runs. noise_per_job_day: alerts rated as noise.
 */
export interface Precision {
  days: number;
  job_days: number;
  noise_per_job_day: number | null;
  kinds: KindPrecision[];
  receivers: ReceiverPrecision[];
}

/** An incident, and routes that are tried on it. */
export interface PreviewBody {
  /** id of a run */
  run: string;
  /** id of one of its incidents, open or over */
  incident: string;
  /** YAML to try; left out: the routes of now */
  text?: string | null;
}

/**
 * One line.
 *
 * Attributes:
 *     id: rises with arrival. time: of the agent's read, unix seconds, at most a second late. step: of the rank then,
 *         null before the first.
 *     stream: ``out`` or ``err``. level: error, warning or nothing, by the line's own text.
 */
export interface PrintedLine {
  id: string;
  time: number;
  rank: number;
  node: string;
  stream: "err" | "out";
  step: number | null;
  text: string;
  level: "" | "error" | "warning";
}

/** Kernel's view of the thread that runs the loop. */
export interface Proc {
  state?: string | null;
  wchan?: string | null;
  threads?: number | null;
  cpu?: number | null;
}

/**
 * Progress of a command for display.
 *
 * Attributes:
 *     word: label of its state. ended: final. failed: not carried out, or by some only.
 *     acted: ranks, or nodes, that are done.
 *     line: summary. trouble: why it failed, "" for no failure.
 */
export interface Progress {
  word: string;
  ended: boolean;
  failed: boolean;
  acted: number;
  stages: CommandStage[];
  line: string;
  trouble: string;
}

/**
 * A command proposed by a person or a program, sent only after approval.
 *
 * Attributes:
 *     what: the command as text. order: its request, as for ``POST .../commands``.
 *     proposer: name of the key. proposer_key: id of the key, null without one.
 *     by_program: from an assistant.
 *     proposed, expires: unix seconds.
 *     fence: head of the run at that time; invalid for another.
 *     state: approved: see ``command_id``, null until sent. refused: by the server, as the run moved on. superseded:
 *         by a newer one of the same proposer.
 *     decided_by, decided: person and time (unix seconds) of the decision.
 *     detail: reason of a decline, a refusal or a delay; "" for none.
 */
export interface Proposal {
  proposal_id: string;
  run_id: string;
  what: string;
  order: Record<string, unknown>;
  proposer: string;
  proposer_key: string | null;
  by_program: boolean;
  proposed: number;
  expires: number;
  fence: CommandFence;
  state: "approved" | "declined" | "expired" | "proposed" | "refused" | "superseded";
  decided_by: string | null;
  decided: number | null;
  detail: string;
  command_id: string | null;
}

/** Undecided proposals of all runs, oldest first. */
export interface Proposals {
  proposals: Proposal[];
}

/** Source of the published numbers. */
export interface Published {
  source: string;
  count: number;
  days: number;
  gpus: number;
  note: string;
}

/**
 * The newest process of a rank and its slot: last report of its agent, and the server's judgement.
 *
 * Attributes:
 *     step: absent for an unreadable slot.
 *     budget_s: longest stay in its phase; null for one without steps while others make them, absent for a process
 *         without a rank.
 *     status: the server's judgement; null for a replaced process.
 */
export interface RankHealth {
  rank: number | null;
  source: string;
  pid?: number | null;
  alive?: boolean | null;
  time?: number | null;
  local_rank?: number | null;
  world_size?: number | null;
  gpu?: GpuOfRank | null;
  can_dump?: boolean | null;
  trouble?: string | null;
  proc?: Proc | null;
  state?: string | null;
  step?: number | null;
  step_start?: number | null;
  phase?: string | null;
  phase_start?: number | null;
  expect_s?: number | null;
  beat?: number | null;
  last_seq?: number | null;
  dropped?: number | null;
  segment_key?: string | null;
  phases?: Record<string, PhaseTimes> | null;
  pending?: number | null;
  waits?: WaitSamples | null;
  budget_s?: number | null;
  status: "behind" | "dead" | "finished" | "long" | "over" | "running" | "unheard" | "unread" | "waits" | null;
}

/**
 * The stacks of all ranks at one moment.
 *
 * Attributes:
 *     complete: every running rank answered.
 *     groups: the largest first.
 *     not_kept: ranks beyond the bound.
 */
export interface RankStacks {
  request: string;
  reason: string;
  time: number;
  complete: boolean;
  ranks: Record<string, DumpedRank>;
  groups: StackGroup[];
  collectives: StuckCollective[];
  bytes: number;
  not_kept: number;
}

/**
 * Progress of a command at one rank.
 *
 * Attributes:
 *     state: as the rank reported it (docs/wire.md).
 *     applied: once acted, changes reported by the job's handler.
 */
export interface RankState {
  state: string;
  step: number | null;
  time: number;
  detail: string;
  applied?: Record<string, unknown> | null;
}

/**
 * A person's rating of the alert of an incident.
 *
 * Attributes:
 *     useful: false: noise.
 *     receivers: names of those that got it.
 *     opened: of the incident; rated: unix seconds. who: name of the person.
 */
export interface Rating {
  incident_id: string;
  run_id: string;
  project: string;
  kind: string;
  label: string;
  useful: boolean;
  receivers: string[];
  opened: number;
  rated: number;
  who: string;
}

/** The rating of an incident, null for none. */
export interface RatingAnswer {
  rating: Rating | null;
}

/** A rating of the alert of an incident. */
export interface RatingBody {
  /** true: good to know; false: noise; null: takes the rating back */
  useful: boolean | null;
}

/**
 * Whether every live run is judged and stored, with reasons against it.
 *
 * Attributes:
 *     reasons: ``redis_lost`` is none: Redis restarted with less than it had.
 */
export interface Ready {
  status: "not ready" | "ready";
  reasons: ErrorFacts[];
}

/**
 * One receiver.
 *
 * Attributes:
 *     channel: slack, pagerduty ...
 *     min_severity: milder incidents are not sent.
 *     counts: events by outcome, since the server started.
 */
export interface Receiver {
  name: string;
  channel: string;
  min_severity: string;
  counts: Record<string, number>;
}

/** Precision of the alerts to one receiver. */
export interface ReceiverPrecision {
  name: string;
  useful: number;
  noise: number;
  precision: number | null;
}

/** Outcome of an alert at one receiver: ``now``, ``later`` after ``after_min``, or ``no``, with the reason. */
export interface ReceiverPreview {
  receiver: string;
  gets: "later" | "no" | "now";
  after_min: number | null;
  why: string;
}

/**
 * Outcome of the newest messages to one receiver, to the watcher of the heartbeat, or of the watchdog.
 *
 * Attributes:
 *     set_up: by an environment variable of the server. All else is of before, where it is no longer set.
 *     status: of the newest message; late: no accepted heartbeat or watchdog in time.
 *     accepted, refused: time of the last one, unix seconds, null for never.
 *     why: reason of the last refusal, with the status code of the answer; "" for none.
 */
export interface ReceiverStatus {
  name: string;
  set_up: boolean;
  status: "accepted" | "late" | "nothing sent" | "off" | "refused";
  accepted: number | null;
  refused: number | null;
  why: string;
}

/**
 * Receivers of alerts, and watchers of this server.
 *
 * Attributes:
 *     time: now, unix seconds.
 *     ready, reasons: as of ``/readyz``, and whether alerts can be sent.
 *     heartbeat: a regular sign of life to an outside watcher. watchdog: an alert that always fires, for Alertmanager.
 */
export interface Receivers {
  time: number;
  ready: boolean;
  reasons: ErrorFacts[];
  heartbeat: ReceiverStatus;
  watchdog: ReceiverStatus;
  receivers: ReceiverStatus[];
}

/**
 * Repeated data.
 *
 * Attributes:
 *     onset, newest: first and newest step. ended: first step with new data, null while it lasts.
 *     earlier_step: earlier step of the onset's data.
 *     offset_steps: distance of the two, null for samples in another order.
 *     steps, samples, tokens: repeated, null for unknown.
 *     share: repeated share of the samples, null for whole batches.
 *     since: the last thing that happened before, a clause.
 *     dataset: of the samples, "" for all or unnamed.
 */
export interface Repeated {
  what: "again" | "declared" | "pass" | "same" | "samples";
  onset: number;
  newest: number;
  ended: number | null;
  earlier_step: number;
  offset_steps: number | null;
  steps: number | null;
  samples: number | null;
  tokens: number | null;
  share: number | null;
  since: string;
  dataset: string;
}

/**
 * Write the plan (docs/restart.md), then end the ranks of the node.
 *
 * Attributes:
 *     grace_s: time to leave before a kill, seconds.
 */
export interface Restart {
  kind: "restart";
  command_id: string;
  run_id: string;
  to_step: number | null;
  lr_scale: number | null;
  seed: number | null;
  skip_batches: number | null;
  skip_range?: [number, number];
  reason: string;
  issuer: string;
  issued: number;
  expires: number;
  fence: CommandFence;
  state: "acted" | "delivered" | "done" | "expired" | "failed" | "pending" | "ready" | "rejected";
  attempt: number;
  apply_at_step: number | null;
  world_size: number;
  ranks: Record<string, RankState>;
  history: HistoryEntry[];
  checkpoint: string | null;
  segment: number | null;
  first_step: number | null;
  idempotency_key: string | null;
  waits?: string;
  warning?: string;
  progress?: Progress;
  nodes: Record<string, NodeState>;
  plan: Plan;
  grace_s: number;
}

/**
 * One resume: a rollback, a restart from an earlier step, or a process that continues the last one.
 *
 * Attributes:
 *     segment: of its steps. fork_step: the step whose state it started from.
 *     created: unix seconds; 0.0 for logs without times.
 *     settled: final.
 *     parts: all seven, in the order of ``PARTS``.
 *     loss: the compared loss, "" before there is one.
 *     points: steps on both branches; first_step, last_step: the first and the last of them.
 *     equal_points: bit-equal losses from the first step on.
 *     r, r_sigmas: correlation of the loss residuals at the same steps, and its distance from that of unrelated
 *         intervals in their spread; null for too few points.
 *     difference: median distance of the two losses. noise: of one batch to the next, the run's own, one sigma.
 *     shift: of batches of other steps.
 *     ids: compared batch ids, of these ``same_ids`` at their old step.
 *     declared: requested or declared changes.
 *     metrics: of both branches, differing ones first, the first 24.
 *     world_before, world_after: ranks.
 *     position: of the loader, as reported.
 *     environment: changes, the first 32; null without reports of both sides.
 *     not_followed: requested or declared changes that certainly did not happen.
 */
export interface Resume {
  segment: number;
  fork_step: number;
  cause: string;
  created: number;
  verdict: "identical" | "not_comparable" | "other_data" | "other_order" | "repeated" | "same_data" | "skipped";
  grade: "differs" | "good" | "unknown" | "wrong";
  text: string;
  settled: boolean;
  parts: PartSeen[];
  loss: string;
  points: number;
  first_step: number | null;
  last_step: number | null;
  equal_points: number;
  r: number | null;
  r_sigmas: number | null;
  difference: number | null;
  noise: number | null;
  shift: Shift | null;
  skip: SkipCheck | null;
  ids: number;
  same_ids: number;
  declared: Record<string, unknown>;
  metrics: Compared[];
  world_before: number;
  world_after: number;
  position: PositionCheck | null;
  environment: Changed[] | null;
  not_followed: NotFollowed[];
}

/** Grade of a resume, for its mark on the timeline. */
export interface ResumeGrade {
  verdict: "identical" | "not_comparable" | "other_data" | "other_order" | "repeated" | "same_data" | "skipped";
  grade: "differs" | "good" | "unknown" | "wrong";
  text: string;
  settled: boolean;
}

/** Newest first; ``left_out``: older ones that were dropped. */
export interface Resumes {
  resumes: Resume[];
  determinism: Determinism;
  left_out: number;
}

/** Deleted runs, oldest first, or candidates (``dry_run``). */
export interface Retained {
  days: number;
  dry_run: boolean;
  runs: RetainedRun[];
}

/** A run without a report for long. ``problem``: why it could not be deleted. */
export interface RetainedRun {
  run_id: string;
  project: string;
  name: string;
  status: string;
  updated: number;
  deleted: boolean;
  problem: string | null;
}

/**
 * Go back to a checkpoint, on all ranks at one step boundary.
 *
 * Attributes:
 *     unpromised: changes requested although the job promises only the step.
 *     branch: the discarded segment to go back to.
 */
export interface Rollback {
  kind: "rollback";
  command_id: string;
  run_id: string;
  to_step: number | null;
  lr_scale: number | null;
  seed: number | null;
  skip_batches: number | null;
  skip_range?: [number, number];
  reason: string;
  issuer: string;
  issued: number;
  expires: number;
  fence: CommandFence;
  state: "acted" | "delivered" | "done" | "expired" | "failed" | "pending" | "ready" | "rejected";
  attempt: number;
  apply_at_step: number | null;
  world_size: number;
  ranks: Record<string, RankState>;
  history: HistoryEntry[];
  checkpoint: string | null;
  segment: number | null;
  first_step: number | null;
  idempotency_key: string | null;
  waits?: string;
  warning?: string;
  progress?: Progress;
  unpromised?: string[];
  branch?: Branch;
}

/**
 * One rollback or restart that went back.
 *
 * Attributes:
 *     changes: requested, or declared by the job. applied: reported by the job, null for none.
 *     downtime_s: null when the job ended without a new row.
 *     batches_skipped: null for a request without a report of the job.
 *     undone: a person undid the segment: listed, and not counted.
 *     resume: whether the job's state was restored, null for unknown.
 */
export interface RollbackCost {
  segment: number;
  parent: number;
  fork_step: number;
  last_dead_step: number | null;
  cause: "command" | "declared" | "restart" | "resume" | "start";
  reason: string;
  issuer: string | null;
  command_id: string | null;
  changes: Record<string, unknown>;
  applied: Record<string, unknown> | null;
  created: number;
  steps_lost: number;
  wall_lost_s: number;
  downtime_s: number | null;
  gpu_hours_lost: number;
  batches_skipped: number | null;
  incidents: string[];
  undone: boolean;
  notes: string[];
  resume: ResumeGrade | null;
}

/**
 * Sums over the rollbacks of a run, and the effective share of its time.
 *
 * Attributes:
 *     effective_s, dead_s, idle_s: time of effective steps, of lost steps, and the rest of ``wall_s``.
 *     goodput: ``effective_s / wall_s``. ettr: ``effective_s / (startup_s + wall_s)``. Null before the second row.
 */
export interface RollbackCostTotals {
  rollbacks: number;
  steps_lost: number;
  wall_lost_s: number;
  downtime_s: number;
  gpu_hours_lost: number;
  batches_skipped: number;
  wall_s: number;
  effective_s: number;
  dead_s: number;
  idle_s: number;
  startup_s: number;
  goodput: number | null;
  ettr: number | null;
  world_size: number;
  gpus: number;
  gpus_from: "agents" | "world_size";
  notes: string[];
}

/**
 * Rollbacks oldest first, and their sum. ``problems``: read errors.
 *
 * Attributes:
 *     saving: null before the second checkpoint.
 */
export interface RollbackCosts {
  rollbacks: RollbackCost[];
  totals: RollbackCostTotals;
  problems: string[];
  saving: SaveInterval | null;
}

/** Sum over rollbacks. ``gpu_hours_lost``: of discarded steps and of downtime. */
export interface RollbackSum {
  rollbacks: number;
  steps_lost: number;
  wall_lost_s: number;
  downtime_s: number;
  gpu_hours_lost: number;
}

/** Costs of the rollbacks of one run. ``last``: time of the newest, unix seconds. */
export interface RollbacksOfRun {
  rollbacks: number;
  steps_lost: number;
  wall_lost_s: number;
  downtime_s: number;
  gpu_hours_lost: number;
  run_id: string;
  run_name: string;
  project: string;
  last: number;
  deleted: boolean;
}

/**
 * Routes of alerts to receivers.
 *
 * Attributes:
 *     text: YAML; "" for none: each receiver gets everything.
 *     source: ``page``, ``file`` (the page can't change it) or ``none``.
 *     file: its path, "" for none.
 *     version: grows by one with each change on the page.
 *     changed_by, changed: author and time (unix seconds) of the last change; null: none.
 *     problem: why each receiver gets everything instead; "" for no problem.
 */
export interface Routes {
  text: string;
  source: "file" | "none" | "page";
  file: string;
  version: number;
  changed_by: string;
  changed: number | null;
  problem: string;
}

/** New routes. */
export interface RoutesBody {
  /** YAML; empty: each receiver gets everything */
  text: string;
  /** of the routes that were changed: 409 where somebody was faster */
  version: number;
}

/**
 * One run. Times are unix seconds.
 *
 * Attributes:
 *     config: argument of init().
 *     tags: short texts for search, of the job or as edited.
 *     created, updated: first and last report.
 *     began, logged: first and last row of its ranks, by the clock of the log; null without points.
 *     status: for programs. state: for display: its worst open incident, else its phase.
 *     last_step: newest step of the effective timeline.
 *     head: id of the newest segment of the effective timeline.
 *     latest: newest values of the first 200 metrics; in lists that of the loss alone.
 *     metric_count: names of metrics; GET .../metrics has them.
 *     open_incidents: without those of severity info.
 *     note: a sentence about its status, "" for none.
 *     note_incident: the open incident of the note, where one stops the job.
 *     undo: the discarded segment that undoing its newest rollback returns to; null where that was no command of the
 *         last day, or the job can't return.
 *     no_rollback: why it can't be rolled back now, half a sentence; "" for no reason.
 *     twins: two living processes are the same rank (two jobs under one run id); the note names them.
 *     loss_metric: the metric watched as the training loss, null for none.
 *     unwatched: advice where no loss is watched, "" otherwise.
 *     dead_points: points that a rollback discarded.
 *     log_notes: sentences about its log: several rows a step, too many names, metrics with their own steps.
 *     own_steps: metrics that count their own steps, as batches of a validation; at most 64.
 *     stopped: its commanded end, null for none, or after a new start.
 */
export interface Run {
  began: number | null;
  logged: number | null;
  status: "crashed" | "failed" | "finished" | "offline" | "preempted" | "running" | "stalled" | "stopped" | "unreachable";
  state: ShownState;
  note: string;
  note_incident: string | null;
  last_step: number | null;
  head: number;
  latest: Record<string, number | "-Infinity" | "Infinity" | "NaN">;
  metric_count: number;
  loss_metric: string | null;
  unwatched: string;
  ranks: number[];
  world_size: number;
  world: WorldSize;
  agents: number;
  twins: boolean;
  open_incidents: number;
  worst_incident: WorstIncident | null;
  rollbacks: number;
  undo: number | null;
  no_rollback: string;
  effective_points: number;
  dead_points: number;
  unreadable: UnreadableCounts;
  unrecorded: UnrecordedCounts;
  log_notes: string[];
  own_steps: string[];
  stopped: StoppedBy | null;
  run_id: string;
  project: string;
  name: string;
  config: Record<string, unknown>;
  tags: string[];
  created: number;
  updated: number;
}

/**
 * Columns whose name has the searched word.
 *
 * Attributes:
 *     built_in: of every run.
 *     found: keys of configs and names of metrics, those of most runs first.
 *     total: of ``found``, beyond the limit too.
 */
export interface RunColumns {
  built_in: ColumnFacts[];
  found: ColumnFacts[];
  total: number;
}

/**
 * Curve of the loss, or the metric shown instead, over the whole run: extremes of up to 60 buckets of steps.
 *
 * Attributes:
 *     first, last: steps.
 *     low, high: of each bucket, 0 to 100 between ``least`` and ``most``, clipped; null without finite values.
 *     least, most: values of 0 and 100, without outliers.
 *     odd: buckets with a non-finite value.
 */
export interface RunCurve {
  metric: string;
  first: number;
  last: number;
  low: (number | null)[];
  high: (number | null)[];
  least: number;
  most: number;
  odd: number[];
}

/**
 * Settings of a run.
 *
 * Attributes:
 *     settings: now, values other than the default.
 *     changes: newest first, at most 100.
 */
export interface RunDetectors {
  settings: Record<string, Record<string, number>>;
  changes: DetectorChange[];
}

/**
 * Differences between another run (``before``) and this one (``now``).
 *
 * Attributes:
 *     run_id, name: of the other run. why: reason of its choice, "" for the caller's.
 *     config: differing keys, at most 500. left_out: further ones. equal: keys that are the same.
 *     facts: differences of the newest launches. no_facts: the side without any, "" for neither.
 */
export interface RunDiff {
  run_id: string;
  name: string;
  why: string;
  config: Difference[];
  left_out: number;
  equal: number;
  facts: Difference[];
  no_facts: string;
}

/**
 * Runs with the same value of the grouped column, adjacent in the order.
 *
 * Attributes:
 *     label: the value as text; "" for the runs without one, which come last.
 *     first: index of its first run in the order.
 *     count: runs. conditions: number of runs of each.
 */
export interface RunGroup {
  label: string;
  first: number;
  count: number;
  conditions: Record<string, number>;
}

/**
 * One launch of a run.
 *
 * Attributes:
 *     started: unix seconds by the node's clock. ranks: of the job. segment: id of its segment now.
 *     hosts: the first 256. host_count: all that reported.
 *     command: the arguments, ready for a shell. environment: versions, devices and settings, variables with ``$``.
 *     changed: differences from the launch before it.
 */
export interface RunLaunch {
  started: number;
  ranks: number;
  segment: number | null;
  hosts: string[];
  host_count: number;
  user: string;
  command: string;
  folder: string;
  script: string;
  python: string;
  image: string;
  launcher: Record<string, string>;
  git: Checkout;
  environment: Record<string, string>;
  changed: Difference[];
}

/**
 * A page of the list of runs, newest first.
 *
 * Attributes:
 *     total: all runs, on all pages.
 *     next: ``cursor`` of the next page, null on the last one. Runs are neither repeated nor left out.
 */
export interface RunPage {
  runs: Run[];
  total: number;
  next: string | null;
  storing: StoringProblem | null;
}

/** The newest proposals of a run, newest first. ``two_persons``: rollbacks, restarts and stops need a proposal. */
export interface RunProposals {
  proposals: Proposal[];
  two_persons: boolean;
}

/**
 * Storage of a run's points.
 *
 * Attributes:
 *     state: behind: the window is twice full and agents wait. failed: see ``problem``, with retries. loading: another
 *         worker took the run over, and still reads its points.
 */
export interface RunStorage {
  hot: HotPoints;
  cold: ColdPoints;
  state: "archiving" | "behind" | "failed" | "loading" | "ok";
  problem: string | null;
}

/**
 * Rows of an order of the runs.
 *
 * Attributes:
 *     rows: from ``offset`` on.
 *     fit: runs that match the filter, on all pages. total: visible runs.
 *     conditions: number of runs of each in ``total``.
 *     order: token of this order. The next page keeps it: runs are neither repeated nor left out.
 *     groups: of a grouped table.
 *     columns: facts of the requested ones.
 *     notes: hints about the filter, e.g. a key that no run has.
 */
export interface RunTable {
  rows: TableRow[];
  offset: number;
  fit: number;
  total: number;
  conditions: Record<string, number>;
  order: string;
  groups: RunGroup[];
  columns: ColumnFacts[];
  notes: string[];
  storing: StoringProblem | null;
}

/**
 * A single run.
 *
 * Attributes:
 *     metrics: the first FIRST_METRICS names. storing: null without a fault. about: its facts in a line.
 */
export interface RunWithStoring {
  began: number | null;
  logged: number | null;
  status: "crashed" | "failed" | "finished" | "offline" | "preempted" | "running" | "stalled" | "stopped" | "unreachable";
  state: ShownState;
  note: string;
  note_incident: string | null;
  last_step: number | null;
  head: number;
  latest: Record<string, number | "-Infinity" | "Infinity" | "NaN">;
  metric_count: number;
  loss_metric: string | null;
  unwatched: string;
  ranks: number[];
  world_size: number;
  world: WorldSize;
  agents: number;
  twins: boolean;
  open_incidents: number;
  worst_incident: WorstIncident | null;
  rollbacks: number;
  undo: number | null;
  no_rollback: string;
  effective_points: number;
  dead_points: number;
  unreadable: UnreadableCounts;
  unrecorded: UnrecordedCounts;
  log_notes: string[];
  own_steps: string[];
  stopped: StoppedBy | null;
  run_id: string;
  project: string;
  name: string;
  config: Record<string, unknown>;
  tags: string[];
  created: number;
  updated: number;
  metrics: string[];
  storing: StoringProblem | null;
  about: AboutLine;
}

/**
 * An interval in which a run had the data of the first run of the comparison, in its order, by the losses alone.
 *
 * Attributes:
 *     first_step, last_step: of this run, some steps more or less.
 *     other_run, other_step: the first run, and its step with the data of ``first_step``.
 *     r: least correlation of the innovations of the losses.
 */
export interface SameData {
  first_step: number;
  last_step: number;
  other_run: string;
  other_step: number;
  r: number;
}

/** Different samples of two intervals of steps, and those in both; estimated as in ``DatasetSamples``. */
export interface SampleOverlap {
  first: [number, number];
  second: [number, number];
  in_first: number;
  in_second: number;
  in_both: number;
}

/**
 * Cost of saving checkpoints, and the best interval.
 *
 * Attributes:
 *     saves: with a measured time. interval_s, save_s: medians of the newest 64; null without a phase.
 *     share: ``save_s / interval_s``.
 *     mtbi_s: mean time between the ``interruptions`` of this ``run``, or of ``all`` runs, by GPU-hours for as many
 *         ranks as this one has; null without one.
 *     best_s: ``sqrt(2 x save_s x mtbi_s)``. cost, best_cost: share of the time spent on saves and on training again
 *         after interruptions, at the interval now and at the best one.
 */
export interface SaveInterval {
  saves: number;
  interval_s: number;
  save_s: number | null;
  share: number | null;
  mtbi_s: number | null;
  interruptions: number;
  interruptions_of: "all" | "run";
  best_s: number | null;
  cost: number | null;
  best_cost: number | null;
}

/**
 * Search results, best first in each list.
 *
 * Attributes:
 *     metrics: names of metrics of the given run.
 *     incidents: open ones before others.
 *     complete: as of ``IncidentPage``.
 */
export interface SearchResults {
  q: string;
  runs: FoundRun[];
  metrics: string[];
  incidents: FoundIncident[];
  machines: FoundMachine[];
  complete: boolean;
}

/**
 * An unbroken interval of steps between two rollbacks or restarts.
 *
 * Attributes:
 *     key: its name at the ranks.
 *     fork_step: the step of the parent it starts from, null for the first segment.
 *     label: of its fork, ``R1`` a rollback, ``S1`` a restart from an earlier step; "" for neither.
 *     dead_after: points with a greater step are discarded (null: none; less than first_step: all of them).
 *     kept, discarded: steps between its first and its last one that count, and those cut off by a fork.
 *     on_head_path: part of the effective timeline.
 *     changes: requested, or declared by the job. applied: changes reported by the job.
 *     points: values stored in it.
 *     undone: a person undid this inferred segment.
 *     returns_to: the discarded segment whose state it continues: a rollback was undone; null for any other.
 *     shared_step: of one that returns, the last step that its path shares with the one it left; null for any other.
 *     inferred: neither declared nor requested. ``start``: from the first steps of a new process. ``steps``: from a
 *         process that went back. "": declared or requested, or the first segment.
 */
export interface Segment {
  id: number;
  key: string;
  parent: number | null;
  fork_step: number | null;
  label: string;
  first_step: number | null;
  last_step: number | null;
  dead_after: number | null;
  kept: number;
  discarded: number;
  on_head_path: boolean;
  cause: "command" | "declared" | "restart" | "resume" | "start";
  reason: string;
  command_id: string | null;
  issuer: string | null;
  changes: Record<string, unknown>;
  applied: Record<string, unknown> | null;
  created: number;
  ranks: number[];
  points: number;
  undone: boolean;
  returns_to: number | null;
  shared_step: number | null;
  inferred: "" | "start" | "steps";
}

/**
 * All segments of a run by id, and the id of the newest of its effective timeline.
 *
 * Attributes:
 *     cursor: stream id of this state; the live feed continues from there.
 */
export interface Segments {
  head: number;
  segments: Segment[];
  cursor: string | null;
}

/**
 * Answer for a chart.
 *
 * Attributes:
 *     cursor: for the request of later points.
 *     level: of the coarsest buckets in it.
 *     unplaced: points left out because their x is unknown.
 *     complete: false for points after the cursor only.
 *     problems: read errors; everything else is here.
 */
export interface SeriesAnswer {
  series: SeriesEntry[];
  cursor: string;
  level: number;
  x: string;
  unplaced: number;
  complete: boolean;
  problems: string[];
}

/**
 * Points of one metric, segment and rank, discarded or not; by step.
 *
 * Attributes:
 *     dead: a rollback discarded them.
 *     stray: low steps without a successor, or not decided yet.
 *     node: of points without a rank.
 *     level: the buckets are of ``2**level`` steps; 0: every row.
 *     xs: positions on the x axis; absent for steps.
 *     smoothed: the average after each point, null before the first finite one; absent unless requested.
 *     source: process of undecided points.
 *     buckets: of entries whose level is above 0.
 */
export interface SeriesEntry {
  metric: string;
  segment: number;
  dead: boolean;
  stray: boolean;
  rank: number | null;
  node: string | null;
  level: number;
  steps: number[];
  values: (number | "-Infinity" | "Infinity" | "NaN")[];
  xs?: number[];
  smoothed?: (number | null)[];
  source?: string;
  buckets?: Buckets;
}

/** A kind as the API and the pages have it. */
export interface ServedKind {
  name: string;
  label: string;
  short: string;
  about: "data" | "gpu" | "model" | "process" | "user";
  sign: string;
  band: boolean;
  stops_job: boolean;
  status: string;
  blame: "" | "known" | "suspect";
  rollback_helps: boolean;
  damages_weights: boolean;
  root_cause: boolean;
  by_dataset: boolean;
  recurring: boolean;
  patience_s: number;
  compared: boolean;
  becomes_usual: boolean;
  since: string;
  nearby_label: string;
  advice: string;
  of_machine: boolean;
}

/**
 * Whether the server works and its Redis stores.
 *
 * Attributes:
 *     redis: ok, or its fault.
 *     versions: ok, or the processes left out for a version too far from that of the others.
 */
export interface ServerHealth {
  status: "degraded" | "ok";
  version: string;
  redis: string;
  uptime_s: number;
  versions: string;
}

/** Author of a corrected category. */
export interface SetBy {
  who: string;
  time: number;
}

/** Differences from the defaults. Names and ranges are checked by the detectors' registry. */
export interface SettingsBody {
  /** detector -> parameter -> number, as GET /api/v1/detectors lists them; {} brings the defaults back */
  settings: unknown;
}

/** Incidents by severity. */
export interface SeverityCounts {
  info: number;
  warning: number;
  critical: number;
}

/**
 * Data that another run of the project had too.
 *
 * Attributes:
 *     first: first step with it. other_step: step of the other run with the data of ``first``.
 *     other_run, other_name: id and name of that run.
 *     by: ``ids`` of batches, or the ``loss``. r: correlation, 1 for ids.
 *     learned: the weights learned from it, as the run declares to continue the other one: an alarm.
 *     incident_id: of its incident.
 */
export interface SharedData {
  first: number;
  other_run: string;
  other_name: string;
  other_step: number;
  by: "ids" | "loss";
  r: number;
  learned: boolean;
  incident_id: string;
}

/**
 * Batches of other steps: the new branch's step s has the batch of step s + ``steps``.
 *
 * Attributes:
 *     r: correlation of the residuals, null for evidence by batch ids.
 *     sigmas: distance above that of unrelated intervals of this run.
 *     points: compared.
 */
export interface Shift {
  steps: number;
  r: number | null;
  sigmas: number | null;
  points: number;
}

/**
 * Inspect the batches that the job keeps; each rank answers for itself (docs/wire.md).
 *
 * Attributes:
 *     incident_id: subject. step: the first batch to inspect.
 *     samples, text_chars: most per rank.
 *     ranks: some of those that answered, failures first.
 *     answered: a bit per rank that answered, in hex: thousands of ranks in a few hundred characters.
 *     acted: ranks that showed their batches.
 */
export interface ShowBatches {
  kind: "show_batches";
  command_id: string;
  run_id: string;
  to_step: number | null;
  lr_scale: number | null;
  seed: number | null;
  skip_batches: number | null;
  skip_range?: [number, number];
  reason: string;
  issuer: string;
  issued: number;
  expires: number;
  fence: CommandFence;
  state: "acted" | "delivered" | "done" | "expired" | "failed" | "pending" | "ready" | "rejected";
  attempt: number;
  apply_at_step: number | null;
  world_size: number;
  ranks: Record<string, RankState>;
  history: HistoryEntry[];
  checkpoint: string | null;
  segment: number | null;
  first_step: number | null;
  idempotency_key: string | null;
  waits?: string;
  warning?: string;
  progress?: Progress;
  incident_id: string | null;
  step: number | null;
  samples: number;
  text_chars: number;
  answered: string;
  acted: number;
}

/**
 * An entry as shown.
 *
 * Attributes:
 *     command: state of its command; null for a dry run, for one that gave up, and for a forgotten command.
 */
export interface ShownEntry {
  entry_id: string;
  action: "gave_up" | "roll_back";
  dry_run: boolean;
  time: number;
  step: number;
  head_key: string;
  incident_id: string;
  kind: string;
  onset_step: number;
  text: string;
  to_step: number | null;
  segment: number | null;
  skip_range: number[] | null;
  skip_batches: number | null;
  lr_scale: number | null;
  seed: number | null;
  command: "acted" | "delivered" | "done" | "expired" | "failed" | "pending" | "ready" | "rejected" | null;
}

/**
 * One real event in the life of a run, as shown.
 *
 * Attributes:
 *     label, about: of its kind.
 *     alarm: false for a note: neither counted as open nor sent.
 *     status: a row of schema/severity.py. status_word: its label.
 *     since: start, unix seconds: last progress of a hang, first sign of a GPU fault, else when it opened.
 *     until_step: its last step; null: up to the end of its branch.
 *     actions: possible while the job is there.
 */
export interface ShownIncident {
  incident_id: string;
  run_id: string;
  segment: number;
  opened: number;
  updated: number;
  resolved: number | null;
  acknowledged_by: string | null;
  acknowledged: number | null;
  dead: boolean;
  version: number;
  train: string;
  nth: number;
  notify_at: number;
  recurring: boolean;
  caused_by: string;
  evidence: Record<string, unknown>;
  kind: string;
  severity: "critical" | "info" | "warning";
  state: "open" | "recovered" | "resolved";
  title: string;
  text: string;
  metric: string | null;
  dataset: string | null;
  rank: number | null;
  node: string | null;
  onset_step: number;
  step: number;
  peak_step: number | null;
  recovered_step: number | null;
  recovery: "fast" | "none" | "pending" | "slow" | null;
  score: number;
  suggestion: Suggestion | null;
  label: string;
  about: "data" | "gpu" | "model" | "process" | "user";
  alarm: boolean;
  status: "accepted" | "acknowledged" | "discarded" | "ended" | "open" | "recovered" | "resolved";
  status_word: string;
  since: number;
  until_step: number | null;
  actions: ("acknowledge" | "dump_stacks" | "restart" | "roll_back" | "show_batches")[];
}

/**
 * A run's state: its worst open incident, else its phase.
 *
 * Attributes:
 *     word: for its pill: the kind of the incident, or the phase.
 *     tone, shape: appearance.
 *     order: rank in lists of runs, lower first; of equals the latest ``since`` first.
 *     since: start, unix seconds, null for unknown.
 *     incident_id: the incident, null for a phase.
 *     phase: of the run, with or without open incidents.
 *     status: of the incident: open or acknowledged; null for a phase.
 *     condition: one of five, used in all counts.
 *     not_back: the newest alarm without recovery, where none is open: nothing is green then.
 */
export interface ShownState {
  word: string;
  tone: "calm" | "critical" | "good" | "info" | "warning";
  shape: "disc" | "octagon" | "ring" | "tick" | "triangle";
  order: number;
  since: number | null;
  incident_id: string | null;
  phase: "checkpointing" | "crashed" | "empty" | "evaluating" | "finished" | "lost" | "offline" | "preempted" | "restoring" | "stalled" | "starting" | "stopped" | "training" | "unreadable";
  status: "accepted" | "acknowledged" | "discarded" | "ended" | "open" | "recovered" | "resolved" | null;
  condition: "crashed" | "empty" | "over" | "sick" | "well";
  not_back: NotBack | null;
}

/**
 * Methods of sign-in besides a key.
 *
 * Attributes:
 *     oidc: null without a provider.
 */
export interface SignInWays {
  oidc: OidcWay | null;
}

/**
 * Whether the batches to skip were skipped.
 *
 * Attributes:
 *     batches: to skip.
 *     known: ``equal``: they were skipped; ``different``: they were not.
 */
export interface SkipCheck {
  batches: number;
  known: "different" | "equal" | "not_seen";
  why: string;
}

/**
 * Answer to a submitted question; a press has an empty one.
 *
 * Attributes:
 *     response_action: ``clear`` closes it, ``update`` shows ``view`` in its place, in Slack's Block Kit.
 */
export interface SlackAnswer {
  response_action: "clear" | "update";
  view?: Record<string, unknown> | null;
}

/**
 * OLMo-core's SpikeScore of one metric.
 *
 * Attributes:
 *     metric: its name, "" for a step at which any of the metrics is an outlier.
 *     steps: effective steps with a finite point. outliers: of those, more than 6 standard deviations above the mean
 *         of the 128 points before. last_outlier: the newest such step, null for none.
 *     share: outliers / steps, 0 to 1; null below 128 steps.
 *     newest_share: the same of the newest 10,000 steps; null for fewer.
 */
export interface SpikeScore {
  metric: string;
  steps: number;
  outliers: number;
  share: number | null;
  newest_share: number | null;
  last_outlier: number | null;
}

/**
 * The SpikeScores of a run's loss and gradient norm, each and together.
 *
 * Attributes:
 *     either: null without both.
 */
export interface SpikeScores {
  metrics: SpikeScore[];
  either: SpikeScore | null;
}

/** The open incident at or after whose onset a checkpoint was saved: it may hold the damage already. */
export interface SpoiledBy {
  incident_id: string;
  kind: string;
  onset_step: number;
  text: string;
}

/** Room for unsent records. */
export interface SpoolFacts {
  free_mib?: number | null;
  limit_mib?: number | null;
  dropped?: number | null;
  error?: string | null;
}

/** Collect the stacks of every rank. */
export interface StackDump {
  kind: "dump_stacks";
  command_id: string;
  run_id: string;
  to_step: number | null;
  lr_scale: number | null;
  seed: number | null;
  skip_batches: number | null;
  skip_range?: [number, number];
  reason: string;
  issuer: string;
  issued: number;
  expires: number;
  fence: CommandFence;
  state: "acted" | "delivered" | "done" | "expired" | "failed" | "pending" | "ready" | "rejected";
  attempt: number;
  apply_at_step: number | null;
  world_size: number;
  ranks: Record<string, RankState>;
  history: HistoryEntry[];
  checkpoint: string | null;
  segment: number | null;
  first_step: number | null;
  idempotency_key: string | null;
  waits?: string;
  warning?: string;
  progress?: Progress;
  nodes: Record<string, NodeState>;
}

/** The newest 8 dumps, newest first. */
export interface StackDumps {
  dumps: RankStacks[];
}

/** A frame of a stack; line 0 for unknown. */
export interface StackFrame {
  function: string;
  file: string;
  line: number;
}

/**
 * Ranks whose main threads have one stack.
 *
 * Attributes:
 *     what: the collective, as ``all_reduce #1841 of default_pg``, or only its name; the call that takes a lock, as
 *         ``with cache``.
 *     frames: of the main thread, innermost first.
 *     text: whole text of one of them, "" beyond 1 MB a dump.
 *     odd: the others may wait for these.
 */
export interface StackGroup {
  ranks: number[];
  nodes: string[];
  where: "checkpoint" | "collective" | "data" | "idle" | "lock" | "native" | "unknown" | "user";
  what: string;
  frames: StackFrame[];
  text: string;
  odd: boolean;
}

/**
 * End training on all ranks at one step boundary; the job's script continues to its own end.
 *
 * Attributes:
 *     save: a checkpoint first.
 */
export interface Stop {
  kind: "stop";
  command_id: string;
  run_id: string;
  to_step: number | null;
  lr_scale: number | null;
  seed: number | null;
  skip_batches: number | null;
  skip_range?: [number, number];
  reason: string;
  issuer: string;
  issued: number;
  expires: number;
  fence: CommandFence;
  state: "acted" | "delivered" | "done" | "expired" | "failed" | "pending" | "ready" | "rejected";
  attempt: number;
  apply_at_step: number | null;
  world_size: number;
  ranks: Record<string, RankState>;
  history: HistoryEntry[];
  checkpoint: string | null;
  segment: number | null;
  first_step: number | null;
  idempotency_key: string | null;
  waits?: string;
  warning?: string;
  progress?: Progress;
  save: boolean;
}

/**
 * The commanded end of a run.
 *
 * Attributes:
 *     by, reason: of the command. before_step: the first step that did not begin. saved: a checkpoint first.
 *     time: when all ranks had stopped, unix seconds.
 */
export interface StoppedBy {
  by: string;
  reason: string;
  before_step: number | null;
  time: number;
  saved: boolean;
  command_id: string;
}

/**
 * A fault of the server that concerns all runs, mostly in storing.
 *
 * Attributes:
 *     code: for programs.
 *     problem, hint: fault and remedy, for display.
 *     since: unix seconds.
 */
export interface StoringProblem {
  code: string;
  problem: string;
  hint: string;
  since: number;
}

/** A collective that some ranks have entered and others not; ``unknown``: ranks without a flight recorder. */
export interface StuckCollective {
  pg: string;
  seq: number;
  op: string;
  joined: number[];
  missing: number[];
  unknown: number[];
}

/**
 * Advice about an incident.
 *
 * Attributes:
 *     to_step: checkpoint of a rollback; of another action, the one for a later rollback.
 *     skip_range: steps whose batches are left out, inclusive, from the first bad one on; null: the data are good.
 *     skip_batches: their number for a job that can only leave out those right behind the checkpoint.
 *     lr_scale: factor on the schedule of the restored checkpoint; 1 and null leave it.
 *     reseed: continue with a new seed.
 *     wait_steps, until_step: wait before an action, steps from the onset, and its last step.
 *     fix_first: correction needed before a rollback, "" for none. ``cause``: rollbacks did not help and the cause is
 *         unknown; ``to_step`` is the checkpoint for after the correction.
 *     leads: id of the primary incident of the run; all open ones have the same advice.
 *     checklist: lines to go through. source: of the experience behind it.
 */
export interface Suggestion {
  action: "inspect" | "none" | "restart" | "roll_back" | "wait";
  to_step: number | null;
  skip_batches: number | null;
  skip_range: number[] | null;
  lr_scale: number | null;
  reseed: boolean;
  wait_steps: number | null;
  until_step: number | null;
  fix_first: "" | "cause" | "change" | "data position" | "mixture" | "resume" | "schedule";
  leads: string;
  checklist: string[];
  text: string;
  source: string;
}

/** The GPU of a suspect. */
export interface SuspectGpu {
  rank: number | null;
  node: string | null;
  index: number | null;
  uuid: string | null;
}

/**
 * A run in the table. Fields: see ``Run`` and ``RunDigest``.
 *
 * Attributes:
 *     gone: deleted since the order was made; all else is empty then.
 *     progress: time of the last row of its ranks, unix seconds, null without points.
 *     curve: null for none, with the reason in ``curve_why``.
 *     cells: values of the requested columns, in their order; null for none.
 */
export interface TableRow {
  run_id: string;
  gone: boolean;
  name: string;
  project: string;
  tags: string[];
  status: "crashed" | "failed" | "finished" | "offline" | "preempted" | "running" | "stalled" | "stopped" | "unreachable";
  state: ShownState;
  note: string;
  step: number | null;
  loss: number | "-Infinity" | "Infinity" | "NaN" | null;
  loss_metric: string | null;
  tokens: number | null;
  tokens_why: string;
  speed: number | null;
  speed_unit: string;
  goodput: number | null;
  goodput_why: string;
  gpus: number | null;
  ranks: number;
  open_incidents: number;
  worst_incident: WorstIncident | null;
  rollbacks: number;
  undo: number | null;
  created: number;
  updated: number;
  progress: number | null;
  curve: RunCurve | null;
  curve_why: string;
  cells: (number | "-Infinity" | "Infinity" | "NaN" | boolean | string | null)[];
}

/** Run a function that a plug-in of the agents registered (docs/extending.md). */
export interface Task {
  kind: "task";
  command_id: string;
  run_id: string;
  to_step: number | null;
  lr_scale: number | null;
  seed: number | null;
  skip_batches: number | null;
  skip_range?: [number, number];
  reason: string;
  issuer: string;
  issued: number;
  expires: number;
  fence: CommandFence;
  state: "acted" | "delivered" | "done" | "expired" | "failed" | "pending" | "ready" | "rejected";
  attempt: number;
  apply_at_step: number | null;
  world_size: number;
  ranks: Record<string, RankState>;
  history: HistoryEntry[];
  checkpoint: string | null;
  segment: number | null;
  first_step: number | null;
  idempotency_key: string | null;
  waits?: string;
  warning?: string;
  progress?: Progress;
  nodes: Record<string, NodeState>;
  task: string;
}

/**
 * Findings in a run with other settings.
 *
 * Attributes:
 *     first_step: the first that counts, null for all.
 *     now, then: by detector: incidents of the run today, and with these settings.
 *     incidents: newest first, at most 500.
 *     seconds: duration of the trial.
 *     failures: exceptions of detectors.
 */
export interface Trial {
  settings: Record<string, Record<string, number>>;
  first_step: number | null;
  now: Record<string, SeverityCounts>;
  then: Record<string, SeverityCounts>;
  incidents: ShownIncident[];
  rows: number;
  points: number;
  seconds: number;
  failures: Record<string, number>;
  unreadable: number;
}

/** Settings to try. */
export interface TrialBody {
  /** detector -> parameter -> number, as GET /api/v1/detectors lists them; {} brings the defaults back */
  settings: unknown;
  /** judge the newest steps only; all when left out */
  last_steps?: number | null;
}

/**
 * Unusable data from the run's agents.
 *
 * Attributes:
 *     passed_over: events and blocks of points that were left out as a whole.
 *     defects: those of them that failed on a mistake of the server.
 *     fields: fields that were left out of events and health reports.
 *     named: the first 16 reasons.
 */
export interface UnreadableCounts {
  passed_over: number;
  defects: number;
  fields: number;
  named: UnreadableReason[];
}

/** Reason for data left out, its count, and its first sender. */
export interface UnreadableReason {
  what: string;
  why: string;
  count: number;
  source: string;
}

/**
 * Records missing in the run.
 *
 * Attributes:
 *     dropped: records without room on their node. refused: values, steps and calls that can't be stored.
 *     lost: records of a node that could not be read there.
 *     stored: records of the ranks of which some were dropped.
 *     refusals: the first refusal of each kind.
 *     text: the same in sentences, "" for nothing missing.
 */
export interface UnrecordedCounts {
  dropped: number;
  refused: number;
  lost: number;
  stored: number;
  refusals: string[];
  text: string;
}

/**
 * One verdict.
 *
 * Attributes:
 *     kind: its class, by kind of incident (docs/api.md).
 *     parts: of a hang, the text in pieces, with a start time (unix seconds) for each duration.
 *     culprits: suspected ranks. because, blind: evidence, and gaps in it.
 *     since: unix seconds. dump: id of the requested stacks.
 *     training: of lost agents.
 */
export interface Verdict {
  class: string;
  text: string;
  parts?: (string | number)[];
  confidence: "high" | "low" | "medium";
  culprits: number[];
  nodes: string[];
  gpus: SuspectGpu[];
  because: string[];
  blind: string[];
  since: number | null;
  decided_after_s: number | null;
  dump: string | null;
  training?: "goes on" | "stands" | "unknown";
}

/**
 * One saved view.
 *
 * Attributes:
 *     project: of its runs, "" for all.
 *     name: unique in its kind and project.
 *     state: of the page, opaque to the server.
 *     saved_by: name of the key, ``local`` without one.
 *     saved: unix seconds.
 */
export interface View {
  kind: "layout" | "runs";
  project: string;
  name: string;
  state: Record<string, unknown>;
  saved_by: string;
  saved: number;
}

/** A view and its name. */
export interface ViewBody {
  kind: "runs" | "layout";
  /** whose runs it is for; left out: of all */
  project?: string;
  /** 1 to 80 characters; an older view of this name is replaced */
  name: string;
  /** what the page needs to show it again, at most 64 KiB as JSON */
  state: Record<string, unknown>;
}

export interface Views {
  views: View[];
}

/** A blind spot on a node. */
export interface VisibilityGap {
  what: string;
  why?: string | null;
  do?: string | null;
}

/** Samples of a rank's loop: steps sampled, sum of their shares of waiting for other ranks, and of the squares. */
export type WaitSamples = [number, number, number];

/**
 * A metric that detectors read.
 *
 * Attributes:
 *     role: ``loss``, ``grad_norm``, ``lr``, ``batch_size``, ``val_loss``, ``tokens_per_s`` (any speed),
 *         ``step_time_s``, or ``ratio``, ``tokens``, ``samples`` of a data set; "" for any other: a note where it
 *         leaves its own past, or input of a plug-in.
 *     dataset: its data set, null for the run as a whole.
 *     why: by its name, by ``run.names()``, or by its values.
 *     detectors: that read it. Empty for display only.
 *     text: transformation of its values, "" for none.
 */
export interface WatchedMetric {
  metric: string;
  role: string;
  dataset: string | null;
  why: "declared" | "name" | "values";
  detectors: string[];
  text: string;
}

/**
 * Watched and unwatched metrics of a run.
 *
 * Attributes:
 *     watched: those of the run as a whole first.
 *     unwatched: other names but readings of GPUs, at most 500, with ``unwatched_count`` in all.
 *     notes: faults to correct: a declared name that never appeared, several candidates of the loss.
 *     incomplete: the run has more metrics than are distinguished.
 *     mixture: the job has declared its mixture (``GET .../mixture``).
 */
export interface WatchedMetrics {
  watched: WatchedMetric[];
  unwatched: string[];
  unwatched_count: number;
  notes: string[];
  incomplete: boolean;
  mixture: boolean;
}

/**
 * The number of ranks of a run, and its last change.
 *
 * Attributes:
 *     now: ranks of the newest launch.
 *     before, since_step: ranks of the last launch with another number, and the first step since; null without one.
 *     gpus: GPUs in use on the connected nodes, null for none.
 */
export interface WorldSize {
  now: number;
  before: number | null;
  since_step: number | null;
  gpus: number | null;
}

/**
 * The open incident of a run to read first.
 *
 * Attributes:
 *     since: start, unix seconds. acknowledged: by a person.
 *     advice: action of its suggestion, such as ``roll_back``; "" without one.
 */
export interface WorstIncident {
  incident_id: string;
  kind: string;
  severity: "critical" | "info" | "warning";
  title: string;
  since: number | null;
  acknowledged: boolean;
  advice: string;
}

/** Method and path of a call, and what it answers when it succeeds. */
export interface Answers {
  "GET /api/v1/alerting": AlertingStatus;
  "POST /api/v1/alerting/mutes": Mutes;
  "DELETE /api/v1/alerting/mutes/{mute_id}": Mutes;
  "GET /api/v1/alerting/precision": Precision;
  "POST /api/v1/alerting/preview": AlertPreview;
  "PUT /api/v1/alerting/routes": Routes;
  "GET /api/v1/audit": Audit;
  "GET /api/v1/audit/export": Blob;
  "GET /api/v1/compare": Comparison;
  "GET /api/v1/detectors": Detectors;
  "GET /api/v1/gpus": FleetGpus;
  "GET /api/v1/incident_kinds": IncidentKinds;
  "GET /api/v1/incidents": IncidentPage;
  "GET /api/v1/interruptions": Interruptions;
  "POST /api/v1/login": Me;
  "POST /api/v1/logout": LoggedOut;
  "GET /api/v1/me": Me;
  "GET /api/v1/oidc/callback": void;
  "GET /api/v1/oidc/start": void;
  "POST /api/v1/pagerduty": PagerDutyAnswer;
  "GET /api/v1/proposals": Proposals;
  "GET /api/v1/receivers": Receivers;
  "POST /api/v1/retention": Retained;
  "GET /api/v1/rollback_costs": FleetRollbacks;
  "GET /api/v1/run_columns": RunColumns;
  "GET /api/v1/run_table": RunTable;
  "GET /api/v1/runs": RunPage;
  "GET /api/v1/runs/{run_id}": RunWithStoring;
  "DELETE /api/v1/runs/{run_id}": Deleted;
  "GET /api/v1/runs/{run_id}/about": AboutRun;
  "PUT /api/v1/runs/{run_id}/about": AboutRun;
  "GET /api/v1/runs/{run_id}/annotations": Annotations;
  "POST /api/v1/runs/{run_id}/annotations": Annotation;
  "PUT /api/v1/runs/{run_id}/annotations/{annotation_id}": Annotation;
  "DELETE /api/v1/runs/{run_id}/annotations/{annotation_id}": ChangedAnnotation;
  "GET /api/v1/runs/{run_id}/attempts": Attempts;
  "GET /api/v1/runs/{run_id}/autopilot": Autopilot;
  "PUT /api/v1/runs/{run_id}/autopilot": Autopilot;
  "DELETE /api/v1/runs/{run_id}/autopilot": Autopilot;
  "POST /api/v1/runs/{run_id}/backtest": Trial;
  "GET /api/v1/runs/{run_id}/batch_samples": BatchAnswers;
  "GET /api/v1/runs/{run_id}/batch_samples/{request}": BatchSamples;
  "GET /api/v1/runs/{run_id}/batches": Batches;
  "GET /api/v1/runs/{run_id}/branches": Branches;
  "GET /api/v1/runs/{run_id}/checkpoints": Checkpoints;
  "POST /api/v1/runs/{run_id}/commands": Rollback | Restart | Stop | CheckpointNow | StackDump | Task | ShowBatches;
  "GET /api/v1/runs/{run_id}/commands": Commands;
  "GET /api/v1/runs/{run_id}/commands/{command_id}": Rollback | Restart | Stop | CheckpointNow | StackDump | Task | ShowBatches;
  "DELETE /api/v1/runs/{run_id}/commands/{command_id}": Rollback | Restart | Stop | CheckpointNow | StackDump | Task | ShowBatches;
  "POST /api/v1/runs/{run_id}/compact": RunStorage;
  "GET /api/v1/runs/{run_id}/detectors": ListedRunDetectors;
  "PUT /api/v1/runs/{run_id}/detectors": RunDetectors;
  "GET /api/v1/runs/{run_id}/export": Blob;
  "GET /api/v1/runs/{run_id}/export/{export_id}": ExportProgress;
  "GET /api/v1/runs/{run_id}/gpus": Gpus;
  "GET /api/v1/runs/{run_id}/headline": Headline;
  "GET /api/v1/runs/{run_id}/health": HealthAnswer;
  "GET /api/v1/runs/{run_id}/incidents": Incidents;
  "GET /api/v1/runs/{run_id}/incidents/{incident_id}": ShownIncident;
  "POST /api/v1/runs/{run_id}/incidents/{incident_id}/ack": ShownIncident;
  "PUT /api/v1/runs/{run_id}/incidents/{incident_id}/category": Interruption;
  "GET /api/v1/runs/{run_id}/incidents/{incident_id}/rating": RatingAnswer;
  "PUT /api/v1/runs/{run_id}/incidents/{incident_id}/rating": RatingAnswer;
  "GET /api/v1/runs/{run_id}/metrics": MetricList;
  "GET /api/v1/runs/{run_id}/mixture": Mixture;
  "GET /api/v1/runs/{run_id}/orders": CommandOffers;
  "GET /api/v1/runs/{run_id}/output": OutputAnswer;
  "GET /api/v1/runs/{run_id}/plan": Plan;
  "GET /api/v1/runs/{run_id}/proposals": RunProposals;
  "POST /api/v1/runs/{run_id}/proposals": Proposal;
  "POST /api/v1/runs/{run_id}/proposals/{proposal_id}/approve": Proposal;
  "POST /api/v1/runs/{run_id}/proposals/{proposal_id}/decline": Proposal;
  "GET /api/v1/runs/{run_id}/resumes": Resumes;
  "GET /api/v1/runs/{run_id}/rollback": Offer;
  "GET /api/v1/runs/{run_id}/rollback_costs": RollbackCosts;
  "GET /api/v1/runs/{run_id}/segments": Segments;
  "POST /api/v1/runs/{run_id}/segments/{segment}/undo": Segments;
  "GET /api/v1/runs/{run_id}/series": SeriesAnswer;
  "GET /api/v1/runs/{run_id}/spike_score": SpikeScores;
  "GET /api/v1/runs/{run_id}/stacks": StackDumps;
  "GET /api/v1/runs/{run_id}/stacks/{request}": RankStacks;
  "GET /api/v1/runs/{run_id}/storage": RunStorage;
  "GET /api/v1/runs/{run_id}/watched": WatchedMetrics;
  "GET /api/v1/search": SearchResults;
  "GET /api/v1/sign_in": SignInWays;
  "POST /api/v1/slack": SlackAnswer;
  "GET /api/v1/views": Views;
  "PUT /api/v1/views": View;
  "DELETE /api/v1/views": Views;
  "GET /healthz": ServerHealth;
  "GET /livez": Alive;
  "GET /metrics": Blob;
  "GET /readyz": Ready;
}
