import {get} from '../api.js';
import {element, replace} from '../dom.js';
import {ago, duration, metric, percent} from '../format.js';
import {empty, link, status} from '../parts.js';

export const title = 'Runs';

export async function show(view, query, signal) {
  const {runs} = await get('/api/runs', {}, {signal});
  if (!runs.length) {
    replace(view, empty('No runs yet', 'Train something into this folder.', 'train.py --experiment=digits --mode=train_and_eval --model_dir=runs/digits'));
    return;
  }
  replace(view, element('div', {class: 'scroll'}, element('table', {},
    element('thead', {}, element('tr', {}, ['Run', 'Status', 'Step', '', 'Left', 'Accuracy', 'Started'].map((name) => element('th', {}, name)))),
    element('tbody', {}, runs.map((run) => element('tr', {},
      element('td', {}, link(`/run?${new URLSearchParams({run: run.name})}`, run.name)),
      element('td', {}, status(run.status, run.reason)), element('td', {class: 'number'}, run.step),
      element('td', {class: 'number'}, percent(run.percent)), element('td', {}, duration(run.eta_seconds)),
      element('td', {class: 'number'}, metric(run.evaluation.accuracy ?? run.train.accuracy)),
      element('td', {}, ago(run.started))))))));
}
