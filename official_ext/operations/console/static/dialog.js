// Dialogs: the browser's own element, so that Escape, focus and readers of the screen work.
import {element} from './dom.js';

/**
 * Opens a dialog; resolves to the value of the button by which it was closed, null for Escape and similar.
 *
 * @param {string} title
 * @param {Node|Node[]|string} content
 * @param {Object[]} buttons - {text, value, kind: primary|danger|''}; Enter is the primary one, or else the first of danger.
 * @param {Object} options - `signal`: an AbortSignal that closes it; `wide`.
 */
export function dialog(title, content, buttons = [{text: 'Close', value: null}], {signal, wide = false} = {}) {
  return new Promise((resolve) => {
    let value = null;
    // Enter chooses the harmless button, if there is one: of several the browser would take the first.
    const first = buttons.find((button) => button.kind === 'primary') ?? buttons.find((button) => button.kind);
    const form = element('form', {method: 'dialog', class: 'dialog-form'},
      element('h2', {}, title),
      element('div', {class: 'dialog-content'}, content),
      element('div', {class: 'dialog-buttons'}, buttons.map((button) => element('button', {
        class: button.kind ?? '', type: button === first ? 'submit' : 'button',
        onclick: () => {
          value = button.value;
          if (button !== first) made.close();
        }}, button.text))));
    const made = element('dialog', {class: wide && 'wide', 'aria-label': title, onclick: (event) => {
      if (event.target === made) made.close(); // Its backdrop.
    }}, form);
    made.addEventListener('close', () => {
      made.remove();
      resolve(value);
    });
    signal?.addEventListener('abort', () => made.close());
    document.body.append(made);
    made.showModal();
  });
}

/** Asks whether to do something; resolves to true or false. `kind` danger for actions that cannot be undone; `keep` is the other button. */
export async function confirm(title, content, text, {kind = 'primary', signal, keep = 'Keep'} = {}) {
  return await dialog(title, content, [{text: keep, value: null}, {text, value: true, kind}], {signal}) === true;
}

/** Prompts for a text; resolves to it, or to null. */
export async function prompt(title, {label = '', value = '', text = 'OK', multiline = false, hint = '', signal} = {}) {
  const input = multiline ? element('textarea', {rows: 5, value, autofocus: true}) :
    element('input', {type: 'text', value, autofocus: true, autocomplete: 'off', spellcheck: 'false'});
  const content = element('label', {class: 'stacked'}, label, input, hint && element('span', {class: 'hint'}, hint));
  const chosen = dialog(title, content, [{text: 'Cancel', value: null}, {text, value: true, kind: 'primary'}], {signal});
  input.select?.();
  return await chosen === true ? input.value : null;
}
