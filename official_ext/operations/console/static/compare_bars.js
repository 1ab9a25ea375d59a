// A number of several runs as bars: one for each run; or for each group the mean, with its deviation and its runs as dots.
import {get} from './api.js';
import {axisTitle, parseName, PROGRESS} from './charts.js';
import {csvOfBars, download, svgOfBars} from './chart_export.js';
import {element, replace} from './dom.js';
import {integer, metric, plural, toNumber} from './format.js';
import {errorList, link} from './parts.js';
import {logTicks, pictureStyle, swatch} from './plot.js';
import {setQuery} from './router.js';

export const STYLES = ['/static/bars.css'];

const STATISTICS = [['last', 'last'], ['best', 'best'], ['min', 'least'], ['max', 'greatest'], ['mean', 'mean of the last']];
const ORDERS = [['', 'Order of runs'], ['down', 'Largest first'], ['up', 'Smallest first']];
const MAX_TICKS = 6; // Of a logarithmic axis, which a phone has room for.
const COARSE_MS = 700; // Between questions while the server reads a long file.

/**
 * Makes the section; null if there are no runs, or no curves.
 *
 * @param {Object} options - `runs`: their names; `names`: of their curves; `first`: the name of the one that is shown if
 *   `query` names none; `query`: of the address, whose names begin with `bar`; `groups`: [{label, runs}], [] for none;
 *   `styleOf(run)`: {colour, dash}; `signal`.
 */
export async function barsOf({runs, names, first, query, groups, styleOf, signal}) {
  const offered = names.toSorted((one, other) => PROGRESS.has(parseName(one).metric) - PROGRESS.has(parseName(other).metric));
  if (!runs.length || !offered.length) return null;
  const has = (choices, name, otherwise) => choices.some(([value]) => value === name) ? name : otherwise;
  const state = {bar: offered.includes(query.get('bar')) ? query.get('bar') : offered.includes(first) ? first : offered[0],
    barvalue: has(STATISTICS, query.get('barvalue'), 'last'), barlast: Math.max(1, Math.min(10000, Math.round(Number(query.get('barlast')) || 10))),
    barorder: has(ORDERS, query.get('barorder'), ''), barzero: query.get('barzero') !== '0', barlog: query.get('barlog') === '1'};
  const body = element('div', {class: 'bars-body'});
  let values = [], timer = null, drawn = null;

  const title = () => `${axisTitle(state.bar)}, ${STATISTICS.find(([value]) => value === state.barvalue)[1]}${state.barvalue === 'mean' ? ` ${integer(state.barlast)}` : ''}`;

  async function load() {
    clearTimeout(timer);
    const asked = JSON.stringify(state);
    try {
      const answer = await get('/api/curves/values', {run: runs, name: state.bar, value: state.barvalue, count: state.barlast}, {signal});
      if (signal.aborted || asked !== JSON.stringify(state)) return; // Another choice was made meanwhile.
      values = answer.values;
      draw();
      if (values.some((each) => each?.is_coarse)) timer = setTimeout(load, COARSE_MS);
    } catch (error) {
      if (error.name !== 'AbortError') replace(body, errorList(error.lines ?? [String(error)]));
    }
  }

  /** The bars in their order: {label, run, style, value, deviation, members: [[run, value]], step}. */
  function rows() {
    const found = groups.length ? groups.map(({label, runs: members}) => groupRow(label, members)) : runs.map((run, index) => ({label: run, run,
      style: styleOf(run), value: toNumber(values[index]?.value ?? null), deviation: null, members: [], step: values[index]?.step ?? null}));
    const sign = {down: -1, up: 1}[state.barorder];
    const size = ({value}) => Number.isFinite(value) && value !== null ? sign * value : Infinity;
    return sign ? found.toSorted((one, other) => size(one) === size(other) ? 0 : size(one) - size(other)) : found;
  }

  function groupRow(label, members) {
    const known = members.map((run) => [run, toNumber(values[runs.indexOf(run)]?.value ?? null)]).filter(([, value]) => value !== null);
    const count = known.length, mean = count ? known.reduce((sum, [, value]) => sum + value / count, 0) : null;
    const deviation = count > 1 ? Math.sqrt(known.reduce((sum, [, value]) => sum + (value - mean) ** 2, 0) / (count - 1)) : null;
    return {label: label || '(no name)', run: null, style: styleOf(members[0]), value: mean, deviation, members: known, step: null, size: members.length};
  }

  function draw() {
    const found = rows(), has = (value) => Number.isFinite(value) && (!state.barlog || value > 0);
    const ends = found.flatMap(({value, deviation, members}) => [value, ...(Number.isFinite(deviation) ? [value - deviation, value + deviation] : []),
      ...members.map(([, each]) => each)]).filter(has);
    drawn = ends.length ? {found, has, ...(state.barlog ? logAxis(ends) : axis(ends))} : null;
    replace(body, drawn ? element('div', {class: 'scroll'}, element('table', {class: 'bars'},
      element('caption', {class: 'offscreen'}, title()),
      element('thead', {class: 'offscreen'}, element('tr', {}, ['Run', 'Bar', 'Value'].map((text) => element('th', {scope: 'col'}, text)))),
      element('tbody', {}, found.map((row) => element('tr', {}, head(row), element('td', {class: 'bars-cell'}, bar(row)),
        element('td', {class: 'number nowrap', title: row.step === null ? null : `step ${integer(row.step)}`}, textOf(row))))),
      drawn.ticks.length > 0 && element('tfoot', {'aria-hidden': 'true'}, element('tr', {}, element('td', {}), element('td', {class: 'bars-axis'}, drawn.ticks.map(({at, text}) =>
        element('span', {style: {left: `${at}%`}}, text))), element('td', {}))))) :
      element('p', {class: 'soft'}, `None of these runs has ${state.barlog ? 'a value above 0' : 'this value'}.`),
    Boolean(drawn?.begin) && element('p', {class: 'hint'}, `Bars begin at ${metric(drawn.begin)}.`));
  }

  /** The axis for values: `part(value)` of it from 0 to 100, where bars begin (`begin`, and `zero` as a part), and its numbers. */
  function axis(ends) {
    let low = Math.min(...ends), high = Math.max(...ends);
    if (state.barzero) [low, high] = [Math.min(0, low), Math.max(0, high)];
    else low -= 0.05 * (high - low);
    if (!(high > low)) [low, high] = [low - 0.5, low + 0.5];
    const part = (value) => 100 * (value - low) / (high - low);
    return {part, zero: part(Math.max(low, Math.min(high, 0))), begin: state.barzero ? 0 : low, ticks: []};
  }

  /** The same by logarithms, with the margin of a chart, as there is no zero; what is not above 0 is at its lower end. */
  function logAxis(ends) {
    const first = Math.log10(Math.min(...ends)), last = Math.log10(Math.max(...ends)), low = first - (last - first > 1e-9 ? 0.05 * (last - first) : 0.5);
    const part = (value) => value > 0 ? Math.max(0, 100 * (Math.log10(value) - low) / (last - low)) : 0;
    const found = logTicks(10 ** low, 10 ** last), every = Math.ceil(found.length / MAX_TICKS);
    const ticks = found.filter((_, index) => index % every === 0).map(({value, text}) => ({at: part(value), text}));
    return {part, zero: 0, begin: 10 ** low, ticks};
  }

  const head = (row) => element('th', {class: 'bars-name', scope: 'row'}, swatch(row.style), ' ', row.run === null ?
    element('span', {class: 'cut', title: row.members.map(([run]) => run).join('\n')}, row.label) :
    link(`/run?${new URLSearchParams({run: row.run})}`, row.label));

  function bar({value, deviation, members, style}) {
    const {has, part, zero} = drawn;
    if (!has(value)) return element('span', {class: 'faint'}, value === null ? 'no value' : Number.isFinite(value) ? 'not above 0' : 'not finite');
    const at = part(value), mark = (kind, from, to) => element('span', {class: kind, style: {left: `${Math.min(from, to)}%`, width: `${Math.abs(to - from)}%`, '--colour': `var(${style.colour})`}});
    return element('span', {class: 'bars-line', 'aria-hidden': 'true'}, drawn.ticks.map((tick) => element('span', {class: 'bars-tick', style: {left: `${tick.at}%`}})),
      mark('bars-fill', zero, at),
      Number.isFinite(deviation) && mark('bars-spread', part(value - deviation), part(value + deviation)),
      members.length > 1 && members.filter(([, each]) => has(each)).map(([run, each]) => element('span', {class: 'bars-dot', title: `${run}: ${metric(each)}`,
        style: {left: `${part(each)}%`, '--colour': `var(${style.colour})`}})));
  }

  function change(name, value) {
    state[name] = value;
    const kept = {bar: state.bar, barvalue: state.barvalue === 'last' ? null : state.barvalue, barlast: state.barvalue === 'mean' ? state.barlast : null,
      barorder: state.barorder, barzero: state.barzero ? null : '0', barlog: state.barlog ? '1' : null};
    for (const [key, one] of Object.entries(kept)) query.set(key, one ?? ''); // Tables that are made anew begin with it.
    setQuery(kept);
    last.parentElement.hidden = state.barvalue !== 'mean';
    zero.disabled = state.barlog;
    if (['barorder', 'barzero', 'barlog'].includes(name)) draw();
    else load();
  }

  const choice = (name, label, choices) => element('select', {'aria-label': label, onchange: (event) => change(name, event.target.value)},
    choices.map(([value, text]) => element('option', {value, selected: value === state[name], title: value}, text)));
  const last = element('input', {type: 'number', min: 1, max: 10000, value: state.barlast, class: 'bars-count', onchange: () =>
    change('barlast', Math.max(1, Math.min(10000, Math.round(Number(last.value)) || 1)))});
  const zero = element('input', {type: 'checkbox', checked: state.barzero, disabled: state.barlog, onchange: () => change('barzero', zero.checked)});
  const log = element('input', {type: 'checkbox', checked: state.barlog, onchange: () => change('barlog', log.checked)});
  const saver = (text, hint, type, make) => element('button', {class: 'small icon plot-save', type: 'button', title: hint, 'aria-label': `Bars as ${text}`,
    onclick: () => drawn && download(`${title()}.${text.toLowerCase()}`, make(), type)}, text);
  const section = element('section', {class: 'compare-part compare-bars', 'aria-label': 'Bars'}, element('div', {class: 'toolbar'}, element('h2', {}, 'Bars'),
    choice('bar', 'Metric of the bars', offered.map((name) => [name, axisTitle(name)])), choice('barvalue', 'Value of the bars', STATISTICS),
    element('label', {class: 'inline', hidden: state.barvalue !== 'mean'}, last, 'values'), choice('barorder', 'Order of the bars', ORDERS),
    element('label', {class: 'inline'}, zero, 'From zero'), element('label', {class: 'inline'}, log, 'Log axis'), element('span', {class: 'grow'}),
    saver('CSV', 'Save the values', 'text/csv', () => csvOfBars(drawn.found, title(), groups.length > 0)),
    saver('SVG', 'Save the picture', 'image/svg+xml', () => svgOfBars(title(), drawn, textOf, pictureStyle()))), body);
  signal.addEventListener('abort', () => clearTimeout(timer));
  await load();
  return section;
}

function textOf({value, deviation, members, size}) {
  if (value === null) return '–';
  const spread = deviation !== null && Number.isFinite(deviation) ? ` ± ${metric(Number(deviation.toPrecision(2)))}` : '';
  return `${metric(value)}${spread}${size ? ` (${size === members.length ? plural(size, 'run') : `${members.length} of ${plural(size, 'run')}`})` : ''}`;
}
