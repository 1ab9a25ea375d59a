// The frame of the page: navigation, theme, keyboard, and the router.
//
// A module of pages/ exports `title`, `help` (its `text`, and the page of the `docs`), `async show(view, query, signal)`, and, if it
// has any, `styles`: a list of additional style sheets, such as '/static/pages/run.css', which are loaded before it is shown. #view
// scrolls, not the window.
import {getSession, post, withQuery} from './api.js';
import {element, replace, withCode} from './dom.js';
import {dialog} from './dialog.js';
import {empty, errorList} from './parts.js';
import {navigate, onNavigate} from './router.js';
import {toastError} from './toast.js';

const PAGES = {'/': 'runs', '/runs': 'runs', '/run': 'run', '/compare': 'compare', '/new': 'new', '/queue': 'queue',
  '/sweeps': 'sweeps', '/sweep': 'sweep', '/models': 'models'};
const TABS = [['/runs', 'Runs', 'r'], ['/new', 'New run', 'n'], ['/queue', 'Queue', 'q'], ['/sweeps', 'Sweeps', 's'],
  ['/models', 'Models', 'm']];
const TAB_OF = {'/': '/runs', '/run': '/runs', '/compare': '/runs', '/sweep': '/sweeps'};

let leave = null, help = null;
const view = document.getElementById('view');

async function show() {
  leave?.abort();
  leave = new AbortController();
  const {signal} = leave, path = location.pathname;
  markTab(TAB_OF[path] ?? path);
  help = null;
  replace(view);
  view.className = `page-${PAGES[path] ?? 'none'}`;
  if (!PAGES[path]) {
    setTitle('No such page');
    replace(view, empty('No such page', `The console has no page ${path}.`, null, element('a', {class: 'button', href: '/runs'}, 'All runs')));
    return;
  }
  try {
    const page = await import(`./pages/${PAGES[path]}.js`).catch(() => reloadWhenBack(signal));
    await Promise.all((page.styles ?? []).map(loadStyle));
    if (signal.aborted) return;
    setTitle(page.title);
    help = page.help ?? null;
    view.focus({preventScroll: true}); // The keyboard scrolls it.
    await page.show(view, new URLSearchParams(location.search), signal);
  } catch (error) {
    if (signal.aborted || error.name === 'AbortError') return;
    if (!error.lines) console.error(error);
    replace(view, errorList(error.lines ?? [`This page cannot be shown: ${error.message}`]), element('p', {}, element('a', {href: '/runs'}, 'All runs')));
  }
}

/** A browser does not ask again for a module that it did not get: the page is loaded anew when the server answers. */
async function reloadWhenBack(signal) {
  replace(view, errorList(['The console does not answer. The page loads when it does.']));
  while (!signal.aborted) {
    await new Promise((resolve) => setTimeout(resolve, 1000));
    const answer = await fetch('/api/about').catch(() => null);
    if (answer?.ok && !signal.aborted) location.reload();
  }
  signal.throwIfAborted();
}

function loadStyle(href) {
  if (document.querySelector(`link[href="${href}"]`)) return null;
  return new Promise((resolve) => {
    const made = element('link', {rel: 'stylesheet', href, onload: resolve, onerror: resolve});
    document.head.append(made);
  });
}

/** Names the page in the browser's tab. */
export function setTitle(text) {
  document.title = text ? `${text} · Console` : 'Console';
}

// The top.

function top() {
  const theme = element('button', {class: 'icon', id: 'theme', title: 'Dark or light (t)', 'aria-label': 'Dark or light',
    onclick: switchTheme}, element('span', {class: 'theme-sign', 'aria-hidden': 'true'}));
  const question = element('button', {class: 'icon', title: 'Help and keys (?)', 'aria-label': 'Help and keys', onclick: showHelp}, '?');
  replace(document.getElementById('top'),
    element('a', {class: 'brand', href: '/runs', 'aria-label': 'Console: runs'},
      element('img', {src: '/static/icon.svg', alt: '', width: 20, height: 20}), element('span', {}, 'Console')),
    element('nav', {'aria-label': 'Pages'}, TABS.map(([href, text]) => element('a', {href}, text))),
    element('span', {class: 'root', id: 'root'}), theme, question);
}

function markTab(path) {
  for (const tab of document.querySelectorAll('nav a')) {
    if (tab.getAttribute('href') === path) tab.setAttribute('aria-current', 'page');
    else tab.removeAttribute('aria-current');
  }
}

function switchTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
  root.dataset.theme = dark ? 'light' : 'dark';
  try {
    localStorage.setItem('theme', root.dataset.theme);
  } catch (error) {
    // No storage: until the page is loaded again.
  }
  window.dispatchEvent(new CustomEvent('console-theme', {detail: root.dataset.theme}));
}

// The keyboard: `g` and a letter go to a page; a page adds its own keys by `keys`.

let pageKeys = {}, pending = false;

/**
 * The keys of a page, until it is left.
 *
 * @param {Object} values - key (as KeyboardEvent.key has it) -> {text: its meaning, do: function of the event}.
 * @param {AbortSignal} signal - of the page.
 */
export function keys(values, signal) {
  pageKeys = values;
  signal.addEventListener('abort', () => {
    if (pageKeys === values) pageKeys = {};
  });
}

function isTyping(target) {
  // The field of a dialog that has just closed may still have the focus.
  return target.isConnected && target.closest?.('input, textarea, select, [contenteditable]') && !target.closest('[type=checkbox]');
}

function keydown(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  if (document.querySelector('dialog[open]')) return;
  if (isTyping(event.target)) {
    if (event.key === 'Escape') event.target.blur();
    return;
  }
  if (pending) {
    pending = false;
    const tab = TABS.find(([, , key]) => key === event.key);
    if (tab) {
      event.preventDefault();
      navigate(tab[0]);
      return;
    }
  }
  if (pageKeys[event.key]) {
    if (event.key === 'Enter' && event.target.closest('a, button')) return;
    event.preventDefault();
    pageKeys[event.key].do(event);
  } else if (event.key === 'g') {
    pending = true;
    setTimeout(() => {
      pending = false;
    }, 1500);
  } else if (event.key === '?') {
    event.preventDefault();
    showHelp();
  } else if (event.key === 't') {
    switchTheme();
  }
}

/** A description of the page, and its keys. The pages of docs/ are not installed: their names are those of the source. */
function showHelp() {
  const NAMES = {ArrowDown: '↓', ArrowUp: '↑', Escape: 'Esc', ' ': 'Space'};
  const rows = [...Object.entries(pageKeys).filter(([, value]) => value.text).map(([key, {text}]) => [NAMES[key] ?? key, text]),
    ...TABS.map(([, text, key]) => [`g ${key}`, text]), ['t', 'Dark or light'], ['?', 'This help']];
  dialog('Help', [help && [element('p', {}, withCode(help.text)), element('p', {class: 'hint'}, 'Documentation: ', element('code', {}, help.docs))],
    element('h3', {}, 'Keys'), element('dl', {class: 'keys'}, rows.map(([key, text]) =>
      [element('dt', {}, key.split(' ').map((one) => element('kbd', {}, one))), element('dd', {}, text)]))]);
}

// The token that a console on another address requires.

let asking = false;

async function login() {
  if (asking) return;
  asking = true;
  leave?.abort();
  const input = element('input', {type: 'password', autocomplete: 'current-password', required: true, autofocus: true});
  const wrong = element('div', {});
  const form = element('form', {class: 'login', onsubmit: async (event) => {
    event.preventDefault();
    try {
      await post('/api/login', {token: input.value});
      asking = false;
      start();
    } catch (error) {
      replace(wrong, errorList(error.lines ?? [String(error)]));
      input.select();
    }
  }}, element('h1', {}, 'Console'),
  element('label', {class: 'stacked'}, 'Token', input,
    element('span', {class: 'hint'}, 'The value of OFFICIAL_EXT_CONSOLE_TOKEN of the console.')),
  element('button', {class: 'primary', type: 'submit'}, 'Enter'), wrong);
  replace(view, form);
  input.focus();
}

async function start() {
  try {
    const session = await getSession(true);
    const root = document.getElementById('root');
    root.textContent = session.root;
    root.title = `${session.root} (official-ext ${session.version})`;
  } catch (error) {
    if (error.status === 401) return;
    toastError(error);
  }
  show();
}

function banner(text) {
  const made = document.getElementById('banner');
  made.textContent = text;
  made.classList.toggle('shown', Boolean(text));
}

let lost = null;
window.addEventListener('console-connected', ({detail}) => {
  clearTimeout(lost);
  if (detail) banner('');
  else lost = setTimeout(() => banner('The console does not answer. Runs continue; this page reconnects.'), 1500);
});
window.addEventListener('console-login', login);
window.addEventListener('popstate', show);
document.addEventListener('keydown', keydown);
document.addEventListener('click', (event) => {
  const link = event.target.closest?.('a[href]');
  if (!link || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  if (link.target || link.hasAttribute('download') || link.origin !== location.origin || !(link.pathname in PAGES)) return;
  if (link.hash) return;
  event.preventDefault();
  navigate(link.pathname + link.search);
});
onNavigate(show);
top();
start();

export {withQuery};
