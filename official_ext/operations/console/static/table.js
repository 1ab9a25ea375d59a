// A table of any length: only the rows that are seen are in the page. Sorted by its owner; the keyboard walks in it.
import {element, replace, withCode} from './dom.js';

const EXTRA = 12; // Rows above and below the visible ones.

/**
 * Makes a table.
 *
 * @param {Object} options
 * @param {string} options.label - its name, for screen readers.
 * @param {function(Object): string} options.key - the identity of a row.
 * @param {number} options.rowHeight - of each row, in pixels.
 * @param {function(Object, number)} options.onOpen - Enter, or a double click, on a row.
 * @param {function(string, Event)} options.onSort - a click on the title of a column that has `sortable`.
 * @param {function(Object): string} options.note - a text below a row, in one line over its width; '' for none.
 * @param {function(Set<string>)} options.onSelect - the selection has changed; without it there is none.
 * @returns {Object} `node`; `setColumns(columns)`, `setRows(rows)`, `setSort(name, descending)`,
 *   `setSelected(keys)`, `refresh(names)` which renders the columns of these names anew, `keys` for app.js:keys, and
 *   `active()`, the row that the keyboard is at.
 *
 * A column is {name, title, width (pixels), grow, number, sortable, class, tooltip, render(row) -> Node or text,
 * isSame(row, before)}. A row that is another object is rendered anew; the cell that holds the focus is not.
 */
export function table({label, key, rowHeight = 34, note = () => '', onOpen, onSort, onSelect}) {
  let columns = [], rows = [], places = new Map(), sort = ['', false], selected = new Set(), active = null, anchor = null;
  let tops = [0], noteHeight = 24; // The upper end of each row, and the lower end of the last.
  const made = new Map(); // Key -> {tr, row, cells, below}: `below` is the row of the note, if it has one.
  const head = element('tr', {}), body = element('tbody', {}), sizes = element('colgroup');
  const above = element('tr', {class: 'spacer', 'aria-hidden': 'true'}), below = above.cloneNode();
  const grid = element('table', {class: 'grid', 'aria-label': label, 'aria-rowcount': 0},
    sizes, element('thead', {}, head), body);
  const node = element('div', {class: 'grid-scroll', tabindex: 0, role: 'region', 'aria-label': label}, grid);
  body.append(above, below);

  function setColumns(wanted) {
    columns = wanted;
    made.forEach(discard);
    made.clear();
    replace(sizes, onSelect && element('col', {style: {width: '2.25rem'}}),
      columns.map((column) => element('col', {style: {width: column.grow ? 'auto' : `${column.width}px`}})));
    grid.style.minWidth = `${columns.reduce((sum, column) => sum + column.width, onSelect ? 36 : 0)}px`;
    renderHead();
    render();
  }

  function renderHead() {
    const all = onSelect && element('th', {class: 'check'}, element('input', {type: 'checkbox', id: 'select-all',
      'aria-label': 'Select all', onchange: (event) => select(event.target.checked ? rows.map(key) : [])}));
    replace(head, all, columns.map((column) => {
      const isSorted = sort[0] === column.name;
      return element('th', {class: [column.number && 'number', column.class], title: column.tooltip ?? null, scope: 'col',
        dataset: {column: column.name}, 'aria-sort': isSorted ? (sort[1] ? 'descending' : 'ascending') : null},
      column.sortable ? element('button', {class: 'sort', onclick: (event) => onSort(column.name, event)}, column.title,
        element('span', {class: 'arrow', 'aria-hidden': 'true'}, isSorted ? (sort[1] ? '↓' : '↑') : '')) : column.title);
    }));
    markAll();
  }

  function setRows(wanted) {
    rows = wanted;
    places = new Map(rows.map((row, place) => [key(row), place]));
    measure();
    grid.setAttribute('aria-rowcount', rows.length + 1);
    markAll();
    render();
  }

  function measure() {
    tops = [0];
    for (const row of rows) tops.push(tops.at(-1) + rowHeight + (note(row) ? noteHeight : 0));
  }

  /** The place of the row at a height. */
  function placeAt(top) {
    let low = 0, high = rows.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (tops[middle + 1] <= top) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  function render() {
    const first = Math.max(0, placeAt(node.scrollTop) - EXTRA);
    const last = Math.min(rows.length, placeAt(node.scrollTop + node.clientHeight) + 1 + EXTRA);
    above.style.height = `${tops[first]}px`;
    below.style.height = `${Math.max(0, tops[rows.length] - tops[last])}px`;
    const shown = new Set();
    let before = above;
    for (let place = first; place < last; place++) {
      const row = rows[place], name = key(row);
      shown.add(name);
      const entry = made.get(name) ?? makeRow(row, name);
      if (entry.row !== row) update(entry, row);
      if (entry.place !== place) {
        entry.place = place;
        entry.tr.setAttribute('aria-rowindex', place + 2);
      }
      if (before.nextSibling !== entry.tr) before.after(entry.tr); // A moved node loses the focus.
      before = entry.tr;
      if (entry.below) {
        if (before.nextSibling !== entry.below) before.after(entry.below);
        before = entry.below;
      }
    }
    for (const [name, entry] of made) {
      const isShown = shown.has(name);
      if (!isShown && (!places.has(name) || !entry.tr.contains(document.activeElement))) {
        discard(entry);
        made.delete(name);
      } else {
        for (const tr of [entry.tr, entry.below]) if (tr) tr.style.display = isShown ? '' : 'none';
      }
    }
  }

  function discard({tr, below: second}) {
    tr.remove();
    second?.remove();
  }

  function makeRow(row, name) {
    const cells = columns.map((column) => element('td', {class: [column.number && 'number', column.class],
      dataset: {column: column.name}}));
    const box = onSelect && element('input', {type: 'checkbox', 'aria-label': `Select ${name}`, checked: selected.has(name),
      onclick: (event) => pick(name, event.shiftKey, box.checked)});
    const tr = element('tr', {class: [selected.has(name) && 'selected', active === name && 'active'], dataset: {key: name}},
      onSelect && element('td', {class: 'check'}, box), cells);
    const entry = {tr, cells, box, below: null, row: null, place: -1};
    update(entry, row);
    made.set(name, entry);
    return entry;
  }

  function update(entry, row, names = null) {
    const before = entry.row;
    entry.row = row;
    if (!names) setNote(entry, note(row));
    columns.forEach((column, place) => {
      const cell = entry.cells[place];
      if (names && !names.includes(column.name)) return;
      if (before && !names && column.isSame?.(row, before)) return;
      if (cell.contains(document.activeElement) && cell.querySelector('input, textarea')) return;
      const content = column.render(row);
      if (typeof content === 'string' || content === null || content === undefined) {
        if (cell.childElementCount || cell.textContent !== (content ?? '')) cell.textContent = content ?? '';
      } else {
        replace(cell, content);
      }
    });
  }

  function setNote(entry, text) {
    entry.tr.classList.toggle('noted', Boolean(text));
    if (!text) {
      entry.below?.remove();
      entry.below = null;
      return;
    }
    entry.below ??= element('tr', {class: 'note', dataset: {key: entry.tr.dataset.key}}, onSelect && element('td', {class: 'check'}),
      element('td', {colspan: columns.length}));
    const cell = entry.below.lastChild;
    if (cell.title === text) return;
    cell.title = text;
    replace(cell, element('div', {}, withCode(text)));
  }

  function setSort(name, descending) {
    sort = [name, descending];
    renderHead();
  }

  // The selection.

  function setSelected(names) {
    selected = new Set(names);
    for (const [name, {tr, box}] of made) {
      tr.classList.toggle('selected', selected.has(name));
      if (box) box.checked = selected.has(name);
    }
    markAll();
  }

  function select(names) {
    setSelected(names);
    onSelect(selected);
  }

  function markAll() {
    const box = head.querySelector('#select-all');
    if (!box) return;
    const count = rows.reduce((sum, row) => sum + selected.has(key(row)), 0);
    box.checked = rows.length > 0 && count === rows.length;
    box.indeterminate = count > 0 && count < rows.length;
  }

  function pick(name, isRange, on) {
    const wanted = new Set(selected), from = places.get(anchor), to = places.get(name);
    const names = isRange && from !== undefined && to !== undefined ?
      rows.slice(Math.min(from, to), Math.max(from, to) + 1).map(key) : [name];
    for (const one of names) on ? wanted.add(one) : wanted.delete(one);
    anchor = name;
    setActive(name, false);
    select(wanted);
  }

  // The keyboard.

  function setActive(name, scroll = true) {
    made.get(active)?.tr.classList.remove('active');
    active = name;
    if (name === null) return;
    if (scroll && places.has(name)) {
      const place = places.get(name), top = tops[place], bottom = tops[place + 1], header = head.offsetHeight;
      if (top < node.scrollTop) node.scrollTop = top;
      else if (bottom + header > node.scrollTop + node.clientHeight) node.scrollTop = bottom + header - node.clientHeight;
      render();
    }
    made.get(name)?.tr.classList.add('active');
  }

  function walk(steps) {
    const now = places.get(active);
    walkTo(now === undefined ? (steps > 0 ? 0 : rows.length - 1) : now + steps);
  }

  function walkTo(place) {
    if (rows.length) setActive(key(rows[Math.max(0, Math.min(rows.length - 1, place))]));
  }

  const activeRow = () => places.has(active) ? rows[places.get(active)] : null;
  const keys = {
    j: {text: 'Next', do: () => walk(1)},
    k: {text: 'Previous', do: () => walk(-1)},
    ArrowDown: {do: () => walk(1)},
    ArrowUp: {do: () => walk(-1)},
    Home: {do: () => walkTo(0)},
    End: {do: () => walkTo(rows.length - 1)},
    ...(onOpen && {Enter: {text: 'Open', do: () => activeRow() && onOpen(activeRow())}}),
    ...(onSelect && {
      x: {text: 'Select', do: () => active !== null && pick(active, false, !selected.has(active))},
      X: {text: 'Select up to here', do: () => active !== null && pick(active, true, true)},
      Escape: {text: 'Clear selection', do: () => select([])},
    }),
  };

  body.addEventListener('click', (event) => {
    const name = event.target.closest('tr')?.dataset.key;
    if (name !== undefined) setActive(name, false);
  });
  body.addEventListener('dblclick', (event) => {
    const name = event.target.closest('tr')?.dataset.key;
    if (name !== undefined && places.has(name) && !event.target.closest('input, button, a, textarea')) onOpen?.(rows[places.get(name)]);
  });
  let frame = 0;
  node.addEventListener('scroll', () => {
    if (!frame) {
      frame = requestAnimationFrame(() => {
        frame = 0;
        render();
      });
    }
  }, {passive: true});
  new ResizeObserver(render).observe(node);

  return {
    node, setColumns, setRows, setSort, setSelected, keys, setActive, active: activeRow, render,
    setRowHeight(height, ofNote = 24) {
      [rowHeight, noteHeight] = [height, ofNote];
      node.style.setProperty('--row', `${height}px`);
      node.style.setProperty('--note', `${ofNote}px`);
      measure();
      render();
    },
    refresh(names) {
      for (const entry of made.values()) update(entry, entry.row, names);
    },
    cell(name, column) {
      return made.get(name)?.tr.querySelector(`[data-column="${CSS.escape(column)}"]`) ?? null;
    },
  };
}
