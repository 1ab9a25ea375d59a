// Short messages in a corner, which go by themselves; errors stay until they are closed.
import {element, withCode} from './dom.js';

const SECONDS = 5;

/**
 * Shows a message.
 *
 * @param {string|string[]} text - a line or several.
 * @param {Object} options - `kind`: info or error; `action`: {text, do}, a button, as for undo.
 */
export function toast(text, {kind = 'info', action = null} = {}) {
  const lines = [text].flat();
  const close = () => made.remove();
  const made = element('div', {class: `toast ${kind}`, role: kind === 'error' ? 'alert' : null},
    element('div', {class: 'toast-text'}, lines.slice(0, 6).map((line) => element('div', {}, withCode(line))),
      lines.length > 6 && element('div', {}, `and ${lines.length - 6} more`)),
    action && element('button', {class: 'link', onclick: () => {
      close();
      action.do();
    }}, action.text),
    element('button', {class: 'icon', 'aria-label': 'Close', onclick: close}, '×'));
  const corner = document.getElementById('toasts');
  corner.append(made);
  while (corner.childElementCount > 4) corner.firstElementChild.remove();
  if (kind !== 'error') setTimeout(close, (action ? 2 : 1) * SECONDS * 1000);
  return made;
}

/** Shows an error of the server, or of the page; one of a page that was left is ignored. */
export function toastError(error) {
  if (error?.name === 'AbortError') return;
  if (!error?.lines) console.error(error);
  toast(error?.lines ?? [String(error?.message ?? error)], {kind: 'error'});
}
