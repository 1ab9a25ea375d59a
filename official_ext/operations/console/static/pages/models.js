// Finished results: exports, and trying them. The query names the model tried, so that a link shows the same.
import {get, getSession, post, withQuery} from '../api.js';
import {element, replace} from '../dom.js';
import {ago, integer, metric, shellWord, time} from '../format.js';
import {command, empty, errorList, link, loading, status} from '../parts.js';
import {toast, toastError} from '../toast.js';
import {showChat} from './models_chat.js';
import {showSavedModel} from './models_saved.js';

export const title = 'Models';
export const help = {text: 'Runs with a checkpoint. Export writes a SavedModel or a Hugging Face folder, Try computes outputs in the browser, Chat talks with a language model.', docs: 'docs/how_to/console_forms.md'};
export const styles = ['/static/pages/models.css'];

export const KINDS = {saved_model: 'SavedModel', hugging_face: 'Hugging Face', adapter: 'Adapters'};
const POLL_MS = 1500;

export async function show(view, query, signal) {
  const done = loading(view);
  const [{runs}, {root}] = await Promise.all([get('/api/models', {}, {signal}), getSession()]);
  done();
  if (signal.aborted) return;
  if (query.get('run') && query.get('result')) await showTried(view, query, runs, signal);
  else showList(view, runs, root, signal);
}

async function showTried(view, query, runs, signal) {
  const run = runs.find((one) => one.name === query.get('run'));
  const result = run?.results.find((one) => one.name === query.get('result'));
  if (!result) {
    replace(view, head('Models'), errorList([`${query.get('run')}: has no result of the name ${query.get('result')}`]));
    return;
  }
  const show_ = result.kind === 'saved_model' ? showSavedModel : showChat;
  await show_(view, {run, result, runs, query, signal});
}

/** The heading of a page of models; on all but the list with the way back. */
export function head(text, ...more) {
  return element('div', {class: 'page-head'}, element('h1', {}, text), more);
}

/** The address for trying a result. */
export function addressOf(run, result, more = {}) {
  return withQuery('/models', {run: run.name, result: result.name, ...more});
}

// The list.

function showList(view, runs, root, signal) {
  if (!runs.length) {
    replace(view, empty('No models yet', 'Runs with a checkpoint appear here for export and inference.',
      `python train.py --experiment=digits --mode=train_and_eval --model_dir=${shellWord(`${root}/digits`)}`));
    return;
  }
  const sorted = [...runs].sort((a, b) => (b.updated ?? 0) - (a.updated ?? 0));
  const filter = element('input', {type: 'search', placeholder: 'Find a run', 'aria-label': 'Find a run', oninput: fill});
  const cards = element('div', {class: 'models'});
  function fill() {
    const found = sorted.filter((run) => run.name.toLowerCase().includes(filter.value.trim().toLowerCase()));
    replace(cards, found.slice(0, 200).map((run) => card(run, signal)),
      found.length > 200 && element('p', {class: 'soft'}, `${found.length - 200} more; find them by their name.`),
      !found.length && element('p', {class: 'soft'}, 'No run of that name has a model.'));
  }
  replace(view, head('Models', sorted.length > 3 && filter), cards);
  fill();
}

function card(run, signal) {
  const made = element('section', {class: ['card', 'model'], 'aria-label': run.name, dataset: {run: run.name}});
  fillCard(made, run, signal);
  if (run.export?.is_running) follow(made, run, signal);
  return made;
}

function fillCard(made, run, signal) {
  const metrics = Object.entries(run.metrics).map(([name, value]) =>
    element('span', {class: 'measure'}, element('span', {class: 'soft'}, name), ' ', metric(value)));
  replace(made,
    element('div', {class: 'model-head'},
      element('h2', {}, link(withQuery('/run', {run: run.name}), run.name)), status(run.status, run.reason)),
    element('div', {class: 'model-facts'},
      element('span', {}, run.experiment), run.step !== null && element('span', {}, `step ${integer(run.step)}`),
      element('span', {title: time(run.updated)}, ago(run.updated)), metrics),
    run.results.length > 0 && element('ul', {class: 'results'}, run.results.map((result) => line(run, result, made, signal))),
    makers(run, made, signal), exportState(run.export));
}

function line(run, result, made, signal) {
  const isText = result.kind !== 'saved_model';
  return element('li', {},
    element('span', {class: 'tag'}, KINDS[result.kind]), element('code', {class: 'grow anywhere'}, result.name),
    result.base_kept && element('span', {class: 'soft'}, `over ${result.base_kept}`),
    element('span', {class: 'soft nowrap', title: time(result.time)}, ago(result.time)),
    result.is_loaded && element('span', {class: 'good'}, 'loaded'),
    result.kind === 'adapter' && element('button', {class: 'small',
      onclick: () => start(run, made, signal, {to: 'hugging_face', result: result.name})}, 'Merge'),
    element('a', {class: 'button small', href: addressOf(run, result)}, isText ? 'Chat' : 'Try'));
}

function makers(run, made, signal) {
  if (!run.has_checkpoint) return null;
  const which = element('select', {'aria-label': 'Which checkpoint'},
    [['', 'best, or else latest'], ['best', 'best'], ['latest', 'latest']].map(([value, text]) =>
      element('option', {value}, text)));
  const button = (to, text) => element('button', {class: 'small', disabled: Boolean(run.export?.is_running),
    onclick: () => start(run, made, signal, {to, which: which.value})}, text);
  return element('div', {class: 'toolbar'}, element('span', {class: 'soft'}, 'Export'), which,
    button('saved_model', 'SavedModel'), run.is_of_language && button('hugging_face', 'Hugging Face folder'));
}

function exportState(found) {
  if (!found) return null;
  const word = found.is_running ? 'running' : found.exit_status === 0 ? 'finished' : 'failed';
  return element('details', {class: 'export', open: word !== 'finished'},
    element('summary', {}, status(word), ' ', element('span', {class: 'soft'}, word === 'running' ? 'exporting' : 'export')),
    command(found.command), element('pre', {class: 'log'}, found.log.join('\n') || 'No output yet.'));
}

async function start(run, made, signal, what) {
  try {
    const {export: found} = await post('/api/models/export', {run: run.name, ...what}, {signal});
    run.export = found;
    fillCard(made, run, signal);
    follow(made, run, signal);
  } catch (error) {
    if (!signal.aborted) toastError(error);
  }
}

async function follow(made, run, signal) {
  while (run.export?.is_running && !signal.aborted) {
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
    try {
      const {export: found} = await get('/api/models/export', {run: run.name}, {signal});
      const isNew = JSON.stringify(found) !== JSON.stringify(run.export);
      run.export = found;
      if (!found?.is_running) {
        const {runs} = await get('/api/models', {}, {signal});
        Object.assign(run, runs.find((one) => one.name === run.name) ?? {});
        toast(found?.exit_status === 0 ? `${run.name}: exported` : `${run.name}: the export has failed`,
          {kind: found?.exit_status === 0 ? 'info' : 'error'});
      }
      if (isNew && !signal.aborted) fillCard(made, run, signal);
    } catch (error) {
      if (signal.aborted) return;
    }
  }
}
