// A parameter or a metric against a metric.
import {element, replace} from './dom.js';
import {FAILED, ramp} from './axes.js';

export const STYLES = ['/static/scatter.css'];

const HEIGHT = 240, LEFT = 56, RIGHT = 14, TOP = 10, BOTTOM = 28;

/**
 * Makes the picture; options as of parallel_coordinates.js. `colourOf(point)`: its colour; without it that of its share.
 *
 * @returns {Object} `node`; `draw(points, xAxis, yAxis, share, chosen)`; `mark(point)`.
 */
export function scatter({onOpen, onHover, colourOf = null}) {
  let drawn = null, marked = null;
  const dots = new Map();
  const node = element('div', {class: 'scatter'});

  function draw(...given) {
    drawn = given;
    render();
  }

  function render() {
    const [points, xAxis, yAxis, share, chosen] = drawn;
    const width = Math.max(240, node.clientWidth || 400);
    const x = (place) => LEFT + (0.02 + 0.96 * place) * (width - LEFT - RIGHT);
    const y = (place) => TOP + (1 - (0.03 + 0.94 * place)) * (HEIGHT - TOP - BOTTOM);
    dots.clear();
    const made = [...points].sort((one, other) => (share(one) ?? -1) - (share(other) ?? -1)).map((point) => {
      const across = xAxis.place(point.values[xAxis.name]), up = yAxis.place(point.values[yAxis.name]);
      if (across === null || up === null) return null;
      const hollow = FAILED.has(point.status), colour = colourOf?.(point) ?? ramp(share(point));
      const dot = element('svg:circle', {class: ['dot-point', hollow && 'hollow', !chosen(point) && 'out', point === marked && 'marked'], r: 4.5,
        cx: x(across).toFixed(1), cy: y(up).toFixed(1), style: hollow ? {fill: 'transparent', stroke: colour} : {fill: colour}, onclick: () => onOpen(point),
        onpointerenter: () => onHover(point), onpointerleave: () => onHover(null)}, element('svg:title', {}, point.title));
      dots.set(point.key, dot);
      return dot;
    });
    const room = Math.max(1, Math.floor((width - LEFT) / 64)), skip = Math.ceil(xAxis.ticks.length / room);
    replace(node, element('svg:svg', {width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: 'img',
      'aria-label': `${yAxis.name} by ${xAxis.name}`},
    yAxis.ticks.map(({at, text}) => [element('svg:line', {class: 'grid-line', x1: LEFT, x2: width - RIGHT, y1: y(at), y2: y(at)}),
      element('svg:text', {x: LEFT - 6, y: y(at) + 4, 'text-anchor': 'end'}, text)]),
    xAxis.ticks.filter((_, place) => place % skip === 0).map(({at, text}) => element('svg:text', {x: x(at), y: HEIGHT - 8, 'text-anchor': 'middle'},
      text.length > 12 ? `${text.slice(0, 11)}…` : text)),
    element('svg:path', {class: 'frame', d: `M${LEFT},${TOP}V${HEIGHT - BOTTOM}H${width - RIGHT}`}), made));
  }

  new ResizeObserver(() => drawn && render()).observe(node);

  return {
    node, draw,
    mark(point) {
      dots.get(marked?.key)?.classList.remove('marked');
      marked = point;
      dots.get(point?.key)?.classList.add('marked');
    },
  };
}
