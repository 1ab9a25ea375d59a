// Axes of parameters and metrics: where a value is, from 0 to 1, and its labels.
import {field, metric, toNumber} from './format.js';

const LOG = /log/;

/** Statuses of points that have failed: pictures show them hollow or dashed. */
export const FAILED = new Set(['failed', 'diverged']);

/**
 * The axis of a parameter.
 *
 * @param {string} name
 * @param {Array} values - all of them; null for none.
 * @param {string} distribution - as the sweep's file has it; '' for a metric.
 * @returns {Object} {name, kind: linear|log|choice, place(value) -> 0..1 or null, ticks: [{at, text}]}
 */
export function axisOf(name, values, distribution = '') {
  const known = values.filter((value) => value !== null && value !== undefined);
  const numbers = known.map(toNumber);
  const isChoice = distribution === 'categorical' || distribution === 'constant' || !known.length ||
    numbers.some((number, place) => number === null || typeof known[place] === 'boolean');
  if (isChoice && !numbersIn(known, distribution)) return choiceAxis(name, known);
  const finite = numbers.filter(Number.isFinite);
  let low = Math.min(...finite), high = Math.max(...finite);
  // A grid of powers of ten, as of learning rates, is one of a logarithm too.
  const kind = low > 0 && (LOG.test(distribution) || (distribution === 'categorical' && high / low >= 50)) ? 'log' : 'linear';
  if (!finite.length) [low, high] = [0, 1];
  // Ends that differ by a rounding error: steps of that size are lost in a sum.
  if (high - low <= 1e-12 * Math.max(Math.abs(low), Math.abs(high))) [low, high] = kind === 'log' ? [low / 2, high * 2] : [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
  const of = kind === 'log' ? Math.log : (value) => value;
  const place = (value) => {
    const number = toNumber(value);
    return number === null || !Number.isFinite(number) ? null : (of(number) - of(low)) / (of(high) - of(low));
  };
  const found = kind === 'log' ? logTicks(low, high) : linearTicks(low, high);
  return {name, kind, place, ticks: found.map((value) => ({at: place(value), text: metric(Number(value.toPrecision(12))).replace(/\.?0+e/, 'e')}))};
}

function numbersIn(values, distribution) {
  return distribution === 'categorical' && values.length > 0 && values.every((value) => typeof value === 'number') &&
    new Set(values).size > 2;
}

function choiceAxis(name, values) {
  const texts = [...new Set(values.map(field))].sort((one, other) =>
    Number(one) - Number(other) || one.localeCompare(other, 'en', {numeric: true})); // By size: 0.25 is less than 0.5.
  const at = (index) => texts.length === 1 ? 0.5 : index / (texts.length - 1);
  return {name, kind: 'choice', ticks: texts.map((text, index) => ({at: at(index), text})),
    place: (value) => value === undefined || !texts.includes(field(value)) ? null : at(texts.indexOf(field(value)))};
}

function linearTicks(low, high, count = 5) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough * 0.999);
  const found = [];
  for (let number = Math.ceil(low / step - 1e-9); number * step <= high + step * 1e-9; number++) found.push(number * step);
  return found;
}

function logTicks(low, high) {
  const found = [];
  for (let power = Math.ceil(Math.log10(low) - 1e-9); power <= Math.log10(high) + 1e-9; power++) found.push(10 ** power);
  if (found.length >= 2) return found.length > 7 ? found.filter((_, place) => place % Math.ceil(found.length / 7) === 0) : found;
  return [low, Math.sqrt(low * high), high];
}

/** The colour of a value: `share` 0 for the worst, 1 for the best, null for none. It goes with the theme. */
export function ramp(share) {
  if (share === null) return 'var(--line-strong)';
  const [from, to, part] = share < 0.5 ? ['--ramp-0', '--ramp-1', share * 2] : ['--ramp-1', '--ramp-2', share * 2 - 1];
  return `color-mix(in oklab, var(${from}), var(${to}) ${Math.round(part * 100)}%)`;
}
