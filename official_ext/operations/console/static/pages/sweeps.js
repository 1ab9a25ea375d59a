// The sweeps of the folder: how they stand, and the best of each.
import {get, getSession, stream} from '../api.js';
import {element, replace} from '../dom.js';
import {metric, shellWord} from '../format.js';
import {bar, empty, link, loading, status} from '../parts.js';

export const title = 'Sweeps';
export const help = {text: 'Searches over parameters by many runs. New run has a form for a sweep.', docs: 'docs/how_to/sweep.md'};
export const styles = ['/static/pages/sweep.css'];

const UNDER_WAY = ['new', 'queued', 'paused', 'starting', 'running', 'stopping'];

export async function show(view, query, signal) {
  const end = loading(view);
  const [{sweeps}, {root}] = await Promise.all([get('/api/sweeps', {}, {signal}), getSession()]);
  end();
  const render = (found) => {
    if (!found.length) {
      replace(view, empty('No sweeps yet', 'A sweep tries many values of some parameters, and shows which matter.',
        `official-ext sweep ${shellWord(root)} --experiment=digits --set=learning_rate=1e-2,1e-3,1e-4 --metric=validation_accuracy --goal=maximize --slots=2`));
      return;
    }
    replace(view, element('div', {class: 'page-head'}, element('h1', {}, 'Sweeps')),
      element('div', {class: 'scroll card flush'}, element('table', {},
        element('thead', {}, element('tr', {}, ['Sweep', 'Status', 'Method', 'Points', 'Best'].map((name) =>
          element('th', {scope: 'col'}, name)))),
        element('tbody', {}, found.map(row)))));
  };
  render(sweeps);
  stream(['sweeps'], [], {sweeps: render}, signal);
}

function row(sweep) {
  const href = `/sweep?${new URLSearchParams({sweep: sweep.name})}`;
  if (sweep.status === 'unreadable') {
    return element('tr', {}, element('td', {}, sweep.name), element('td', {class: 'bad', colspan: 4}, sweep.reason));
  }
  const count = Object.values(sweep.counts).reduce((sum, one) => sum + one, 0);
  const open = UNDER_WAY.reduce((sum, name) => sum + (sweep.counts[name] ?? 0), 0);
  const total = sweep.num_points ?? count;
  return element('tr', {},
    element('td', {}, link(href, sweep.name), sweep.description && element('div', {class: 'hint'}, sweep.description)),
    element('td', {}, status(sweep.status)),
    element('td', {}, sweep.method),
    element('td', {class: 'points', title: Object.entries(sweep.counts).map(([name, one]) => `${one} ${name}`).join(', ')},
      bar(total ? 100 * (count - open) / total : 0), element('span', {class: 'hint'}, `${count - open} of ${sweep.num_points ?? '∞'}`)),
    element('td', {}, sweep.best && [link(`/run?${new URLSearchParams({run: sweep.best.run})}`, `${sweep.metric.name} ${metric(sweep.best.value)}`),
      element('div', {class: 'hint anywhere'}, sweep.best.run.split('/').pop())]));
}
