// The queue: running jobs, waiting jobs in their order, finished jobs. The order is changed by dragging or by buttons.
import {get, getSession, post, stream} from '../api.js';
import {keys} from '../app.js';
import {confirm, dialog} from '../dialog.js';
import {element, replace, withCode} from '../dom.js';
import {ago, plural, shellWord, time, withTimes} from '../format.js';
import {command, empty, link, loading, status} from '../parts.js';
import {toast, toastError} from '../toast.js';

export const title = 'Queue';
export const help = {text: 'Jobs start in order, as many at once as there are slots. Drag waiting jobs to change the order. A dispatcher starts them: `official-ext queue run`.', docs: 'docs/how_to/queue.md'};
export const styles = ['/static/pages/queue.css'];

const WAITING = ['queued', 'paused'], OVER = ['finished', 'failed', 'cancelled'];

export async function show(view, query, signal) {
  const end = loading(view);
  const [found, {root: folder}] = await Promise.all([get('/api/queue', {}, {signal}), getSession()]);
  let state = found;
  end();
  let dragged = null, put = null; // The job under the hand, and the one before or after which it would come.
  const root = element('div', {class: 'queue'});
  replace(view, root);

  const change = async (path, body = {}) => {
    try {
      state = await post(`/api/queue/${path}`, body, {signal});
      render();
    } catch (error) {
      toastError(error);
    }
  };

  function render() {
    if (dragged !== null) return;
    const focus = root.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
    const waiting = state.jobs.filter((job) => WAITING.includes(job.status));
    const over = state.jobs.filter((job) => OVER.includes(job.status)).reverse();
    const rest = state.jobs.filter((job) => !waiting.includes(job) && !OVER.includes(job.status));
    if (!state.jobs.length && !state.dispatcher) {
      replace(root, empty('The queue is empty', 'Queued runs start in order, as soon as a slot is free.',
        `official-ext queue add ${shellWord(folder)} -- --experiment=digits --mode=train_and_eval --model_dir=${shellWord(`${folder}/digits`)}`));
      return;
    }
    replace(root, head(),
      section('Running', rest, 'No running jobs.', (job) => row(job, null)),
      section('Waiting', waiting, 'No waiting jobs.', (job) => row(job, waiting)),
      over.length ? section('Ended', over, '', (job) => row(job, null), state.num_over) : null);
    if (focus) root.querySelector(`[data-focus="${CSS.escape(focus)}"]`)?.focus();
  }

  function head() {
    const {dispatcher, paused} = state;
    const slots = dispatcher?.slots ?? null;
    const text = dispatcher ? [`${state.slots_in_use} of ${plural(slots, 'slot')} in use`,
      slots <= 32 && element('span', {class: 'slots', 'aria-hidden': 'true'}, Array.from({length: Math.max(slots, state.slots_in_use)},
        (_, place) => element('span', {class: ['slot', place < state.slots_in_use && 'used']}))),
      element('span', {class: 'faint', title: time(dispatcher.since) || null}, `dispatched by ${dispatcher.process || 'a process'}`)] :
      [element('span', {class: 'warn'}, 'No dispatcher is running: no job is started.')];
    return element('header', {}, element('div', {class: 'page-head'}, element('h1', {class: 'grow'}, 'Queue'),
      !dispatcher && element('button', {class: 'primary', dataset: {focus: 'start'}, onclick: start}, 'Start a dispatcher'),
      element('button', {dataset: {focus: 'pause'}, 'aria-pressed': String(paused), title: 'p',
        onclick: () => change(paused ? 'resume' : 'pause')}, paused ? 'Resume the queue' : 'Pause the queue')),
    element('div', {class: 'state', 'aria-live': 'polite'}, text,
      paused && element('strong', {class: 'warn'}, 'Paused: running jobs continue, no job is started.')),
    !dispatcher && command(state.command));
  }

  function section(name, jobs, none, make, count = jobs.length) {
    return element('section', {'aria-label': name},
      element('h2', {}, name, element('span', {class: 'faint'}, count || '')),
      jobs.length ? element('ol', {class: 'jobs'}, jobs.map(make)) : element('div', {class: 'jobs none'}, none),
      count > jobs.length && element('p', {class: 'hint'}, `The latest ${jobs.length} of ${count}.`));
  }

  function row(job, waiting) {
    const place = waiting?.indexOf(job) ?? -1, number = job.job;
    const name = job.name ?? job.model_dir ?? job.command ?? `job ${number}`;
    const button = (text, label, focus, disabled, do_) => element('button', {class: 'icon', type: 'button', title: label,
      'aria-label': `${label}: ${name}`, dataset: {focus: `${focus}-${number}`}, disabled, onclick: do_}, text);
    const isPaused = job.status === 'paused';
    const buttons = waiting ? [
      button('↑', 'Up', 'up', place === 0, () => change('move', {job: number, place: 'before', neighbour: waiting[place - 1].job})),
      button('↓', 'Down', 'down', place === waiting.length - 1, () => change('move', {job: number, place: 'after', neighbour: waiting[place + 1].job})),
      button(isPaused ? '▶' : '‖', isPaused ? 'Resume' : 'Pause', 'hold', false, () => change(isPaused ? 'resume' : 'pause', {job: number})),
      button('×', 'Cancel', 'cancel', false, () => cancel(job, name)),
    ] : OVER.includes(job.status) ? [element('span', {class: 'hint', title: time(job.ended)}, ago(job.ended))] :
      [element('button', {class: 'small', type: 'button', dataset: {focus: `cancel-${number}`}, disabled: job.status === 'unreadable',
        'aria-label': `Cancel: ${name}`, onclick: () => cancel(job, name)}, 'Cancel')];
    const facts = [job.reason && withTimes(job.reason), job.attempt > 1 && `attempt ${job.attempt}`, job.gpus?.length && `GPU ${job.gpus.join(', ')}`,
      !waiting && !OVER.includes(job.status) && job.started && `started ${ago(job.started)}`].filter(Boolean);
    const handle = waiting && waiting.length > 1 ? element('span', {class: 'handle', 'aria-hidden': 'true', title: 'Drag to move',
      onpointerdown: (event) => drag(event, job, waiting)}, '⠿') : null;
    return element('li', {class: ['job', !handle && 'plain'], dataset: {job: number}}, handle,
      element('span', {class: 'faint', title: `Job ${number}`}, waiting ? place + 1 : `#${number}`), status(job.status, job.reason),
      element('div', {class: 'what'},
        element('div', {title: job.command}, job.run ? link(`/run?${new URLSearchParams({run: job.run})}`, name) : name),
        facts.length ? element('div', {class: 'reason', title: facts.join(' · ')}, withCode(facts.join(' · '))) : null),
      element('div', {class: 'buttons'}, buttons));
  }

  function drag(event, job, waiting) {
    if (event.button) return;
    event.preventDefault();
    const list = event.target.closest('ol'), own = event.target.closest('li');
    dragged = job.job;
    put = null;
    own.classList.add('dragged');
    event.target.setPointerCapture(event.pointerId);
    const move = ({clientY}) => {
      put = null;
      for (const item of list.children) {
        item.classList.remove('before', 'after');
        const box = item.getBoundingClientRect();
        if (item === own || clientY < box.top || clientY > box.bottom) continue;
        const place = clientY < box.top + box.height / 2 ? 'before' : 'after';
        item.classList.add(place);
        put = {place, neighbour: Number(item.dataset.job)};
      }
    };
    const drop = (ending) => {
      event.target.removeEventListener('pointermove', move);
      dragged = null;
      const isWanted = ending.type === 'pointerup' && put !== null;
      if (isWanted) change('move', {job: job.job, ...put});
      else render();
    };
    event.target.addEventListener('pointermove', move);
    event.target.addEventListener('pointerup', drop, {once: true});
    event.target.addEventListener('pointercancel', drop, {once: true});
  }

  async function cancel(job, name) {
    const isRunning = !WAITING.includes(job.status);
    const text = isRunning ? 'The run saves, stops, and is not retried.' : 'The job is removed from the queue.';
    if (await confirm(`Cancel ${name}?`, text, 'Cancel the job', {kind: 'danger', signal})) {
      await change('cancel', {job: job.job});
    }
  }

  async function start() {
    const input = element('input', {type: 'number', min: 1, value: 1, autofocus: true});
    const content = [element('label', {class: 'stacked'}, 'Runs at once', input),
      element('p', {class: 'hint'}, 'The dispatcher runs in the background, also when the console is closed.')];
    if (await dialog('Start a dispatcher', content, [{text: 'Cancel', value: null}, {text: 'Start', value: true, kind: 'primary'}], {signal}) === true) {
      await change('start', {slots: Number(input.value)});
      if (state.dispatcher) toast('A dispatcher has started.');
    }
  }

  render();
  keys({p: {text: 'Pause or resume the queue', do: () => change(state.paused ? 'resume' : 'pause')}}, signal);
  stream(['queue'], [], {queue: (values) => {
    if (JSON.stringify(values) !== JSON.stringify(state)) {
      state = values;
      render();
    }
  }}, signal);
}
