// Numbers, times and sizes as people read them.

/** A number from JSON: "NaN" and similar are numbers; null for anything else. */
export function toNumber(value) {
  if (typeof value === 'number') return value;
  return {NaN: NaN, Infinity: Infinity, '-Infinity': -Infinity}[value] ?? null;
}

/** A metric: four digits that count, as 0.9871, 1.204e-5, 12,340. */
export function metric(value) {
  const number = toNumber(value);
  if (number === null) return value === null || value === undefined ? '' : String(value);
  if (!Number.isFinite(number)) return String(number);
  if (Number.isInteger(number) && Math.abs(number) < 1e15) return integer(number);
  const size = Math.abs(number);
  if (size < 1e-3 || size >= 1e7) return number.toExponential(3).replace('e+', 'e');
  return size >= 1e4 ? integer(Math.round(number)) : String(Number(number.toPrecision(4)));
}

/** A whole number with commas. */
export function integer(value) {
  const number = toNumber(value);
  return number === null ? '' : number.toLocaleString('en-US', {maximumFractionDigits: 0});
}

/** A part of 100, from 0 to 100. */
export function percent(value) {
  const number = toNumber(value);
  if (number === null || Number.isNaN(number)) return '';
  const part = Math.max(0, Math.min(100, number));
  return `${part < 10 ? Math.floor(part * 10) / 10 : Math.floor(part)} %`;
}

const UNITS = [[86400, 'd'], [3600, 'h'], [60, 'min'], [1, 's']];

/** A duration in seconds, as 2 d 4 h, 3 min 20 s, 0.4 s. */
export function duration(value) {
  const seconds = toNumber(value);
  if (seconds === null || !Number.isFinite(seconds)) return '';
  if (seconds < 10) return `${Number(Math.max(0, seconds).toFixed(1))} s`;
  let rest = Math.round(seconds);
  const place = UNITS.findIndex(([size]) => rest >= size);
  const [size, unit] = UNITS[place];
  const first = Math.floor(rest / size);
  rest -= first * size;
  const next = UNITS[place + 1];
  const second = next && first < 10 ? Math.floor(rest / next[0]) : 0;
  return second ? `${first} ${unit} ${second} ${next[1]}` : `${first} ${unit}`;
}

/** The past since a time, see `time`: now, 5 min ago, 3 d ago; of long ago the date. */
export function ago(value, now = Date.now() / 1000) {
  const seconds = secondsOf(value);
  if (seconds === null) return '';
  const past = now - seconds;
  if (past < 45) return 'now';
  if (past > 30 * 86400) return time(seconds).slice(0, 10);
  const [size, unit] = UNITS.find(([length]) => past >= length);
  return `${Math.floor(past / size)} ${unit} ago`;
}

/** A time in seconds since 1970 or as ISO 8601, in full, in this place: 2026-11-30 08:53:59. */
export function time(value) {
  const seconds = secondsOf(value);
  if (seconds === null) return '';
  const date = new Date(seconds * 1000), pad = (number) => String(number).padStart(2, '0');
  return `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())} ` +
    `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
}

/** A time in seconds since 1970, of a number or a text of ISO 8601; null for anything else. */
export function secondsOf(value) {
  const number = toNumber(value) ?? (typeof value === 'string' ? Date.parse(value) / 1000 : null);
  return Number.isFinite(number) ? number : null;
}

const STAMP = /\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)/g;

/** A text of the server with its times as `time` writes them. */
export function withTimes(text) {
  return text.replace(STAMP, (stamp) => time(stamp));
}

/** A size in bytes with the unit in which a run prints it: 812 B, 3.2 KiB, 0.577 MiB, 4.66 GiB. */
export function bytes(value) {
  const size = toNumber(value);
  if (size === null || !Number.isFinite(size)) return '';
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  const place = size < 1024 ? 0 : size < 0.1 * 1024 ** 2 ? 1 : size < 1000 * 1024 ** 2 ? 2 : size < 1000 * 1024 ** 3 ? 3 : 4;
  return `${place ? Number((size / 1024 ** place).toPrecision(3)) : size} ${units[place]}`;
}

/** Steps a second. */
export function speed(value) {
  const number = toNumber(value);
  return number === null || !Number.isFinite(number) ? '' : `${metric(Number(number.toPrecision(3)))}/s`;
}

/** A value of a configuration, as --set takes it. */
export function field(value) {
  if (value === null || value === undefined) return 'null';
  if (typeof value === 'string') return value;
  return JSON.stringify(value);
}

/** A word in the plural: plural(2, 'run') is "2 runs". */
export function plural(count, word, many = `${word}s`) {
  return `${integer(count)} ${count === 1 ? word : many}`;
}

/** A word as a shell takes it, as Python's shlex.quote writes it. */
export function shellWord(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`;
}
