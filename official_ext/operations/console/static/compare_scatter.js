// A field or a metric of several runs against another: one dot a run.
import {axisOf} from './axes.js';
import {element, replace} from './dom.js';
import {toNumber} from './format.js';
import {navigate, setQuery} from './router.js';
import {scatter} from './scatter.js';

/**
 * Makes the section; null if there are fewer than two runs, or no metrics.
 *
 * @param {Object} found - the answer of /api/compare.
 * @param {URLSearchParams} query - of the address: `across` and `up` are the chosen axes.
 * @param {function(string): string} colourOf - of a run: a CSS custom property.
 */
export function scatterOf(found, query, colourOf) {
  const metrics = Object.keys(found.last), fields = Object.keys(found.params);
  if (found.names.length < 2 || !metrics.length) return null;
  const valuesOf = (name) => (found.last[name] ?? found.params[name]).map((value) => value === '-' ? null : value);
  const names = [...fields, ...metrics];
  const varied = fields.find((name) => valuesOf(name).every((value) => toNumber(value) !== null));
  const chosen = {across: query.get('across'), up: query.get('up')};
  if (!names.includes(chosen.across)) chosen.across = varied ?? names[0];
  if (!metrics.includes(chosen.up)) chosen.up = Object.keys(found.best)[0] ?? metrics[0];
  const dots = scatter({onOpen: (point) => navigate(`/run?${new URLSearchParams({run: point.key})}`), onHover: () => {},
    colourOf: (point) => `var(${colourOf(point.key)})`});
  const hint = element('p', {class: 'hint'});

  function draw() {
    const points = found.names.map((key, place) => {
      const values = Object.fromEntries(Object.values(chosen).map((name) => [name, valuesOf(name)[place]]));
      return {key, values, status: found.statuses[place], title: [key, ...Object.entries(values).map(([name, value]) => `${name} ${value ?? '–'}`)].join('\n')};
    });
    // Learning rates and sizes are chosen in powers; of a metric nobody knows.
    const axis = (name) => axisOf(name, points.map((point) => point.values[name]), metrics.includes(name) ? '' : 'categorical');
    const across = axis(chosen.across), up = axis(chosen.up);
    dots.draw(points, across, up, () => null, () => true);
    const missing = points.filter((point) => across.place(point.values[chosen.across]) === null || up.place(point.values[chosen.up]) === null).length;
    replace(hint, missing ? `${missing} of ${points.length} runs lack one of the values.` : '');
  }

  const choice = (which, label, offered) => element('label', {class: 'inline'}, label, element('select', {onchange: (event) => {
    chosen[which] = event.target.value;
    query.set(which, chosen[which]);
    setQuery({[which]: chosen[which]});
    draw();
  }}, offered.map((name) => element('option', {value: name, selected: name === chosen[which], title: name}, name))));
  const section = element('section', {class: 'compare-part compare-scatter', 'aria-label': 'Scatter'}, element('div', {class: 'toolbar'}, element('h2', {}, 'Scatter'),
    choice('up', 'Up', metrics), choice('across', 'Across', names)), dots.node, hint);
  draw();
  return section;
}
