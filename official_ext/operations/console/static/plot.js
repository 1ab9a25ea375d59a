// One chart: uPlot, with the console's colours, marks of values that are not finite, zoom, a tooltip and the keyboard.
import uPlot from './vendor/uPlot.esm.js';
import {csvOf, download, svgOf} from './chart_export.js';
import {element, replace, setText} from './dom.js';
import {duration, integer, metric, time} from './format.js';

/** The style sheets that a page with charts must have. */
export const STYLES = ['/static/vendor/uPlot.min.css', '/static/curves.css'];
const HEIGHT = 220;
const MAX_LEGEND = 4; // Of more curves the legend has a line for each run.
const MAX_OWNERS = 12;
const MAX_LINES = 6; // Of more curves the marks have no separate lines.
const MAX_TIP = 12;
const DOT = {size: 5, width: 1};
const NEAR = 40; // Pixels between the cursor and the point that it shows, at most.
const MARKS = {NaN: '×', Infinity: '▲', '-Infinity': '▼'};

/** The colours and the font of a picture that is saved: those of the page. */
export function pictureStyle() {
  return {font: sansFont(), colourOf: colour, background: colour('--surface'), text: colour('--text-soft'), line: colour('--line')};
}

/** The colour of a custom property, as a canvas needs it. */
function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim() || '#888';
}

/**
 * TensorBoard's smoothing: an exponential moving average without the bias of its beginning.
 *
 * @param {(number|null)[]} values - null and undefined are passed over.
 * @param {number} weight - 0 to 1, of the earlier values.
 */
export function smooth(values, weight) {
  let last = 0, count = 0;
  return values.map((value) => {
    if (!Number.isFinite(value)) return value;
    count += 1;
    last = last * weight + (1 - weight) * value;
    return last / (1 - weight ** count);
  });
}

/**
 * A chart.
 *
 * @param {Object} options - `title`; `sync`: charts of one key have one cursor; `zoom(first, last)` is called when a part
 *   is chosen, with (null, null) for all; `actions`: nodes beside the title.
 * @returns {Object} `node`; `set(model)`; `destroy()`. A model has `first`, `last`, `buckets`, `x` (an axis of the
 *   server), `xTitle` (of a metric that is the axis, or ''), `logX`, `logY`, `smoothing`, `outliers` (whether they count for
 *   the height), and `series`: `label`, `colour` (a custom property), `dash`, `points`, `dots` (points without a line) and
 *   `curve`, as /api/curves gives it. Of many curves the legend has one line for each `owner`, such as a run, and one for each
 *   `kind`, such as training.
 */
export function plot({title, sync, zoom, actions = []}) {
  const legend = element('div', {class: 'plot-legend'}), note = element('div', {class: 'plot-note faint', hidden: true}), tip = element('div', {class: 'plot-tip', hidden: true});
  const canvas = element('div', {class: 'plot-canvas', tabindex: 0, role: 'group', 'aria-label': title,
    'aria-description': 'Arrow keys move the cursor, + and - zoom, 0 shows all.', onkeydown: keydown}, tip);
  const saver = (text, hint, type, make) => element('button', {class: 'small icon plot-save', type: 'button', title: hint, 'aria-label': `${title} as ${text}`,
    onclick: () => u && download(`${title}.${text.toLowerCase()}`, make(), type)}, text);
  const savers = [saver('CSV', 'Save the points that are drawn', 'text/csv', () => csvOf(model)),
    saver('SVG', 'Save the picture', 'image/svg+xml', () => svgOf(u, model, {title, ...pictureStyle()}))];
  const node = element('section', {class: 'plot card', 'aria-label': title},
    element('header', {}, element('h3', {class: 'cut', title}, title), savers, actions), legend, note, canvas);
  let u = null, model = null, shape = '', hovered = false, expanded = [];

  function set(next) {
    model = next;
    expanded = model.series.map((one) => expand(one.curve, model));
    const data = aligned(expanded, model);
    const now = JSON.stringify([model.x, model.logX, model.logY, Boolean(model.smoothing),
      model.series.map(({label, colour: name, dash, points, dots, curve}) => [label, name, dash, points, dots, isBand(curve)])]);
    if (u && now === shape) u.setData(data);
    else build(data, now);
    canvas.classList.toggle('empty', !model.series.some(({curve}) => curve.num_points));
    tellLegend(null);
    tellNote();
    node.dataset.ready = '1';
  }

  function build(data, now) {
    u?.destroy();
    shape = now;
    const width = Math.max(80, canvas.clientWidth);
    u = new uPlot(options(width, canvas.clientHeight || HEIGHT), data, canvas);
    canvas.append(tip);
    node.plot = u;
    u.over.addEventListener('mouseenter', () => hovered = true);
    u.over.addEventListener('mouseleave', () => {
      hovered = false;
      tip.hidden = true;
    });
  }

  /** The points that have no place on the axis. */
  function tellNote() {
    const count = model.xTitle ? model.series.reduce((sum, {curve}) => sum + curve.num_unplaced, 0) : 0;
    note.hidden = !count;
    setText(note, `${integer(count)} ${count === 1 ? 'point is' : 'points are'} left out: no ${model.xTitle} at ${count === 1 ? 'its step' : 'their steps'}`);
  }

  function options(width, height) {
    const line = () => colour('--line'), text = () => colour('--text-soft');
    const axis = {stroke: text, grid: {stroke: line, width: 1}, ticks: {stroke: line, width: 1, size: 4}, font: `11px ${sansFont()}`};
    return {
      width, height, legend: {show: false}, padding: [10, 12, 0, 0],
      cursor: {sync: {key: sync, scales: ['x', null]}, drag: {x: true, y: false, setScale: false}, points: {size: 6},
        bind: {dblclick: () => () => zoom(null, null)}},
      scales: {x: {time: model.x === 'wall', distr: model.logX ? 3 : 1, range: () => [model.first, model.last]},
        y: {distr: model.logY ? 3 : 1, range: (_, low, high) => range(low, high)}},
      axes: [{...axis, size: 30, space: 70, ...xFormat(model.x), ...(model.logX ? LOG_TICKS : {}), ...axisLabel(model.xTitle)}, {...axis, size: 62, space: 32, values: (_, splits) => splits.map(tick), ...(model.logY ? LOG_TICKS : {})}],
      series: [{}, ...model.series.flatMap(lines)], bands: bands(),
      hooks: {draw: [drawMarks], setCursor: [moved], setSelect: [selected]},
    };
  }

  function lines(one) {
    const full = {label: one.label, width: 1.5, dash: one.dash, points: {show: one.points, ...DOT, fill: () => colour(one.colour)}, spanGaps: false,
      stroke: () => colour(one.colour)};
    const raw = one.dots && !isBand(one.curve) ? {dots: true, paths: () => null, points: {...full.points, show: true}} : {};
    const ends = isBand(one.curve) ? Array(2).fill({label: one.label, width: 0, points: {show: false}}) : [];
    if (!model.smoothing) return [{...full, ...raw}, ...ends];
    return [{...full, width: 1, alpha: 0.3, points: {show: false}, ...raw}, {...full, points: {show: false}}, ...ends];
  }

  /** Between the two ends of each group, which are the last of its lines, the colour is pale. */
  function bands() {
    let count = 0;
    return model.series.flatMap((one) => {
      count += lines(one).length;
      return isBand(one.curve) ? [{series: [count, count - 1], fill: () => `${colour(one.colour)}38`}] : [];
    });
  }

  function range(low, high) {
    if (model.outliers === false) [low, high] = withoutOutliers(expanded, model, [low, high]);
    if (low === null || high === null || !Number.isFinite(low)) return model.logY ? [1, 10] : [0, 1];
    if (model.logY) {
      const first = Math.log10(low), last = Math.log10(high), pad = last - first > 1e-9 ? 0.05 * (last - first) : 0.5;
      return [10 ** (first - pad), 10 ** (last + pad)];
    }
    const pad = high - low > 1e-12 * Math.abs(high) ? 0.06 * (high - low) : Math.abs(high) * 0.1 || 1; // Not for a rounding error.
    return [low - pad, high + pad];
  }

  // Values that are not finite have marks at the lower and the upper edge.
  function drawMarks() {
    const {ctx, bbox} = u, ratio = uPlot.pxRatio;
    ctx.save();
    ctx.font = `${11 * ratio}px ${sansFont()}`;
    ctx.textAlign = 'center';
    for (const one of model.series) {
      ctx.fillStyle = ctx.strokeStyle = colour(one.colour);
      for (const [name, places] of Object.entries(one.curve.marks)) {
        for (const place of places) {
          const x = u.valToPos(place, 'x', true);
          if (!(x >= bbox.left - 1 && x <= bbox.left + bbox.width + 1)) continue;
          const top = name === 'Infinity';
          if (model.series.length <= MAX_LINES) {
            ctx.globalAlpha = 0.35;
            ctx.setLineDash([2 * ratio, 3 * ratio]);
            ctx.lineWidth = ratio;
            ctx.beginPath();
            ctx.moveTo(x, bbox.top);
            ctx.lineTo(x, bbox.top + bbox.height);
            ctx.stroke();
          }
          ctx.globalAlpha = 1;
          ctx.fillText(MARKS[name], x, top ? bbox.top + 9 * ratio : bbox.top + bbox.height - 2 * ratio);
        }
      }
    }
    ctx.restore();
  }

  // The cursor.

  function moved() {
    const {left, top} = u.cursor;
    if (left === null || left < 0) {
      tellLegend(null);
      tip.hidden = true;
      return;
    }
    const found = model.series.map((one, index) => ({one, index, ...nearest(one.curve, left)}));
    tellLegend(found);
    if (hovered) tellTip(found, left, top);
  }

  /** The point of a curve that is nearest to a place on the screen: {x, text, y}; {} if there is none near. */
  function nearest(curve, left) {
    const xs = curve.x, value = u.posToVal(left, 'x');
    let low = 0, high = xs.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (xs[middle] < value) low = middle + 1;
      else high = middle;
    }
    const index = low > 0 && (low === xs.length || value - xs[low - 1] < xs[low] - value) ? low - 1 : low;
    if (index >= xs.length || Math.abs(u.valToPos(xs[index], 'x') - left) > NEAR) return {};
    if (curve.y) {
      const y = curve.y[index], spread = isBand(curve) && curve.high[index] !== null ? ` ± ${metric(curve.high[index] - y)}` : '';
      return {x: xs[index], y, text: y === null ? markAt(curve, xs[index]) : metric(y) + spread};
    }
    const from = metric(curve.low[index]), to = metric(curve.high[index]);
    return {x: xs[index], y: curve.mean[index], text: from === to ? from : `${from} … ${to}`};
  }

  function tellTip(found, left, top) {
    const near = found.filter((each) => each.text !== undefined);
    if (!near.length) {
      tip.hidden = true;
      return;
    }
    const distance = ({y}) => y === null || !Number.isFinite(y) ? 1e9 : Math.abs(u.valToPos(y, 'y') - top);
    const shown = near.length > MAX_TIP ? near.toSorted((a, b) => distance(a) - distance(b)).slice(0, MAX_TIP) : near;
    const rest = near.length - shown.length;
    replace(tip, element('div', {class: 'plot-tip-x'}, xText(shown[0].x, model)),
      shown.map(({one, text}) => element('div', {class: 'plot-tip-row'}, swatch(one), element('span', {class: 'cut'}, one.label),
        element('b', {}, text))), rest > 0 && element('div', {class: 'faint'}, `and ${rest} more`));
    tip.hidden = false;
    const x = left + u.over.offsetLeft, flip = x > canvas.clientWidth / 2;
    tip.style.left = `${Math.max(0, flip ? x - tip.offsetWidth - 14 : x + 14)}px`;
    tip.style.top = `${Math.max(0, Math.min(top, canvas.clientHeight - tip.offsetHeight))}px`;
  }

  function tellLegend(found) {
    const {entries, kinds, rest} = legendOf(model.series);
    const key = JSON.stringify([entries.map(({label, sign}) => [label, sign.colour, sign.dash, sign.points]), kinds.map(({kind}) => kind), rest]);
    if (legend.dataset.key !== key) {
      legend.dataset.key = key;
      replace(legend, entries.map(({label, sign}) => element('span', {class: 'plot-entry'}, swatch(sign), element('span', {class: 'cut', title: label}, label),
        element('b', {}), element('span', {class: 'bad'}))), rest > 0 && element('span', {class: 'faint'}, `and ${rest} more`),
      kinds.length > 0 && element('span', {class: 'plot-kinds'}, kinds.map(({kind, dash, points}) =>
        element('span', {class: 'plot-entry'}, swatch({colour: '--text-soft', dash, points}), element('span', {}, kind)))));
    }
    entries.forEach(({members}, index) => {
      const entry = legend.children[index], texts = members.map((each) => found ? found[each].text ?? '–' : lastOf(model.series[each].curve));
      setText(entry.querySelector('b'), texts.join(' / '));
      setText(entry.lastChild, marksText(members.map((each) => model.series[each])));
    });
  }

  // Zoom.

  function selected() {
    const {left, width} = u.select;
    if (width < 4) return;
    const first = u.posToVal(left, 'x'), last = u.posToVal(left + width, 'x');
    u.setSelect({left: 0, top: 0, width: 0, height: 0}, false);
    zoom(first, last);
  }

  function keydown(event) {
    if (!u || event.ctrlKey || event.metaKey || event.altKey) return;
    const width = u.over.clientWidth, step = width / (event.shiftKey ? 10 : 60);
    const left = u.cursor.left >= 0 ? u.cursor.left : width / 2;
    const act = {ArrowLeft: () => move(left - step), ArrowRight: () => move(left + step), '+': () => around(left, 0.5),
      '=': () => around(left, 0.5), '-': () => around(left, 2), 0: () => zoom(null, null)}[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }

  function move(left) {
    hovered = true;
    u.setCursor({left: Math.max(0, Math.min(u.over.clientWidth, left)), top: u.over.clientHeight / 2});
  }

  function around(left, factor) {
    const width = u.over.clientWidth, place = Math.max(0, Math.min(1, left / width));
    zoom(u.posToVal(left - place * width * factor, 'x'), u.posToVal(left + (1 - place) * width * factor, 'x'));
  }

  const sizes = new ResizeObserver(() => {
    if (u && (canvas.clientWidth !== u.width || canvas.clientHeight !== u.height) && canvas.clientWidth) {
      u.setSize({width: canvas.clientWidth, height: canvas.clientHeight});
    }
  });
  sizes.observe(canvas);
  canvas.addEventListener('blur', () => {
    hovered = false;
    tip.hidden = true;
  });
  const repaint = () => u?.redraw(false, true);
  window.addEventListener('console-theme', repaint);
  const scheme = matchMedia('(prefers-color-scheme: dark)');
  scheme.addEventListener('change', repaint);
  return {node, set, get isReady() {
    return Boolean(u);
  }, destroy() {
    sizes.disconnect();
    window.removeEventListener('console-theme', repaint);
    scheme.removeEventListener('change', repaint);
    u?.destroy();
  }};
}

/**
 * The lines of a legend: `entries`, each with a `label`, the `sign` of its swatch and the places of its `members`; `kinds`, a curve
 * of each kind if the entries have several; `rest`, the number of entries that are left out.
 */
function legendOf(series) {
  const places = Map.groupBy(series.keys(), (index) => series[index].owner ?? series[index].label);
  if (series.length <= MAX_LEGEND || places.size === series.length) {
    const entries = [...series.keys()].map((index) => ({label: series[index].label, sign: series[index], members: [index]}));
    return {entries: entries.slice(0, MAX_OWNERS), kinds: [], rest: Math.max(0, entries.length - MAX_OWNERS)};
  }
  const entries = [...places].slice(0, MAX_OWNERS).map(([label, members]) => ({label, sign: {colour: series[members[0]].colour}, members}));
  const kinds = [...Map.groupBy(series.filter(({kind}) => kind), ({kind}) => kind).values()].map(([first]) => first);
  return {entries, kinds: kinds.length > 1 ? kinds : [], rest: Math.max(0, places.size - MAX_OWNERS)};
}

/** The sign of a curve in a legend. */
export function swatch({colour: name, dash, points}) {
  return element('svg:svg', {class: 'swatch', width: 22, height: 8, viewBox: '0 0 22 8', 'aria-hidden': 'true'},
    element('svg:line', {x1: 0, x2: 22, y1: 4, y2: 4, 'stroke-width': 2.5, 'stroke-dasharray': dash?.join(' '),
      style: {stroke: `var(${name})`}}),
    points && element('svg:circle', {cx: 11, cy: 4, r: 3, style: {fill: `var(${name})`}}));
}

function lastOf(curve) {
  const values = curve.y ?? curve.mean;
  for (let index = values.length - 1; index >= 0; index -= 1) if (values[index] !== null) return metric(values[index]);
  return '';
}

function marksText(series) {
  const counts = {};
  for (const {curve} of series) {
    for (const [name, count] of Object.entries(curve.num_marks)) counts[name] = (counts[name] ?? 0) + count;
  }
  return Object.entries(counts).map(([name, count]) => `${integer(count)} ${name}`).join(', ');
}

function markAt(curve, x) {
  return Object.keys(curve.marks).find((name) => curve.marks[name].includes(x)) ?? Object.keys(curve.marks)[0] ?? '';
}

function sansFont() {
  return colour('--sans');
}

/** Whether a curve is the mean of a group: `low` and `high` are a deviation from it. */
function isBand(curve) {
  return Boolean(curve.y && curve.low);
}

/** A curve as places and values, of which those of buckets are two a bucket: the least and the greatest, as they came. */
function expand(curve, {x: axis, first, last, buckets, logX, logY, smoothing}) {
  const positive = (value) => logY && value !== null && value !== undefined && value <= 0 ? null : value;
  if (curve.y) {
    const ys = logY ? curve.y.map(positive) : curve.y;
    const end = (values) => smoothing ? smooth(values.map(positive), smoothing) : values.map(positive);
    return {xs: axis.includes('/') ? apart(curve.x, last - first) : curve.x, ys, means: smoothing ? smooth(ys, smoothing) : null, ends: isBand(curve) ? [end(curve.low), end(curve.high)] : []};
  }
  const to = logX ? Math.log10 : (x) => x, from = logX ? (x) => 10 ** x : (x) => x;
  const start = to(first > 0 || !logX ? first : curve.x[0]), width = (to(last) - start || 1) / buckets;
  const xs = [], ys = [], means = [], smoothed = smoothing ? smooth(curve.mean.map(positive), smoothing) : null;
  const taken = new Set();
  curve.x.forEach((x, index) => {
    let bucket = Math.max(-1, Math.min(buckets, Math.floor((to(x) - start) / width)));
    if (bucket === buckets && x <= last) bucket -= 1;
    taken.add(bucket);
    const rises = curve.rises[index] === '1';
    const pair = rises ? [curve.low[index], curve.high[index]] : [curve.high[index], curve.low[index]];
    xs.push(from(start + (bucket + 0.25) * width), from(start + (bucket + 0.75) * width));
    ys.push(positive(pair[0]), positive(pair[1]));
    means.push(smoothed?.[index], undefined);
  });
  // If no value is finite, the line has a gap.
  const gaps = Object.values(curve.marks).flat().map((x) => Math.floor((to(x) - start) / width)).filter((each) => !taken.has(each));
  if (!gaps.length) return {xs, ys, means: smoothed && means};
  const rows = [...xs.map((x, index) => [x, ys[index], means[index]]),
    ...[...new Set(gaps)].map((bucket) => [from(start + (bucket + 0.5) * width), null, null])].sort((a, b) => a[0] - b[0]);
  return {xs: rows.map((row) => row[0]), ys: rows.map((row) => row[1]), means: smoothed && rows.map((row) => row[2])};
}

/** Places of which no two are the same: of several steps with one value of a metric, such as the epoch, none is lost. */
function apart(places, width) {
  let before = -Infinity;
  return places.map((x) => before = x > before ? x : before + 1e-12 * Math.max(width, Math.abs(before)));
}

/** The data for uPlot: all places in order, and of each curve its values there; undefined where it has none. */
function aligned(expanded, {smoothing}) {
  const total = expanded.reduce((sum, {xs}) => sum + xs.length, 0), all = new Float64Array(total);
  let offset = 0;
  for (const {xs} of expanded) {
    all.set(xs, offset);
    offset += xs.length;
  }
  all.sort();
  const places = Array.from(all.filter((x, index) => index === 0 || x !== all[index - 1]));
  const columns = expanded.flatMap(({xs, ys, means, ends = []}) => [ys, ...(smoothing ? [means] : []), ...ends].map((values) => {
    const column = new Array(places.length);
    let place = 0;
    for (let index = 0; index < xs.length; index += 1) {
      while (places[place] < xs[index]) place += 1;
      column[place] = values[index];
    }
    return column;
  }));
  return [places, ...columns];
}

/** The range without the five percent at either end, as in TensorBoard. */
function withoutOutliers(expanded, {first, last}, otherwise) {
  const values = expanded.flatMap(({xs, ys}) => ys.filter((y, index) => Number.isFinite(y) && xs[index] >= first && xs[index] <= last));
  if (values.length < 20) return otherwise;
  values.sort((a, b) => a - b);
  return [values[Math.floor(values.length * 0.05)], values[Math.ceil(values.length * 0.95) - 1]];
}

// uPlot's own begin at the lower end, even if that is not round. Of several decades only the powers of ten have a number.
const LOG_TICKS = {
  splits: (_, axis, low, high) => {
    if (high / low < 30) return even(low, high);
    const found = [], first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
    const digits = last - first > 8 ? [1] : [1, 2, 3, 4, 5, 6, 7, 8, 9];
    for (let power = first; power <= last; power += 1) {
      for (const digit of digits) found.push(Number(`${digit}e${power}`));
    }
    return found.filter((value) => value >= low && value <= high);
  },
  filter: (u, splits) => {
    const ratio = splits.at(-1) / splits[0];
    if (ratio < 30 || splits.length < 2) return splits;
    const digits = ratio < 300 ? ['1', '2', '5'] : ['1'];
    return splits.map((value) => digits.includes(value.toExponential()[0]) ? value : null);
  },
};

/** The numbers beside a logarithmic axis from `low` to `high`: [{value, text}]. */
export function logTicks(low, high) {
  return LOG_TICKS.filter(null, LOG_TICKS.splits(null, 1, low, high)).filter((value) => value !== null).map((value) => ({value, text: tick(value)}));
}

/** Round numbers between two, about five. */
function even(low, high) {
  const rough = (high - low) / 4, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((digit) => digit * power >= rough) * power, found = [];
  // Of ends that a rounding error parts, the step is lost in the sum, and the end never reached.
  for (let place = Math.ceil(low / step); place * step <= high * (1 + 1e-9) && found.length < 20; place += 1) found.push(place * step);
  return found;
}

function tick(value) {
  if (value === null) return '';
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2).replace(/\.?0+e/, 'e').replace('e+', 'e');
  return String(Number(value.toPrecision(6)));
}

const SECONDS = [1e-3, 1e-2, 0.1, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400,
  172800, 432000, 864000, 2592000];
const WHOLE = Array.from({length: 16}, (_, power) => [1, 2, 5].map((digit) => digit * 10 ** power)).flat();

function xFormat(x) {
  if (x === 'wall') return {};
  if (x === 'time' || x === 'active') return {incrs: SECONDS, values: (_, splits) => splits.map((each) => each === null ? '' : duration(each))};
  if (x.includes('/')) return {values: (_, splits) => splits.map((value) => Math.abs(value) >= 1e4 ? large(value) : tick(value))};
  return {incrs: WHOLE, values: (_, splits) => splits.map(large)};
}

/** A large number as on an axis: 1.5k, 20M. */
function large(value) {
  if (value === null) return '';
  const place = Math.min(4, Math.floor(Math.log10(Math.max(1, Math.abs(value))) / 3));
  return place ? `${Number((value / 1000 ** place).toPrecision(4))}${['', 'k', 'M', 'G', 'T'][place]}` : String(Number(value.toPrecision(6)));
}

/** The name below an axis, if it is that of a metric. */
function axisLabel(title) {
  return title ? {label: title, labelSize: 18, labelGap: 0, labelFont: `11px ${sansFont()}`} : {};
}

function xText(value, {x, xTitle}) {
  if (xTitle) return `${xTitle} ${metric(value)}`;
  if (x === 'wall') return time(value);
  if (x === 'time' || x === 'active') return duration(value);
  return `${x === 'examples' ? 'example' : 'step'} ${integer(Math.round(value))}`;
}
