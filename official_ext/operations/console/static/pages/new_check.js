// `official-ext check` and `official-ext preview` of a form: started detached, their output shown as it comes.
import {get, post, withQuery} from '../api.js';
import {dialog} from '../dialog.js';
import {element, replace, setText} from '../dom.js';
import {toastError} from '../toast.js';

const POLL_MS = 500;

const KINDS = {
  check: {title: 'Check', passed: 'Passed.', hint: 'One training step, one evaluation, save, restore, compare: in a temporary folder.'},
  preview: {title: 'Preview', passed: 'Done.', hint: 'Training examples as the input pipeline yields them: images with boxes, masks and labels; texts with learned tokens marked.'},
};

/** Starts a check or a preview, and shows it until it is closed; it runs to its end without the page. */
export async function showCheck(what, body, signal) {
  const {title, passed, hint} = KINDS[what];
  const {id, command} = await post(`/api/new/${what}`, body, {signal});
  const picture = element('img', {class: 'preview', alt: 'Examples', hidden: true});
  const output = element('pre', {class: 'check-output', tabindex: 0, 'aria-label': 'Output'});
  const state = element('p', {class: 'check-state', role: 'status'}, 'Starting…');
  const stop = element('button', {class: 'small', type: 'button', onclick: async () => {
    try {
      await post('/api/new/stop_check', {id});
    } catch (error) {
      toastError(error);
    }
  }}, 'Stop');
  const closing = new AbortController();
  const opened = dialog(title, [
    element('p', {class: 'hint'}, hint), element('div', {class: 'toolbar'}, state, stop), picture, output,
    element('details', {}, element('summary', {}, 'Command'), element('pre', {}, command))],
  [{text: 'Close', value: null}], {signal, wide: true});
  opened.finally(() => closing.abort());
  const since = Date.now();
  while (!closing.signal.aborted && !signal.aborted) {
    try {
      const found = await get('/api/new/check', {id}, {signal: closing.signal});
      const atEnd = output.scrollTop + output.clientHeight >= output.scrollHeight - 4;
      // The first line is the command.
      const text = found.lines.slice(1).join('\n') || (found.lives ? 'TensorFlow starts…' : '');
      if (what === 'preview' && text.includes('⟦')) replace(output, ...marked(text));
      else setText(output, text);
      if (atEnd) output.scrollTop = output.scrollHeight;
      if (!found.lives) {
        const good = found.exit_status === 0;
        replace(state, element('span', {class: good ? 'good' : 'bad'}, good ? passed :
          `Failed${found.exit_status === null ? '' : `, with status ${found.exit_status}`}.`));
        stop.hidden = true;
        if (good && found.has_picture) {
          picture.src = withQuery('/api/new/picture', {id});
          picture.hidden = false;
          output.classList.add('short');
        }
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

/** A text with its parts between ⟦ and ⟧ as marks, which may have several lines. */
function marked(text) {
  return text.split(/⟦([^⟧]*)⟧/).map((part, number) => number % 2 ? element('mark', {}, part) : part);
}
