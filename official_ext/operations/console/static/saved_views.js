// Named views of a page: the queries of its address, kept by this browser for each console's folder.
import {dialog} from './dialog.js';
import {element, replace} from './dom.js';
import {toast} from './toast.js';

const KEY = 'views';

/** The button that opens the views of a page. `queryOf()`: the present view, as a URLSearchParams; `open(query)` shows one. */
export function viewsButton(page, root, {queryOf, open, signal}) {
  return element('button', {onclick: () => choose(page, root, {queryOf, open, signal})}, 'Views');
}

async function choose(page, root, {queryOf, open, signal}) {
  const name = element('input', {type: 'text', 'aria-label': 'Name', placeholder: 'Name of the present view', autocomplete: 'off', maxlength: 100, autofocus: true});
  const list = element('ul', {class: 'views'});
  const close = () => list.closest('dialog').close();

  function tell() {
    const views = viewsOf(page, root);
    replace(list, Object.keys(views).length ? Object.entries(views).map(([title, query]) => element('li', {},
      element('button', {type: 'button', class: 'link cut', title: query, onclick: () => {
        close();
        open(query);
      }}, title),
      element('button', {type: 'button', class: 'icon small', 'aria-label': `Delete the view ${title}`, onclick: () => {
        change(page, root, (all) => delete all[title]);
        tell();
        name.focus();
      }}, '×'))) : element('li', {class: 'soft'}, 'No view is saved yet.'));
  }

  tell();
  const answer = await dialog('Views', [list, element('label', {class: 'stacked'}, 'Save the present view', name)],
    [{text: 'Close', value: null}, {text: 'Save', value: 'save', kind: 'primary'}], {signal});
  const title = name.value.trim();
  if (answer !== 'save' || !title) return;
  const isNew = !Object.hasOwn(viewsOf(page, root), title);
  if (change(page, root, (all) => all[title] = queryOf().toString())) toast(isNew ? `Saved the view ${title}` : `Replaced the view ${title}`);
}

function read() {
  try {
    const found = JSON.parse(localStorage.getItem(KEY));
    return found && typeof found === 'object' ? found : {};
  } catch (error) {
    return {}; // None, or none that can be read.
  }
}

function viewsOf(page, root) {
  const views = read()[root]?.[page] ?? {};
  return Object.fromEntries(Object.entries(views).filter(([, query]) => typeof query === 'string'));
}

/** Changes the views of a page. Returns whether the browser keeps them. */
function change(page, root, edit) {
  const all = read(), views = viewsOf(page, root);
  edit(views);
  try {
    localStorage.setItem(KEY, JSON.stringify({...all, [root]: {...all[root], [page]: views}}));
    return true;
  } catch (error) {
    toast('The browser keeps no data of this page; keep its link instead.', {kind: 'error'});
    return false;
  }
}
