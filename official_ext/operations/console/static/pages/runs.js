// The runs of the folder: a live table, archived runs, and the trash.
import {get, getSession, stream} from '../api.js';
import {keys} from '../app.js';
import {dialog} from '../dialog.js';
import {element, replace, setText} from '../dom.js';
import {integer, plural, shellWord} from '../format.js';
import {empty, link, loading, status} from '../parts.js';
import {navigate, setQuery} from '../router.js';
import * as actions from '../runs_actions.js';
import * as columns from '../runs_columns.js';
import {chooseRuns, parseFilter, sortRuns} from '../runs_filter.js';
import {showTrash} from '../runs_trash.js';
import {notesColumns} from '../runs_notes.js';
import {viewsButton} from '../saved_views.js';
import {table} from '../table.js';
import {toastError} from '../toast.js';

export const title = 'Runs';
export const help = {text: 'One row for each run of the folder. Click a title to sort. Filter by words and by conditions such as `accuracy>0.9` or `learning_rate=1e-3`. Select runs to compare, stop, resume, tag, archive or delete them.', docs: 'docs/how_to/console.md'};
export const styles = ['/static/pages/runs.css'];

const STATUSES = ['submitted', 'starting', 'running', 'stopping', 'hung', 'finished', 'preempted', 'diverged', 'failed', 'dead', 'unknown'];
const MAX_IN_LINK = 200; // A link with more selected runs would be too long.
const NARROW = matchMedia('(max-width: 40rem)');

// The page's data when it was left: it shows them at once when somebody returns.
const memory = {runs: new Map(), address: '', scroll: 0, active: null};

export async function show(view, query, signal) {
  const which = ['archived', 'trash'].includes(query.get('view')) ? query.get('view') : 'runs';
  const {root} = await getSession();
  if (signal.aborted) return;
  const tabs = element('div', {class: 'tabs', role: 'group', 'aria-label': 'Which runs'},
    [['runs', 'Runs'], ['archived', 'Archive'], ['trash', 'Trash']].map(([name, text]) =>
      element('button', {'aria-pressed': String(name === which), onclick: () =>
        navigate(name === 'runs' ? '/runs' : `/runs?view=${name}`)}, text)));
  if (which === 'trash') await showTrash(view, tabs, root, signal);
  else new RunsPage(view, tabs, query, which === 'archived', root, signal).start();
}

class RunsPage {
  constructor(view, tabs, query, isArchive, root, signal) {
    Object.assign(this, {view, tabs, isArchive, root, signal});
    this.runs = memory.runs;
    this.filter = query.get('filter') ?? '';
    this.statuses = query.getAll('status');
    this.tags = query.getAll('tag');
    this.baseline = query.get('baseline') ?? '';
    this.sort = query.get('sort') ?? columns.DEFAULT_SORT;
    this.selected = new Set(query.getAll('selected'));
    this.columns = (query.get('columns') ?? stored() ?? '').split(',').filter(Boolean);
    this.fields = {}; // Run -> field -> value.
    this.read = []; // The names of these fields.
    this.fieldNames = new Set();
    this.best = {};
    this.judged = {conditions: '', names: null, errors: []};
  }

  start() {
    this.build();
    const key = location.pathname + location.search;
    if (this.runs.size) {
      this.arrange();
      if (memory.address === key) {
        this.table.setActive(memory.active, false);
        this.table.node.scrollTop = memory.scroll;
      }
    } else {
      this.endLoading = loading(this.place);
    }
    stream(['runs'], [], {runs: (news) => this.take(news), problem: ({errors}) => this.setProblem(errors)}, this.signal);
    const second = setInterval(() => this.table.refresh(['eta_seconds', 'duration', 'started', 'updated']), 1000);
    const narrow = () => this.setColumns();
    NARROW.addEventListener('change', narrow);
    this.signal.addEventListener('abort', () => {
      clearInterval(second);
      clearTimeout(this.judging);
      NARROW.removeEventListener('change', narrow);
      Object.assign(memory, {scroll: this.table.node.scrollTop, active: this.table.active()?.name ?? null});
    });
    memory.address = key;
  }

  /** Notes the state of the view in the address. */
  note(values) {
    setQuery(values);
    memory.address = location.pathname + location.search; // When the page is left, the bar has another one already.
  }

  /** The view, without the selection. */
  query() {
    const query = new URLSearchParams(location.search);
    query.delete('selected');
    if (this.columns.length) query.set('columns', this.columns.join(',')); // This browser's, if the address has none.
    return query;
  }

  // Its appearance.

  build() {
    this.input = element('input', {type: 'search', class: 'filter', value: this.filter, spellcheck: 'false',
      autocomplete: 'off', 'aria-label': 'Filter', placeholder: 'Filter: words, accuracy>0.9, learning_rate=1e-3',
      oninput: () => this.setFilter(this.input.value), onkeydown: (event) => {
        if (event.key === 'Enter' || event.key === 'ArrowDown') this.table.node.focus();
      }});
    this.chips = element('div', {class: 'toolbar chips', role: 'group', 'aria-label': 'Statuses'});
    this.wrong = element('div', {class: 'filter-error bad', role: 'alert'});
    this.bulk = element('div', {class: 'toolbar bulk', role: 'toolbar', 'aria-label': 'Selected runs', hidden: true});
    this.tools = element('div', {class: 'toolbar'}, this.input, element('span', {class: 'grow'}),
      element('button', {onclick: () => this.chooseColumns()}, 'Columns'),
      viewsButton('runs', this.root, {queryOf: () => this.query(), open: (query) => navigate(`/runs?${query}`), signal: this.signal}),
      !this.isArchive && element('a', {class: 'button primary', href: '/new'}, 'New run'));
    this.table = table({label: this.isArchive ? 'Archived runs' : 'Runs', key: (run) => run.name, rowHeight: 34,
      note: (run) => this.columns.includes('reason') ? '' : columns.mistakeOf(run),
      onOpen: (run) => navigate(columns.runAddress(run)), onSort: (name) => this.setSort(name),
      onSelect: (names) => this.setSelected(names)});
    this.place = element('div', {class: 'place'});
    this.count = element('div', {class: 'foot soft', 'aria-live': 'polite'});
    replace(this.view, element('div', {class: 'runs-head'}, this.tabs, this.tools), this.chips, this.bulk, this.wrong, this.place, this.count);
    keys({
      ...this.table.keys,
      '/': {text: 'Filter', do: () => this.input.select()},
      c: {text: 'Compare the selected runs', do: () => this.selected.size > 1 && this.compare()},
      e: {text: 'Edit tags', do: () => this.edit('tags')},
      n: {text: 'Edit the note', do: () => this.edit('note')},
    }, this.signal);
    this.setColumns();
    this.setSelected(this.selected, false);
  }

  setColumns() {
    const all = [...this.runs.values()];
    if (!this.columns.length && !all.length) return;
    const wanted = this.columns.length ? this.columns : this.defaults ??= columns.defaultColumns(all);
    const names = NARROW.matches ? narrowed(wanted, all, this.fieldNames) : wanted;
    this.kinds = Object.fromEntries([...wanted, this.sortName].map((name) => [name, columns.kindOf(name, all, this.fieldNames)]));
    const own = notesColumns((tag) => this.toggleTag(tag));
    this.table.node.classList.toggle('two-lines', NARROW.matches);
    this.table.setRowHeight(NARROW.matches ? 66 : 34, NARROW.matches ? 42 : 24);
    const compared = {baseline: () => this.runs.get(this.baseline), best: this.best};
    this.table.setColumns([columns.nameColumn(this.baseline), ...names.map((name) =>
      own[name] ?? columns.columnOf(name, this.kinds[name], this.fields, compared))]);
    this.table.setSort(this.sortName, columns.isDescending(this.sort, this.kinds[this.sortName], this.best));
    const unknown = Object.keys(this.kinds).filter((name) => this.kinds[name] === 'field');
    if (unknown.join() !== this.known) this.loadFields(unknown);
  }

  get sortName() {
    return this.sort.replace(/^-/, '');
  }

  /** Requests the values of fields; which names are fields, and which metrics are better if larger, comes along. */
  async loadFields(names = (this.known ?? '').split(',').filter(Boolean)) {
    this.known = names.join();
    if (!names.length) return;
    try {
      const {values} = await get('/api/runs/fields', {name: names}, {signal: this.signal});
      this.fields = values;
      this.read = names;
      this.setColumns();
      this.arrange();
    } catch (error) {
      toastError(error);
    }
  }

  async loadNames() {
    const {names, best} = await get('/api/runs/fields', {}, {signal: this.signal});
    this.fieldNames = new Set(names);
    this.best = best;
    this.setColumns();
    this.arrange();
  }

  // The visible rows.

  take({all, changed, removed, now}) {
    if (all) this.runs.clear();
    for (const run of all ?? changed) {
      run.receivedAt = performance.now() - (now - run.seen) * 1000;
      this.runs.set(run.name, run);
    }
    for (const name of removed ?? []) this.runs.delete(name);
    if (all && !this.asked) {
      this.asked = true;
      this.endLoading?.();
      this.setColumns();
      this.loadNames().catch(toastError);
      this.wasEmpty = !this.runs.size;
    } else if (this.runs.size && (this.wasEmpty || this.hasMoreColumns())) {
      this.wasEmpty = false;
      this.defaults = null;
      this.setColumns();
      this.loadNames().catch(toastError);
    }
    this.arrange();
    // Their differences are others.
    if ((all ?? changed).some(({name}) => name === this.baseline)) this.table.refresh(Object.keys(this.kinds ?? {}));
    this.judgeSoon(1000);
    if (this.known && (all || changed.length)) this.loadFieldsSoon();
  }

  /** Whether runs have metrics for default columns now: the first runs of a folder begin without. They stay once one is of evaluations. */
  hasMoreColumns() {
    if (this.columns.length || this.hasEvaluations) return false;
    const all = [...this.runs.values()];
    this.hasEvaluations = all.some((run) => Object.keys(run.evaluation).length > 0);
    return columns.defaultColumns(all).join() !== this.defaults?.join();
  }

  loadFieldsSoon() {
    this.fieldsTimer ??= setTimeout(() => {
      this.fieldsTimer = null;
      if (!this.signal.aborted) this.loadFields();
    }, 2000);
  }

  /** Chooses, sorts and shows the runs. */
  arrange() {
    const inView = [...this.runs.values()].filter((run) => run.is_archived === this.isArchive);
    const {words} = parseFilter(this.filter);
    const wanted = {words, tags: this.tags, names: this.judged.names};
    const anyStatus = chooseRuns(inView, {...wanted, statuses: []});
    const chosen = this.statuses.length ? anyStatus.filter((run) => this.statuses.includes(run.status)) : anyStatus;
    const kind = this.kinds?.[this.sortName] ?? columns.kindOf(this.sortName, inView, this.fieldNames);
    const descending = columns.isDescending(this.sort, kind, this.best);
    const valueOf = columns.valueGetter(this.sortName, kind, this.fields);
    const sorted = sortRuns(chosen, valueOf, descending);
    const first = inView.filter(({name}) => name === this.baseline); // Whatever the filter says.
    this.rows = [...first, ...sorted.filter((run) => !first.includes(run))];
    this.showRows(inView);
    this.table.setRows(this.rows);
    this.showChips(anyStatus);
    const there = [...this.selected].filter((name) => this.runs.get(name)?.is_archived === this.isArchive);
    if (this.asked && there.length < this.selected.size) this.setSelected(there);
    else this.showBulk();
    const isUnknown = kind === 'field' && this.read.includes(this.sortName) && inView.length &&
      inView.every((run) => valueOf(run) === null);
    setText(this.count, (chosen.length === inView.length ? plural(inView.length, 'run') :
      `${integer(chosen.length)} of ${plural(inView.length, 'run')}`) +
      (isUnknown ? `; not sorted: no run has a metric or a field ${this.sortName}` : ''));
  }

  showRows(inView) {
    const wanted = this.rows.length ? 'table' : !this.asked ? 'nothing' : inView.length ? 'none' : 'empty';
    if (wanted === this.shown) return;
    this.shown = wanted;
    if (wanted === 'table') replace(this.place, this.table.node);
    else if (wanted === 'none') {
      replace(this.place, empty('No matching runs', `The filter matches none of ${plural(inView.length, 'run')}.`, null,
        element('button', {onclick: () => this.clearFilter()}, 'Show all')));
    } else if (wanted === 'empty') replace(this.place, this.isArchive ? emptyArchive(this.root) : emptyRuns(this.root));
  }

  showChips(runs) {
    const counts = new Map();
    for (const run of runs) counts.set(run.status, (counts.get(run.status) ?? 0) + 1);
    const shown = STATUSES.filter((name) => counts.has(name) || this.statuses.includes(name));
    const text = JSON.stringify([shown.map((name) => [name, counts.get(name)]), this.statuses, this.tags, this.baseline]);
    if (text === this.chipsText) return;
    this.chipsText = text;
    const focused = document.activeElement?.dataset?.chip;
    replace(this.chips, this.baseline && element('button', {class: 'small chip', 'aria-pressed': 'true', dataset: {chip: '='},
      title: 'Remove the baseline', onclick: () => this.setBaseline('')}, `baseline ${this.baseline}`, ' ×'),
    this.tags.map((tag) => element('button', {class: 'small chip', 'aria-pressed': 'true', dataset: {chip: `#${tag}`},
      title: 'Remove this tag from the filter', onclick: () => this.toggleTag(tag)}, `#${tag}`, ' ×')),
    shown.map((name) => element('button', {class: 'small chip', 'aria-pressed': String(this.statuses.includes(name)),
      dataset: {chip: name}, onclick: () => this.toggleStatus(name)}, status(name), integer(counts.get(name) ?? 0))));
    if (focused) this.chips.querySelector(`[data-chip="${CSS.escape(focused)}"]`)?.focus();
  }

  setProblem(errors) {
    this.problem = errors;
    this.showWrong();
  }

  showWrong() {
    const lines = [...this.problem ?? [], ...this.judged.errors];
    this.wrong.hidden = !lines.length;
    setText(this.wrong, lines.join(' · '));
    this.input.setAttribute('aria-invalid', String(this.judged.errors.length > 0));
  }

  // The filter.

  setFilter(text) {
    this.filter = text;
    this.note({filter: text});
    this.judgeSoon(0);
    this.arrange();
  }

  /** Has the server judge the conditions, at most once in some time: it implements `runs list --filter`. */
  judgeSoon(delay) {
    const {conditions} = parseFilter(this.filter);
    if (!conditions.length) {
      clearTimeout(this.judging);
      this.judging = null;
      this.judged = {conditions: '', names: null, errors: []};
      this.showWrong();
      return;
    }
    if (delay === 0) clearTimeout(this.judging);
    else if (this.judging) return;
    this.judging = setTimeout(() => {
      this.judging = null;
      this.judge(conditions);
    }, delay);
  }

  async judge(conditions) {
    this.asking?.abort();
    this.asking = new AbortController();
    const signal = AbortSignal.any([this.asking.signal, this.signal]);
    let {names} = this.judged, errors = [];
    try {
      ({names} = await get('/api/runs/filter', {filter: conditions}, {signal}));
      names = new Set(names);
    } catch (error) {
      if (error.name === 'AbortError') return;
      errors = error.lines ?? [String(error)];
    }
    if (signal.aborted) return;
    this.judged = {conditions: conditions.join(' '), names, errors};
    this.showWrong();
    this.arrange();
  }

  clearFilter() {
    this.statuses = [];
    this.tags = [];
    this.input.value = '';
    this.note({status: [], tag: []});
    this.setFilter('');
  }

  toggleStatus(name) {
    this.statuses = this.statuses.includes(name) ? this.statuses.filter((one) => one !== name) : [...this.statuses, name];
    this.note({status: this.statuses});
    this.arrange();
  }

  toggleTag(tag) {
    this.tags = this.tags.includes(tag) ? this.tags.filter((one) => one !== tag) : [...this.tags, tag];
    this.note({tag: this.tags});
    this.arrange();
  }

  /** Compares the others with a run, which is the first of the list; '' for none. */
  setBaseline(name) {
    this.baseline = name;
    this.note({baseline: name});
    this.setColumns();
    this.arrange();
  }

  setSort(name) {
    this.sort = this.sort === name ? `-${name}` : name;
    this.note({sort: this.sort === columns.DEFAULT_SORT ? null : this.sort});
    this.kinds ??= {};
    this.kinds[name] ??= columns.kindOf(name, [...this.runs.values()], this.fieldNames);
    this.table.setSort(name, columns.isDescending(this.sort, this.kinds[name], this.best));
    this.arrange();
  }

  // Columns.

  async chooseColumns() {
    const runs = [...this.runs.values()];
    const metrics = columns.metricNames(runs).filter((name) => columns.kindOf(name, runs, this.fieldNames) === 'metric');
    const now = this.columns.length ? this.columns : this.defaults ?? [];
    const offered = [['Run', columns.OWN_NAMES], ['Metrics', metrics],
      ['Configuration', sortedFields(this.fieldNames, metrics)]];
    const search = element('input', {type: 'search', 'aria-label': 'Search', placeholder: 'Search', oninput: () => {
      for (const label of content.querySelectorAll('label')) label.hidden = !label.textContent.includes(search.value);
    }});
    const content = element('div', {class: 'column-choice'}, search, offered.map(([text, names]) => names.length > 0 &&
      element('fieldset', {}, element('legend', {}, text), names.map((name) => element('label', {class: 'inline'},
        element('input', {type: 'checkbox', value: name, checked: now.includes(name)}), name)))));
    const answer = await dialog('Columns', content, [{text: 'Reset', value: 'default'}, {text: 'Cancel', value: null},
      {text: 'Show', value: 'show', kind: 'primary'}], {signal: this.signal});
    if (!answer) return;
    const chosen = [...content.querySelectorAll('input:checked')].map((box) => box.value);
    // Earlier ones keep their order.
    this.columns = answer === 'default' ? [] : [...now.filter((name) => chosen.includes(name)),
      ...chosen.filter((name) => !now.includes(name))];
    store(this.columns);
    this.note({columns: this.columns.join(',')});
    this.setColumns();
    this.arrange();
  }

  // The selection.

  setSelected(names, note = true) {
    this.selected = new Set(names);
    this.table.setSelected(this.selected);
    if (note) this.note({selected: this.selected.size > MAX_IN_LINK ? [] : [...this.selected]});
    this.showBulk();
  }

  chosen() {
    return [...this.selected].map((name) => this.runs.get(name)).filter(Boolean);
  }

  showBulk() {
    const runs = this.chosen(), some = runs.length > 0;
    this.bulk.hidden = !some;
    this.chips.hidden = some;
    const living = runs.filter(columns.isLiving).length;
    const text = `${runs.length} ${living} ${runs.some((run) => !columns.isLiving(run) && run.status !== 'finished')}`;
    if (!some || text === this.bulkText) return;
    this.bulkText = text;
    const button = (label, do_, disabled, more = {}) => element('button', {disabled, onclick: async () => {
      await do_(this.chosen());
    }, ...more}, label);
    const stoppable = runs.some((run) => columns.isLiving(run) && run.status !== 'stopping') || living > 0;
    replace(this.bulk, element('strong', {}, `${plural(runs.length, 'run')} selected`),
      button('Compare', () => this.compare(), runs.length < 2),
      button('Baseline', ([run]) => {
        this.setSelected([]);
        this.setBaseline(run.name);
      }, runs.length !== 1, {title: 'Show differences from this run'}),
      !this.isArchive && button('Stop', (chosen) => actions.stop(chosen, this.signal), !stoppable),
      !this.isArchive && button('Resume', actions.resume, !runs.some((run) => !columns.isLiving(run) && run.status !== 'finished')),
      button('Tags', (chosen) => actions.tag(chosen, this.signal), false),
      this.isArchive ? button('Unarchive', actions.unarchive, false) : button('Archive', actions.archive, living === runs.length),
      button('Delete', (chosen) => actions.remove(chosen, this.signal), living === runs.length, {class: 'danger'}),
      element('span', {class: 'grow'}),
      element('button', {onclick: () => this.setSelected([])}, 'Clear selection'));
  }

  compare() {
    navigate(`/compare?${new URLSearchParams([...this.selected].map((name) => ['run', name]))}`);
  }

  edit(name) {
    const run = this.table.active();
    if (run) this.table.cell(run.name, name)?.querySelector('.edit')?.click();
  }
}

/** The columns on a phone: how it stands, how far it is, and the first metric. */
function narrowed(wanted, runs, fieldNames) {
  const metric = wanted.find((name) => columns.kindOf(name, runs, fieldNames) === 'metric');
  return ['status', 'step', metric ?? 'eta_seconds'];
}

/** Fields, short names first. */
function sortedFields(names, metrics) {
  const fields = [...names].filter((name) => !metrics.includes(name));
  return [...fields.filter((name) => !name.includes('.')), ...fields.filter((name) => name.includes('.'))];
}

function stored() {
  try {
    return localStorage.getItem('runs-columns');
  } catch (error) {
    return null;
  }
}

function store(names) {
  try {
    if (names.length) localStorage.setItem('runs-columns', names.join(','));
    else localStorage.removeItem('runs-columns');
  } catch (error) {
    // No storage: the link has them.
  }
}

function emptyRuns(root) {
  return empty('No runs yet', 'Every run in this folder appears here.',
    `python train.py --experiment=digits --mode=train_and_eval --model_dir=${shellWord(`${root}/digits`)}`,
    element('p', {}, 'Or ', link('/new', 'choose an experiment and start it here'), '.'));
}

function emptyArchive(root) {
  return empty('Nothing is archived', 'Archived runs are not in the list. Their files stay in place.',
    `official-ext runs archive ${shellWord(root)} RUN`);
}

