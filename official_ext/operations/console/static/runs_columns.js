// The columns of the table of runs: its own, metrics, and fields of the configuration.
import {element} from './dom.js';
import * as format from './format.js';
import {bar, link, status} from './parts.js';

const LIVING = new Set(['starting', 'running', 'stopping', 'hung']);
const LATEST_FIRST = new Set(['started', 'updated']);
const NUM_METRICS = 2;
const MAX_METRIC = 136; // The default columns fit 1280 pixels; the title of a longer name is cut.
/** The order of a list that nobody has sorted: the runs that were started last come first. */
export const DEFAULT_SORT = 'started';

/** Whether a process of a run lives, as far as is known. */
export const isLiving = (run) => LIVING.has(run.status);

const MISTAKEN = new Set(['failed', 'diverged', 'dead', 'hung']);

/** Why a run failed, for the list: from its error on, which its page has with all that comes before; '' if it did not. */
export function mistakeOf(run) {
  if (!MISTAKEN.has(run.status)) return '';
  return format.withTimes(run.reason.replace(/^.*?: error: /, ''));
}

/** The address of a run's page. */
export const runAddress = (run) => `/run?${new URLSearchParams({run: run.name})}`;

/** A metric of a run, as `RunSummary.metric` has it: of the last evaluation, or else of the last training loop. */
export function metricOf(run, name) {
  const {evaluation, train} = run, short = name.replace(/^validation_/, '');
  return format.toNumber(evaluation[name] ?? evaluation[short] ?? train[name]);
}

const isEvaluated = (run, name) => name in run.evaluation || name.replace(/^validation_/, '') in run.evaluation;

/** The time that a run still takes: the server's estimate, less the time passed since. */
export function timeLeft(run) {
  return run.eta_seconds === null ? null : Math.max(0, run.eta_seconds - (performance.now() - run.receivedAt) / 1000);
}

/** How long a run has taken since its last start, in seconds; null if that is not known. */
export function durationOf(run) {
  const end = isLiving(run) ? Date.now() / 1000 : run.updated;
  return run.started === null || end === null ? null : Math.max(0, end - run.started);
}

const OWN = {
  status: {title: 'Status', width: 112, render: (run) => status(run.status, run.reason), value: (run) => run.status,
    isSame: (run, before) => run.status === before.status && run.reason === before.reason},
  step: {title: 'Step', width: 160, render: progress, value: (run) => run.step, isSame: (run, before) =>
    run.step === before.step && run.train_steps === before.train_steps && isLiving(run) === isLiving(before)},
  eta_seconds: {title: 'Left', width: 84, number: true, tooltip: 'Remaining time of the training',
    render: (run) => format.duration(timeLeft(run)), value: timeLeft, ticks: true},
  steps_per_second: {title: 'Speed', width: 92, number: true, tooltip: 'Steps a second',
    render: (run) => isLiving(run) ? format.speed(run.steps_per_second) : '',
    value: (run) => format.toNumber(run.steps_per_second)},
  duration: {title: 'Duration', width: 92, number: true, tooltip: 'From the last start to the last step or the end', ticks: true,
    render: (run) => format.duration(durationOf(run)), value: durationOf},
  experiment: {title: 'Experiment', width: 110, render: (run) => run.experiment, value: (run) => run.experiment},
  mode: {title: 'Mode', width: 120, render: (run) => run.mode, value: (run) => run.mode},
  attempt: {title: 'Starts', width: 70, number: true, tooltip: 'Number of starts',
    render: (run) => format.integer(run.attempt), value: (run) => run.attempt},
  percent: {title: '%', width: 70, number: true, render: (run) => format.percent(run.percent), value: (run) => run.percent},
  train_steps: {title: 'Steps', width: 90, number: true, render: (run) => format.integer(run.train_steps),
    value: (run) => run.train_steps},
  reason: {title: 'Reason', width: 260, render: (run) => run.reason, value: (run) => run.reason},
  started: {title: 'Started', width: 104, tooltip: 'Time of the last start', ticks: true, value: (run) => run.started,
    render: (run) => moment(run.started)},
  updated: {title: 'Updated', width: 108, tooltip: 'Time of the last step or of the end', ticks: true,
    value: (run) => run.updated, render: (run) => moment(run.updated)},
};
/** Names of columns that every run has, in the order in which they are offered. `tags` and `note` are the page's. */
export const OWN_NAMES = ['status', 'step', 'percent', 'train_steps', 'eta_seconds', 'duration', 'steps_per_second', 'experiment',
  'mode', 'attempt', 'tags', 'note', 'reason', 'started', 'updated'];

function moment(seconds) {
  return seconds === null ? '' : element('time', {title: format.time(seconds)}, format.ago(seconds));
}

function progress(run) {
  if (run.step === null) return '';
  const text = run.train_steps ? `${format.integer(run.step)} / ${format.integer(run.train_steps)}` : format.integer(run.step);
  return element('span', {class: ['progress', isLiving(run) && 'living'], title: text}, run.percent !== null && bar(run.percent),
    element('span', {class: 'progress-percent'}, run.percent === null ? '' : format.percent(run.percent)),
    element('span', {class: 'progress-step'}, format.integer(run.step)));
}

/** The names of the metrics of some runs, those that most runs have first; of evaluations before those of training. */
export function metricNames(runs) {
  const counts = new Map();
  for (const run of runs) {
    for (const [values, weight] of [[run.evaluation, 1000], [run.train, 1]]) {
      for (const name of Object.keys(values)) counts.set(name, (counts.get(name) ?? 0) + weight);
    }
  }
  return [...counts.keys()].sort((one, other) => counts.get(other) - counts.get(one));
}

/** The columns of a table whose user has chosen none. */
export function defaultColumns(runs) {
  return ['status', 'step', ...metricNames(runs).slice(0, NUM_METRICS), 'experiment', 'duration', 'eta_seconds', 'tags', 'started'];
}

/** The meaning of a name, as in `runs list --sort`: own, a metric of evaluations, a field, a metric of training. */
export function kindOf(name, runs, fieldNames) {
  if (name in OWN || name === 'name' || name === 'tags' || name === 'note') return 'own';
  if (runs.some((run) => isEvaluated(run, name))) return 'metric';
  if (!fieldNames.has(name) && runs.some((run) => name in run.train)) return 'metric';
  return 'field';
}

/** Whether the largest come first if a list is sorted by a name, as in `runs list --sort`. */
export function isDescending(sort, kind, best) {
  const name = sort.replace(/^-/, '');
  return (kind === 'metric' ? best[name] === 'max' : LATEST_FIRST.has(name)) !== sort.startsWith('-');
}

const NUMBER = /^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i; // A text that is a number.

/** The sort key of a run, by the name of the column. */
export function valueGetter(name, kind, fields) {
  if (name === 'name') return (run) => run.name;
  if (name === 'tags') return (run) => run.tags.join(',');
  if (name === 'note') return (run) => run.note;
  if (kind === 'own') return OWN[name].value;
  if (kind === 'metric') return (run) => metricOf(run, name);
  return (run) => {
    const value = fields[run.name]?.[name];
    if (typeof value === 'number' || value === undefined) return value ?? null;
    return NUMBER.test(value) ? Number(value) : format.toNumber(value) ?? format.field(value);
  };
}

/** The column of the name, which all tables have. `baseline`: the name of the run with which others are compared. */
export function nameColumn(baseline = '') {
  return {name: 'name', title: 'Run', width: 150, grow: true, sortable: true, class: 'name',
    isSame: (run, before) => run.name === before.name,
    render: (run) => element('span', {title: run.name}, link(runAddress(run), nameParts(run.name)),
      run.name === baseline && [' ', element('span', {class: 'tag'}, 'baseline')])};
}

function nameParts(name) {
  const cut = name.lastIndexOf('/') + 1;
  return [cut > 0 && element('span', {class: 'folder'}, name.slice(0, cut)), name.slice(cut)];
}

const metricWidth = (name) => Math.min(MAX_METRIC, Math.max(96, 26 + 7.2 * name.length));

/** The difference of a metric from the baseline's, with its sign; good or bad if it is known which values are better. */
function difference(value, base, best) {
  const change = value - base;
  if (value === null || base === null || !Number.isFinite(change)) return element('span', {class: 'difference'});
  const kind = !change || !best ? 'faint' : (change > 0) === (best === 'max') ? 'good' : 'bad';
  return element('span', {class: ['difference', kind]}, change ? `${change > 0 ? '+' : '−'}${format.metric(Math.abs(change))}` : '=');
}

/**
 * A column by its name: of the table's own, a metric, or a field of the configuration.
 *
 * @param {string} name
 * @param {string} kind - see kindOf.
 * @param {Object} fields - run -> field -> value.
 * @param {Object} compared - `baseline()`: the run with which others are compared, or undefined; `best` of the metrics.
 */
export function columnOf(name, kind, fields, {baseline, best}) {
  const baseOf = (run) => baseline()?.name === run.name ? undefined : baseline();
  if (kind === 'own') return {name, sortable: true, ...OWN[name]};
  if (kind === 'metric') {
    return {name, title: name, width: metricWidth(name) + (baseline() ? 56 : 0), number: true, sortable: true, class: 'metric',
      tooltip: `${name}: of the last evaluation, or else of the last training loop`,
      render: (run) => {
        const value = metricOf(run, name), base = baseOf(run), text = format.metric(value);
        return baseline() ? element('span', {}, text, ' ', difference(value, base ? metricOf(base, name) : null, best[name])) : text;
      },
      isSame: (run, before) => Object.is(metricOf(run, name), metricOf(before, name))};
  }
  const last = name.slice(name.lastIndexOf('.') + 1);
  return {name, title: last, width: Math.max(96, 26 + 7.2 * last.length), sortable: true, class: 'field', tooltip: name,
    render: (run) => {
      const textOf = (value) => value === undefined ? '' : typeof value === 'number' ? format.metric(value) : format.field(value);
      const text = textOf(fields[run.name]?.[name]), base = baseOf(run), other = base && textOf(fields[base.name]?.[name]);
      return base && text !== other ? element('b', {title: `of the baseline: ${other || '–'}`}, text || '–') : text;
    }};
}
