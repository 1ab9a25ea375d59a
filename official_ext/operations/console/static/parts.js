// Small parts that several pages have.
import {element, replace, setText, withCode} from './dom.js';
import {toast} from './toast.js';

/** How a run or a job stands: a dot and the word; the reason is its tooltip. */
export function status(word, reason = '') {
  return element('span', {class: 'status', dataset: {status: word}, title: reason || null},
    element('span', {class: 'dot', 'aria-hidden': 'true'}), element('span', {class: 'word'}, word));
}

/** Changes an element of `status` in place. */
export function setStatus(made, word, reason = '') {
  made.dataset.status = word;
  if (reason) made.title = reason;
  else made.removeAttribute('title');
  setText(made.querySelector('.word'), word);
}

/** A command as texts and elements, so that lines break between its words alone. */
export function commandWords(text) {
  return text.split(/( )(?='?--)/).map((word) => word === ' ' ? word : element('span', {class: 'command-word'}, word));
}

/** A command with a button that copies it. */
export function command(text) {
  return element('div', {class: 'command'}, element('code', {}, commandWords(text)), copyButton(text));
}

/** A button that copies a text. */
export function copyButton(text, label = 'Copy') {
  const button = element('button', {class: 'small', type: 'button', onclick: async () => {
    if (await copy(text)) {
      setText(button, 'Copied');
      setTimeout(() => setText(button, label), 1500);
    }
  }}, label);
  return button;
}

/** Copies a text; warns the user if the browser does not let us. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch (error) { // Only secure addresses have a clipboard: https, or this machine.
    const area = element('textarea', {class: 'offscreen', value: text});
    document.body.append(area);
    area.select();
    const copied = document.execCommand('copy');
    area.remove();
    if (!copied) toast('The browser does not let the page copy; select the text.', {kind: 'error'});
    return copied;
  }
}

/** The message of an empty page: a title, a line, and the command that makes something. */
export function empty(title, text = '', shell = null, ...more) {
  return element('div', {class: 'empty'}, element('h2', {}, title), text && element('p', {}, withCode(text)),
    shell && command(shell), more);
}

/** The bar of a percentage. */
export function bar(percent) {
  const part = Math.max(0, Math.min(100, percent)) || 0;
  return element('span', {class: 'bar', role: 'img', 'aria-label': `${Math.round(part)} percent`},
    element('span', {class: 'bar-fill', style: {width: `${part}%`}}));
}

/** Lines of errors, as the command line prints them; null for none. */
export function errorList(lines) {
  // A list with another role would be no list to a reader of the screen.
  return lines?.length ? element('div', {role: 'alert'}, element('ul', {class: 'errors'}, lines.map((line) => element('li', {}, withCode(line))))) : null;
}

/** A link inside of the console, which the router takes. */
export function link(href, ...children) {
  return element('a', {href}, ...children);
}

/** Shows that something is being loaded, if it takes a moment; returns a function that ends it. */
export function loading(view, text = 'Loading…') {
  const made = element('div', {class: 'loading'}, text);
  const timer = setTimeout(() => replace(view, made), 150);
  return () => {
    clearTimeout(timer);
    made.remove();
  };
}
