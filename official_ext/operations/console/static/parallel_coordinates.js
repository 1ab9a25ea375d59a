// Parallel coordinates: a line for each point of a sweep, an axis for each parameter and for the metric. Dragging along
// an axis chooses a range; with the keyboard the arrows move it, with Shift they widen it, and Delete takes it away.
import {element, replace} from './dom.js';
import {FAILED, ramp} from './axes.js';

const HEIGHT = 300, TOP = 34, BOTTOM = 14, SIDE = 64, LEAST = 96, STEP = 0.05, LETTERS = 18;

/**
 * Makes the picture.
 *
 * @param {Object} options
 * @param {function(Object)} options.onBrush - the ranges have changed: name of an axis -> [low, high], from 0 to 1.
 * @param {function(Object)} options.onOpen - a click on a line.
 * @param {function(Object|null)} options.onHover - the pointer is over a line, or over none.
 * @returns {Object} `node`; `draw(points, axes, share)`: points have `values` by the name of the axis, and `share(point)`
 *   is its colour, 0 to 1 or null; `setBrushes(ranges)`; `chosen(point)`: whether all ranges hold it; `mark(point)`.
 */
export function parallelCoordinates({onBrush, onOpen, onHover}) {
  let points = [], axes = [], share = () => null, brushes = {}, marked = null;
  const lines = new Map();
  const node = element('div', {class: 'parallel scroll'});

  function chosen(point) {
    return axes.every((axis) => {
      const range = brushes[axis.name];
      if (!range) return true;
      const place = axis.place(point.values[axis.name]);
      return place !== null && place >= range[0] - 1e-9 && place <= range[1] + 1e-9;
    });
  }

  const y = (place) => TOP + (1 - place) * (HEIGHT - TOP - BOTTOM);

  function draw(wanted, wantedAxes, wantedShare) {
    points = wanted;
    axes = wantedAxes;
    share = wantedShare;
    render();
  }

  function render() {
    const focus = node.contains(document.activeElement) ? document.activeElement.dataset.axis : null;
    const width = Math.max(node.clientWidth || 800, 2 * SIDE + LEAST * (axes.length - 1));
    const x = (index) => axes.length === 1 ? width / 2 : SIDE + index * (width - 2 * SIDE) / (axes.length - 1);
    const letters = axes.length === 1 ? LETTERS : Math.min(LETTERS, Math.floor((x(1) - x(0)) / 8));  // Of a name, beside its neighbours.
    lines.clear();
    // The best are drawn last, above the others.
    const sorted = [...points].sort((one, other) => (share(one) ?? -1) - (share(other) ?? -1));
    const drawn = sorted.map((point) => {
      const places = axes.map((axis, index) => [x(index), axis.place(point.values[axis.name])]).filter(([, place]) => place !== null);
      const path = element('svg:path', {class: ['line', FAILED.has(point.status) && 'failed', !chosen(point) && 'out', point === marked && 'marked'],
        d: places.map(([left, place], index) => `${index ? 'L' : 'M'}${left.toFixed(1)},${y(place).toFixed(1)}`).join(''),
        style: {stroke: ramp(share(point))}, onpointerenter: () => onHover(point), onpointerleave: () => onHover(null),
        onclick: () => onOpen(point)}, element('svg:title', {}, point.title));
      lines.set(point.key, path);
      return path;
    });
    const svg = element('svg:svg', {width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: 'group',
      'aria-label': `Parallel coordinates of ${points.length} points`}, element('svg:g', {}, drawn),
    axes.map((axis, index) => drawAxis(axis, x(index), index === axes.length - 1, letters)));
    replace(node, svg);
    if (focus) node.querySelector(`[data-axis="${CSS.escape(focus)}"]`)?.focus();
  }

  function drawAxis(axis, left, isLast, letters) {
    const side = isLast ? 1 : -1, range = brushes[axis.name];
    const short = (text, length) => text.length > length ? `${text.slice(0, length - 1)}…` : text;
    const brush = range && element('svg:rect', {class: 'brush', x: left - 7, width: 14, y: y(range[1]), height: Math.max(2, y(range[0]) - y(range[1]))});
    const area = element('svg:rect', {class: 'area', x: left - 14, width: 28, y: TOP - 6, height: HEIGHT - TOP - BOTTOM + 12, tabindex: 0,
      role: 'slider', 'aria-orientation': 'vertical', 'aria-label': `Range of ${axis.name}`, 'aria-valuemin': 0, 'aria-valuemax': 100,
      'aria-valuenow': range ? Math.round(range[1] * 100) : 100, 'aria-valuetext': range ? `${Math.round(range[0] * 100)} to ${Math.round(range[1] * 100)} percent` : 'all',
      dataset: {axis: axis.name}, onpointerdown: (event) => drag(event, axis), onkeydown: (event) => key(event, axis)});
    return element('svg:g', {class: 'axis'},
      element('svg:text', {class: 'name', x: left, y: 16, 'text-anchor': 'middle'}, short(axis.name.split('.').pop(), letters), element('svg:title', {}, axis.name)),
      element('svg:line', {x1: left, x2: left, y1: y(1), y2: y(0)}),
      axis.ticks.slice(0, 24).map(({at, text}) => element('svg:text', {class: 'tick', x: left + side * 9, y: y(at) + 4, 'text-anchor': isLast ? 'start' : 'end'}, short(text, 10))),
      brush, area);
  }

  function setBrush(name, range) {
    brushes = {...brushes};
    if (range) brushes[name] = range;
    else delete brushes[name];
    render();
    onBrush(brushes);
  }

  function drag(event, axis) {
    if (event.button) return;
    event.preventDefault();
    const box = node.querySelector('svg').getBoundingClientRect();
    const at = ({clientY}) => Math.max(0, Math.min(1, 1 - (clientY - box.top - TOP) / (HEIGHT - TOP - BOTTOM)));
    const first = at(event);
    let moved = false;
    const move = (later) => {
      const second = at(later);
      moved = moved || Math.abs(second - first) > 0.015;
      if (moved) setBrush(axis.name, [Math.min(first, second), Math.max(first, second)]);
    };
    const up = () => {
      window.removeEventListener('pointermove', move);
      window.removeEventListener('pointerup', up);
      if (!moved) setBrush(axis.name, null);
    };
    window.addEventListener('pointermove', move);
    window.addEventListener('pointerup', up);
  }

  function key(event, axis) {
    const [low, high] = brushes[axis.name] ?? [0, 1];
    const sign = {ArrowUp: 1, ArrowDown: -1}[event.key];
    if (event.key === 'Delete' || event.key === 'Backspace' || event.key === 'Escape') setBrush(axis.name, null);
    else if (!sign) return;
    else if (event.shiftKey) setBrush(axis.name, [low, Math.max(low, Math.min(1, high + sign * STEP))]);
    else if (!brushes[axis.name]) setBrush(axis.name, sign > 0 ? [0.5, 1] : [0, 0.5]);
    else {
      const by = sign > 0 ? Math.min(STEP, 1 - high) : -Math.min(STEP, low);
      setBrush(axis.name, [low + by, high + by]);
    }
    event.preventDefault();
    event.stopPropagation();
  }

  new ResizeObserver(() => axes.length && render()).observe(node);

  return {
    node, draw, chosen,
    setBrushes(ranges) {
      brushes = {...ranges};
      if (axes.length) render();
    },
    mark(point) {
      lines.get(marked?.key)?.classList.remove('marked');
      marked = point;
      lines.get(point?.key)?.classList.add('marked');
    },
  };
}
