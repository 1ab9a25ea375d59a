// Many charts with one axis: their contents, the controls above them, and requests for the visible ones.
import {get} from './api.js';
import {element, replace, setText} from './dom.js';
import {errorList} from './parts.js';
import {plot} from './plot.js';
import {setQuery} from './router.js';

/** Values of a run's progress, which are not results. */
export const PROGRESS = new Set(['data_wait', 'epoch', 'eta_seconds', 'examples_per_second', 'learned_tokens_per_second', 'tokens_per_second', 'model_global_step', 'optimizer_iterations',
  'percent', 'seconds', 'steps_per_second', 'train_steps']);
const LAST = ['learning_rate', 'grad_norm'];
const EVENTS = {eval: 'validation', system: 'machine'};
const AXES = [['step', 'Step'], ['time', 'Time since start'], ['active', 'Time of running'], ['wall', 'Date'], ['examples', 'Examples']];
const REST_MS = 300;
const MAX_CURVES = 2000; // In one answer.
const COARSE_MS = 700; // Between questions while the server reads a long file.

/** The mode, the event and the metric of a curve's name. */
export function parseName(name) {
  const [, mode, event, metric] = /^(?:([a-z_]+):)?(train|eval|system)\/(.*)$/s.exec(name);
  return {mode: mode ?? '', event, metric};
}

/** What people call the curve of a name that is an axis: `tokens`, `accuracy (validation)`; '' for the other axes. */
export function axisTitle(name) {
  if (!name.includes('/')) return '';
  const {mode, event, metric} = parseName(name), from = mode && mode !== event ? mode : EVENTS[event];
  return from ? `${metric} (${from})` : metric;
}

/** Charts for names of curves: [{title, names, isProgress}], in the order of the page. */
export function groups(names) {
  const parsed = names.map((name) => ({name, ...parseName(name)}));
  const hasLoss = parsed.some(({metric}) => metric === 'loss');
  const titleOf = (metric) => !hasLoss && (metric === 'training_loss' || metric === 'validation_loss') ? 'loss' : metric || '(no name)';
  const found = new Map();
  for (const {name, event, metric} of parsed) {
    const title = titleOf(metric);
    if (!found.has(title)) found.set(title, {title, names: [], isProgress: PROGRESS.has(metric) || event === 'system'});
    found.get(title).names.push(name);
  }
  const rank = ({title, isProgress}) => isProgress ? 3 : LAST.includes(title) ? 2 : title === 'loss' ? 0 : 1;
  return [...found.values()].sort((a, b) => rank(a) - rank(b));
}

/**
 * The section of a page that shows curves.
 *
 * @param {Object} options - `runs()`: the names of the runs; `names()`: the curves that they have; `seriesOf(curve, group)`:
 *   {label, colour, dash, points} of a curve of /api/curves; `query`: of the page, which keeps the view; `signal`;
 *   `groupsOf(runs)`: the group of each run, whose curves are drawn in place of the runs' own, or null;
 *   `refined()`, called when the server has read a long file, of which the curves were those of a sample.
 * @returns {Object} `node`; `update()` when runs or names may have changed; `refresh()` when there are more points; `drawn`, a
 *   promise of the first charts.
 */
export function charts({runs, names, seriesOf, query, signal, controls = [], groupsOf = () => null, refined = () => {}}) {
  const state = {
    x: isAxis(query.get('x')) ? query.get('x') : 'step',
    logX: query.get('logx') === '1', logY: query.get('logy') === '1', outliers: query.get('outliers') !== '0',
    smoothing: Math.max(0, Math.min(0.999, Number(query.get('smoothing')) || 0)),
    first: numberOf(query.get('first')), last: numberOf(query.get('last')), filter: query.get('chart') ?? '',
    wide: new Set(query.getAll('wide')),
  };
  const problem = element('div', {}), joined = element('p', {class: 'hint', role: 'status', hidden: true}), main = element('div', {class: 'plots'}), progress = element('div', {class: 'plots'});
  const more = element('details', {class: 'plots-more', open: query.get('progress') === '1', ontoggle: () => {
    setQuery({progress: more.open});
    ask();
  }}, element('summary', {}, 'Speed, progress and machine'), progress);
  const reset = element('button', {class: 'small', type: 'button', onclick: () => zoom(null, null)}, 'Reset zoom');
  const coarse = element('span', {class: 'soft coarse', role: 'status', hidden: true}, 'Sample; reading the whole file…');
  const axis = element('select', {'aria-label': 'Axis', onchange: () => {
    change({x: axis.value, first: null, last: null});
  }});
  const toolbar = bar();
  const node = element('div', {class: 'charts'}, toolbar, problem, joined, main, more);
  const shown = new Map(); // Title -> {chart, group, isDirty, isVisible}
  let asking = null, asked = 0, took = 0, timer = null, coarseTimer = null, tellDrawn = null;
  const drawn = new Promise((resolve) => tellDrawn = resolve);

  const sight = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const found = [...shown.values()].find(({chart}) => chart.node === entry.target);
      if (found) found.isVisible = entry.isIntersecting;
    }
    ask();
  }, {root: document.getElementById('view'), rootMargin: '250px'});

  function bar() {
    const value = element('output', {class: 'smoothing-value'}, state.smoothing.toFixed(2));
    const slider = element('input', {type: 'range', min: 0, max: 0.99, step: 0.01, value: state.smoothing, 'aria-label': 'Smoothing',
      oninput: () => {
        value.textContent = Number(slider.value).toFixed(2);
        change({smoothing: Number(slider.value)}, false);
      }});
    const filter = element('input', {type: 'search', placeholder: 'Charts', 'aria-label': 'Charts whose name has', value: state.filter,
      class: 'chart-filter', oninput: () => {
        state.filter = filter.value;
        setQuery({chart: filter.value});
        update();
      }});
    return element('div', {class: 'toolbar charts-bar'}, axis,
      element('label', {class: 'inline'}, 'Smoothing', slider, value),
      check('Log y', 'logY', false), check('Log x', 'logX', true), check('Outliers', 'outliers', false), filter, controls,
      element('span', {class: 'grow'}), coarse, reset);
  }

  function check(text, name, asks) {
    const box = element('input', {type: 'checkbox', checked: state[name], onchange: () =>
      change({[name]: box.checked, ...(asks ? {first: null, last: null} : {})}, asks)});
    return element('label', {class: 'inline'}, box, text);
  }

  function change(values, asks = true) {
    Object.assign(state, values);
    setQuery({x: state.x === 'step' ? null : state.x, logx: state.logX, logy: state.logY, outliers: state.outliers ? null : '0',
      smoothing: state.smoothing || null, first: state.first, last: state.last});
    markZoom();
    if (asks) refresh();
    else redraw();
  }

  function zoom(first, last) {
    if (first !== null && !(last > first)) return;
    change({first, last});
  }

  function markZoom() {
    reset.classList.toggle('unseen', state.first === null && state.last === null);
  }

  /** The choice of an axis: those of every run, and each metric. */
  function tellAxes() {
    const found = [...new Set([...names(), ...(state.x.includes('/') ? [state.x] : [])])], key = found.join('\n');
    if (axis.dataset.key === key) return;
    axis.dataset.key = key;
    const option = (value, text) => element('option', {value, selected: value === state.x}, text);
    replace(axis, AXES.map(([value, text]) => option(value, text)),
      found.length > 0 && element('optgroup', {label: 'A metric'}, found.map((name) => option(name, axisTitle(name)))));
  }

  /** Makes the charts for the present metrics of the runs. */
  function update() {
    tellAxes();
    const text = state.filter.toLowerCase();
    const wanted = groups(names()).filter(({title}) => title.toLowerCase().includes(text));
    const titles = new Set(wanted.map(({title}) => title));
    for (const [title, {chart}] of shown) {
      if (!titles.has(title)) {
        sight.unobserve(chart.node);
        chart.destroy();
        chart.node.remove();
        shown.delete(title);
      }
    }
    for (const group of wanted) {
      const known = shown.get(group.title);
      if (known) {
        known.isDirty ||= known.group.names.join('\n') !== group.names.join('\n');
        known.group = group;
      } else {
        shown.set(group.title, make(group));
      }
    }
    for (const [place, isProgress] of [[main, false], [progress, true]]) {
      const nodes = wanted.filter((group) => group.isProgress === isProgress).map(({title}) => shown.get(title).chart.node);
      if (nodes.length !== place.children.length || nodes.some((each, index) => each !== place.children[index])) replace(place, nodes);
    }
    more.hidden = !progress.children.length;
    ask();
  }

  function make(group) {
    const {title} = group;
    const grow = element('button', {class: 'small icon', type: 'button', title: 'Larger', 'aria-label': `${title} larger`,
      'aria-pressed': String(state.wide.has(title)), onclick: () => {
        if (!state.wide.delete(title)) state.wide.add(title);
        made.node.classList.toggle('wide', state.wide.has(title));
        grow.setAttribute('aria-pressed', String(state.wide.has(title)));
        setQuery({wide: [...state.wide]});
      }}, '⤢');
    const made = plot({title, sync: 'charts', zoom, actions: [grow]});
    made.node.classList.toggle('wide', state.wide.has(title));
    sight.observe(made.node);
    return {chart: made, group, isDirty: true, isVisible: false, answer: null};
  }

  /** There may be more points: asks again, as soon as the last answer allows. */
  function refresh() {
    for (const each of shown.values()) each.isDirty = true;
    ask();
  }

  /** Requests the visible charts that are outdated. */
  function ask() {
    clearTimeout(timer);
    const rest = Math.max(0, asked + Math.max(REST_MS, 4 * took) - performance.now());
    const isFirst = [...shown.values()].some((each) => each.isDirty && each.isVisible && !each.answer);
    timer = setTimeout(load, isFirst || zoomed() ? 0 : rest);
  }

  let lastView = '';
  function zoomed() {
    const view = JSON.stringify([state.x, state.logX, state.first, state.last]);
    return view !== lastView;
  }

  async function load() {
    const inSight = [...shown.values()].filter((each) => each.isDirty && each.isVisible && each.chart.node.isConnected);
    if (signal.aborted || !inSight.length || !runs().length) return;
    // As many as the server takes at once; the others follow.
    let room = MAX_CURVES / runs().length;
    const wanted = inSight.filter(({group}, index) => (room -= group.names.length) >= 0 || !index);
    if (asking && !zoomed()) {
      asking.again = true;
      return;
    }
    asking?.controller.abort();
    const own = asking = {controller: new AbortController(), again: wanted.length < inSight.length};
    lastView = JSON.stringify([state.x, state.logX, state.first, state.last]);
    const width = Math.max(...wanted.map(({chart}) => chart.node.clientWidth), 300);
    const buckets = Math.max(100, Math.min(1000, Math.round(width / 1.5)));
    for (const each of wanted) each.isDirty = false;
    asked = performance.now();
    try {
      const answer = await get('/api/curves', {run: runs(), group: groupsOf(runs()), name: wanted.flatMap(({group}) => group.names), x: state.x,
        log: state.logX, first: state.first, last: state.last, buckets}, {signal: own.controller.signal});
      if (signal.aborted || own !== asking) return;
      took = performance.now() - asked;
      const title = axisTitle(state.x), reason = title ? `does not log ${title}` : 'does not record its batch size';
      replace(problem, errorList(answer.lacking.map((run) => `${run}: ${reason}, and has no place on this axis`)));
      tellJoined(title, answer.unordered);
      for (const each of wanted) {
        const own_ = new Set(each.group.names);
        each.answer = {...answer, buckets, x: state.x, logX: state.logX, curves: answer.curves.filter(({name}) => own_.has(name))};
        draw(each);
      }
      tellDrawn();
      tellCoarse(answer.is_coarse, wanted);
    } catch (error) {
      if (error.name === 'AbortError' || signal.aborted) return;
      if (error.status) replace(problem, errorList(error.lines ?? [String(error)]));
    } finally {
      if (own === asking) {
        asking = null;
        if (own.again) ask();
      }
    }
  }

  function tellJoined(title, unordered) {
    joined.hidden = !title;
    setText(joined, `Points are joined by step: each is at the value of ${title} at its step.${unordered.length ?
      ` ${title} falls between steps${runs().length > 1 ? ` of ${unordered.join(', ')}` : ''}: points without lines.` : ''}`);
  }

  /** While curves are those of a sample, asks for them again. */
  function tellCoarse(isCoarse, wanted) {
    if (!isCoarse && !coarse.hidden) refined();
    coarse.hidden = !isCoarse;
    if (!isCoarse) return;
    clearTimeout(coarseTimer);
    coarseTimer = setTimeout(() => {
      for (const each of wanted) each.isDirty = true;
      ask();
    }, COARSE_MS);
  }

  function draw(each) {
    if (!each.answer) return;
    const {first, last, buckets, x, logX, curves, unordered} = each.answer;
    each.chart.set({first, last, buckets, x, xTitle: axisTitle(x), logX, logY: state.logY, smoothing: state.smoothing, outliers: state.outliers,
      series: curves.map((curve) => ({...seriesOf(curve, each.group), curve, dots: unordered.includes(curve.run)}))});
  }

  function redraw() {
    for (const each of shown.values()) draw(each);
  }

  signal.addEventListener('abort', () => {
    clearTimeout(timer);
    clearTimeout(coarseTimer);
    asking?.controller.abort();
    sight.disconnect();
    for (const {chart} of shown.values()) chart.destroy();
  });
  markZoom();
  update();
  return {node, update, refresh, redraw, drawn};
}

function isAxis(name) {
  return AXES.some(([x]) => x === name) || /^(?:[a-z_]+:)?(train|eval|system)\/./s.test(name ?? '');
}

function numberOf(text) {
  const value = Number(text);
  return text === null || text === '' || !Number.isFinite(value) ? null : value;
}
