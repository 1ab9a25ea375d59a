// `official-ext check` of a form: started detached, its output shown as it comes.
import {get, post} from '../api.js';
import {dialog} from '../dialog.js';
import {element, replace, setText} from '../dom.js';
import {toastError} from '../toast.js';

const POLL_MS = 500;

/** Starts a check, and shows it until it is closed; it runs to its end without the page. */
export async function showCheck(body, signal) {
  const {id, command} = await post('/api/new/check', body, {signal});
  const output = element('pre', {class: 'check-output', tabindex: 0, 'aria-label': 'Output'});
  const state = element('p', {class: 'check-state', role: 'status'}, 'Starting…');
  const stop = element('button', {class: 'small', type: 'button', onclick: async () => {
    try {
      await post('/api/new/stop_check', {id});
    } catch (error) {
      toastError(error);
    }
  }}, 'Stop it');
  const closing = new AbortController();
  const opened = dialog('Check', [
    element('p', {class: 'hint'}, 'One training step, one evaluation, save, restore, compare: in a temporary folder.'),
    element('div', {class: 'toolbar'}, state, stop), output,
    element('details', {}, element('summary', {}, 'Its command'), element('pre', {}, command))],
  [{text: 'Close', value: null}], {signal, wide: true});
  opened.finally(() => closing.abort());
  const since = Date.now();
  while (!closing.signal.aborted && !signal.aborted) {
    try {
      const found = await get('/api/new/check', {id}, {signal: closing.signal});
      const atEnd = output.scrollTop + output.clientHeight >= output.scrollHeight - 4;
      // The first line is the command.
      setText(output, found.lines.slice(1).join('\n') || (found.lives ? 'TensorFlow starts…' : ''));
      if (atEnd) output.scrollTop = output.scrollHeight;
      if (!found.lives) {
        const good = found.exit_status === 0;
        replace(state, element('span', {class: good ? 'good' : 'bad'}, good ? 'Passed.' :
          `Failed${found.exit_status === null ? '' : `, with status ${found.exit_status}`}.`));
        stop.hidden = true;
        return;
      }
      setText(state, `Running for ${Math.round((Date.now() - since) / 1000)} s…`);
    } catch (error) {
      if (error.name === 'AbortError') return;
      setText(state, error.message);
    }
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}
