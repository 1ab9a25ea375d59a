// Deleted runs: restored, or deleted for ever.
import {get} from './api.js';
import {keys} from './app.js';
import {element, replace} from './dom.js';
import {ago, plural, shellWord, time} from './format.js';
import {empty} from './parts.js';
import * as actions from './runs_actions.js';
import {table} from './table.js';

/** Shows the trash in a view. */
export async function showTrash(view, tabs, root, signal) {
  let selected = new Set(), deleted = [];
  const bulk = element('div', {class: 'toolbar'}), place = element('div', {class: 'place'});
  const count = element('div', {class: 'foot soft'});
  const trash = table({label: 'Deleted runs', key: (each) => each.key, rowHeight: 34,
    onSort: (name) => arrange(name), onSelect: (names) => {
      selected = names;
      showBulk();
    }});
  trash.setColumns([
    {name: 'name', title: 'Run', width: 200, grow: true, sortable: true, class: 'name', render: (each) => each.name},
    {name: 'deleted', title: 'Deleted', width: 150, sortable: true, render: (each) =>
      element('time', {title: time(each.deleted)}, ago(each.deleted))},
  ]);
  let sort = 'deleted', descending = true;

  function arrange(name = null) {
    if (name) [sort, descending] = [name, sort === name ? !descending : name === 'deleted'];
    trash.setSort(sort, descending);
    trash.setRows([...deleted].sort((one, other) =>
      (descending ? -1 : 1) * one[sort].localeCompare(other[sort], 'en', {numeric: true})));
  }

  function showBulk() {
    const chosen = deleted.filter((each) => selected.has(each.key));
    const after = (do_) => async () => {
      await do_();
      await load();
    };
    replace(bulk, element('strong', {class: chosen.length ? '' : 'soft'}, `${plural(chosen.length, 'run')} selected`),
      element('button', {disabled: !chosen.length, onclick: after(() => actions.restore(chosen.map((each) => each.key)))}, 'Restore'),
      element('button', {disabled: !chosen.length, class: 'danger', onclick: after(() => actions.removeForever(chosen, signal))},
        'Delete permanently'));
  }

  async function load() {
    ({deleted} = await get('/api/runs/trash', {}, {signal}));
    selected = new Set([...selected].filter((key) => deleted.some((each) => each.key === key)));
    trash.setSelected(selected);
    replace(place, deleted.length ? trash.node : empty('The trash is empty', 'Deleted runs can be restored from here.',
      `official-ext runs restore ${shellWord(root)} RUN`));
    bulk.hidden = !deleted.length;
    arrange();
    showBulk();
    count.textContent = plural(deleted.length, 'run');
  }

  replace(view, element('div', {class: 'runs-head'}, tabs, bulk), place, count);
  keys(trash.keys, signal);
  await load();
}
