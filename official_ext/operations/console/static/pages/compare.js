import {get, getSession, stream} from '../api.js';
import {charts, parseName} from '../charts.js';
import {barsOf, STYLES as BAR_STYLES} from '../compare_bars.js';
import {scatterOf} from '../compare_scatter.js';
import {element, replace, setText} from '../dom.js';
import {field, integer, metric, plural, toNumber} from '../format.js';
import {empty, errorList, link, status} from '../parts.js';
import {STYLES, swatch} from '../plot.js';
import {navigate, setQuery} from '../router.js';
import {STYLES as SCATTER_STYLES} from '../scatter.js';
import {viewsButton} from '../saved_views.js';
import {toastError} from '../toast.js';

export const title = 'Compare';
export const help = {text: 'Several runs side by side: curves, bars, a scatter plot, and the fields in which they differ. A click on a run hides its curves. The address holds the view.', docs: 'docs/how_to/console_compare.md'};
export const styles = [...STYLES, ...SCATTER_STYLES, ...BAR_STYLES];

const COLOURS = 8;
// Training has lines, validation has dashes and points: of the first eight runs, of the next ones, and of those after them.
const DASHES = [undefined, [12, 3, 2, 3], [2, 3]];
const VALIDATION_DASHES = [[6, 3], [6, 3, 2, 3, 2, 3], [4, 2, 1, 2]];
const MAX_KEPT = 500;
const MAX_RUNS = 100;
const ALL_FIELDS = '*'; // Of the configuration, but seeds.
const DIFFERENCES_MS = 5000;
const CURVES_FIRST_MS = 1500;

export async function show(view, query, signal) {
  const given = [...new Set(query.getAll('run'))];
  const [{root}, {runs}, names] = await Promise.all([getSession(), get('/api/runs', {}, {signal}), given.length && given.length <= MAX_RUNS ?
    get('/api/curves/names', {run: given}, {signal}) : null]);
  if (signal.aborted) return;
  const known = new Map(runs.map((run) => [run.name, run])), missing = given.filter((name) => !known.has(name));
  const page = new Compare(view, root, given.filter((name) => known.has(name)).slice(0, MAX_RUNS), missing, known, query, signal);
  await page.start(names?.names);
}

class Compare {
  constructor(view, root, runs, missing, known, query, signal) {
    Object.assign(this, {view, root, runs, missing, known, query, signal, names: {}, styles: new Map()});
    Object.assign(this, {group: query.get('group') ?? '', groups: [], fields: []});
    this.hidden = new Set(query.getAll('off').filter((name) => runs.includes(name)));
  }

  async start(names) {
    this.chips = element('div', {class: 'compare-runs', role: 'group', 'aria-label': 'Runs'});
    this.content = element('div', {});
    replace(this.view, element('div', {class: 'page-head'}, element('h1', {}, 'Compare'), this.adder(), this.views()), this.chips,
      errorList(this.missing.map((name) => `${name}: no run of that name`)), this.content);
    await this.changed(names);
  }

  /** The runs are others than before. `names`: the curves of each, if they are known. */
  async changed(names = null) {
    this.leave?.abort();
    this.leave = new AbortController();
    this.signal.addEventListener('abort', () => this.leave.abort(), {signal: this.leave.signal});
    const {signal} = this.leave;
    setQuery({run: this.runs, off: [...this.hidden], group: this.group});
    this.groups = [];
    this.styles = stylesOf(this.runs);
    this.tellChips();
    if (!this.runs.length) {
      replace(this.content, empty('No runs selected', 'Select runs in the list and press Compare, or add one above.', null, link('/runs', 'All runs')));
      return;
    }
    try {
      this.names = names ?? (await get('/api/curves/names', {run: this.runs}, {signal})).names;
      if (signal.aborted) return;
      const problem = element('div', {}), tables = element('div', {}), legend = element('div', {class: 'compare-groups soft', role: 'group', 'aria-label': 'Groups'});
      const hadFocus = this.by && document.activeElement === this.by, by = this.by = this.grouping();
      if (this.group) await this.loadGroups(by, legend, problem, signal);
      const found = charts({runs: () => this.shown(), names: () => this.shownNames(), seriesOf: (curve, group) => this.seriesOf(curve, group),
        query: new URLSearchParams(location.search), signal, controls: [by],
        groupsOf: (runs) => this.groups.length ? runs.map((name) => this.groups.findIndex((group) => group.runs.includes(name))) : null});
      if (signal.aborted) return;
      this.charts = found;
      replace(this.content, problem, legend, this.shownNames().length ? found.node : element('p', {class: 'soft'}, 'None of these runs has curves yet.'), tables);
      this.tables = tables;
      if (hadFocus) by.focus();
      // The server does one thing after the other: the curves come first.
      await Promise.race([found.drawn, new Promise((resolve) => setTimeout(resolve, this.shownNames().length ? CURVES_FIRST_MS : 0))]);
      if (signal.aborted) return;
      await this.loadTables(signal);
      if (!this.group) await this.loadGroups(by, legend, problem, signal);
      this.listen(problem, signal);
    } catch (error) {
      if (error.name === 'AbortError' || signal.aborted) return;
      if (!error.lines) console.error(error);
      replace(this.content, errorList(error.lines ?? [String(error)]));
    }
  }

  listen(problem, signal) {
    const heard = new Set();
    let timer = null;
    const later = () => {
      timer ??= setTimeout(() => {
        timer = null;
        this.loadTables(signal).catch((error) => error.status && toastError(error));
      }, DIFFERENCES_MS);
    };
    signal.addEventListener('abort', () => clearTimeout(timer));
    stream(['runs'], this.runs, {
      runs: ({all, changed}) => {
        const ours = (all ?? changed).filter(({name}) => this.runs.includes(name));
        const isNew = ours.some((run) => run.step !== this.known.get(run.name)?.step || run.status !== this.known.get(run.name)?.status);
        for (const run of ours) this.known.set(run.name, run);
        this.tellStatuses();
        if (isNew) later();
      },
      events: ({run, events}) => {
        // The first message says where the stream begins: earlier messages may be later than the charts.
        const isFirst = !heard.has(run);
        heard.add(run);
        if (isFirst || events.some(({event}) => event === 'train' || event === 'eval')) this.charts.refresh();
      },
      problem: ({errors}) => replace(problem, errorList(errors)),
    }, signal);
  }

  shown() {
    return this.runs.filter((name) => !this.hidden.has(name));
  }

  shownNames() {
    return [...new Set(this.runs.flatMap((run) => this.names[run] ?? []))];
  }

  seriesOf({run, name}, group) {
    const {mode, event, metric: own} = parseName(name), found = this.groups[run];
    const style = this.styles.get(found ? found.runs[0] : run), owner = found ? found.label : run;
    const several = new Set(group.names.map((each) => parseName(each).metric)).size > 1;
    const what = [mode !== event && mode, event === 'eval' && 'validation', several && event === 'train' && 'training', several && own.replace(/^(training|validation)_/, '') !== group.title && own]
      .filter(Boolean).join(' ');
    const kind = {train: 'training', eval: 'validation'}[event];
    return {label: what ? `${owner} · ${what}` : owner, owner, kind, ...style, ...(event === 'eval' ? {dash: style.validation, points: true} : {})};
  }

  // The groups.

  /** The choice of what runs of one group agree in. Its fields are known when they were loaded. */
  grouping() {
    const by = element('select', {'aria-label': 'Group by', onchange: () => {
      this.group = by.value;
      this.changed(this.names);
    }});
    this.tellGrouping(by);
    return by;
  }

  tellGrouping(by) {
    const fields = this.fields.map((name) => [name, name.slice(name.lastIndexOf('.') + 1)]);
    const others = this.group && ![ALL_FIELDS, 'tag', 'folder', ...this.fields].includes(this.group) ? [[this.group, this.group]] : [];
    replace(by, [['', 'No groups'], [ALL_FIELDS, 'Group by all but seeds'], ['tag', 'Group by tags'], ['folder', 'Group by folder or sweep'],
      ...[...fields, ...others].map(([name, text]) => [name, `Group by ${text}`])].map(([value, text]) =>
      element('option', {value, selected: value === this.group, title: value}, text)));
  }

  async loadGroups(by, legend, problem, signal) {
    try {
      const found = await get('/api/groups', {run: this.runs, by: this.group === ALL_FIELDS ? null : this.group || 'tag'}, {signal});
      if (signal.aborted) return;
      this.fields = found.fields;
      this.tellGrouping(by);
      if (!this.group) return;
      this.groups = found.groups;
      const styles = found.groups.map((_, slot) => styleOf(slot));
      this.styles = new Map(found.groups.flatMap(({runs}, index) => runs.map((name) => [name, styles[index]])));
      this.tellChips();
      replace(legend, found.groups.map(({label, runs}, index) => element('span', {class: 'plot-entry'}, swatch(styles[index]),
        element('span', {}, label), element('span', {class: 'faint'}, plural(runs.length, 'run')))));
    } catch (error) {
      if (!error.status) throw error;
      replace(problem, errorList(error.lines));
    }
  }

  // The runs.

  adder() {
    const list = element('datalist', {id: 'compare-runs'}, [...this.known.keys()].map((value) => element('option', {value})));
    const input = element('input', {type: 'text', list: 'compare-runs', placeholder: 'Add a run', 'aria-label': 'Add a run', autocomplete: 'off', onchange: () => {
      const name = input.value;
      if (!this.known.has(name) || this.runs.includes(name) || this.runs.length >= MAX_RUNS) return;
      input.value = '';
      this.runs.push(name);
      this.changed();
    }});
    return element('span', {}, input, list);
  }

  views() {
    return viewsButton('compare', this.root, {queryOf: () => new URLSearchParams(location.search),
      open: (query) => navigate(`/compare?${query}`), signal: this.signal});
  }

  tellChips() {
    replace(this.chips, this.runs.map((name) => {
      const style = this.styles.get(name), isShown = !this.hidden.has(name);
      return element('span', {class: ['compare-chip', !isShown && 'off'], dataset: {run: name}},
        element('button', {class: 'link', type: 'button', 'aria-pressed': String(isShown), title: isShown ? 'Hide its curves' : 'Show its curves', onclick: () => this.toggle(name)},
          swatch(style), element('span', {class: 'cut'}, name)),
        element('span', {class: 'compare-status'}, status(this.known.get(name)?.status ?? 'unknown')),
        element('button', {class: 'icon small', type: 'button', 'aria-label': `Remove ${name}`, onclick: () => {
          this.runs = this.runs.filter((each) => each !== name);
          this.hidden.delete(name);
          this.changed();
        }}, '×'));
    }));
  }

  tellStatuses() {
    for (const chip of this.chips.children) {
      const run = this.known.get(chip.dataset.run);
      if (run && chip.querySelector('.word').textContent !== run.status) replace(chip.querySelector('.compare-status'), status(run.status, run.reason));
    }
  }

  toggle(name) {
    if (!this.hidden.delete(name)) this.hidden.add(name);
    setQuery({off: [...this.hidden]});
    this.tellChips();
    this.charts?.refresh();
    if (this.tables) this.loadTables(this.leave.signal).catch((error) => error.status && toastError(error));
  }

  // The tables.

  async loadTables(signal) {
    const all = this.query.get('all') === '1', {styles} = this, asked = this.asked = {};
    const found = await get('/api/compare', {run: this.runs, all}, {signal});
    if (signal.aborted) return;
    const only = element('input', {type: 'checkbox', checked: !all, onchange: () => {
      this.query.set('all', only.checked ? '' : '1');
      setQuery({all: !only.checked});
      this.loadTables(signal).catch(toastError);
    }});
    const search = element('input', {type: 'search', placeholder: 'Search', 'aria-label': 'Search fields', value: this.query.get('field') ?? '', oninput: () => {
      this.query.set('field', search.value);
      setQuery({field: search.value});
      tell();
    }});
    const fields = element('div', {}), count = element('span', {class: 'faint'});
    const tell = () => {
      const text = search.value.toLowerCase();
      const rows = Object.entries(found.params).filter(([name]) => name.toLowerCase().includes(text));
      setText(count, `${integer(rows.length)} of ${integer(Object.keys(found.params).length)}`);
      replace(fields, rows.length ? this.columns(rows, (value) => value === '-' ? '–' : field(value), 'Field', (values) => new Set(values.map(String)).size > 1) :
        element('p', {class: 'soft'}, this.runs.length > 1 ? 'No differences.' : 'Add another run to see differences.'));
    };
    tell();
    const origins = Object.entries(found.origins), best = Object.keys(found.best)[0];
    const bars = this.runs.length > 1 && await barsOf({runs: this.shown(), names: this.shownNames(), first: best && `eval/${best}`, query: this.query, groups: this.groups,
      styleOf: (name) => styles.get(name), signal});
    if (signal.aborted || asked !== this.asked) return; // Another answer is on its way.
    const focused = this.tables.contains(document.activeElement) ? nameOf(document.activeElement) : null;
    replace(this.tables,
      element('section', {class: 'compare-part'}, element('h2', {}, 'Metrics'), this.metrics(found)),
      bars, scatterOf(found, this.query, (name) => styles.get(name).colour),
      element('section', {class: 'compare-part'}, element('div', {class: 'toolbar'}, element('h2', {}, 'Configuration'),
        element('label', {class: 'inline'}, only, 'Only differences'), search, count), fields),
      element('section', {class: 'compare-part'}, element('h2', {}, 'Versions, commits, devices'), origins.length ?
        this.columns(origins, (value) => value === null || value === '-' ? '–' : String(value), '', () => true) :
        element('p', {class: 'soft'}, this.runs.length > 1 ? 'No differences in experiment, mode, seed, devices, commit and versions.' : '')));
    // New values of a live run must not take the keyboard's place.
    if (focused) [...this.tables.querySelectorAll('a, button, input, select')].find((each) => nameOf(each) === focused)?.focus({preventScroll: true});
  }

  /** A table with a row for each run. */
  metrics(found) {
    const names = [...new Set([...Object.keys(found.best), ...Object.keys(found.last)])];
    if (!names.length) return element('p', {class: 'soft'}, 'None yet.');
    const heads = ['Run', 'Status', 'Step', ...names.flatMap((name) => found.best[name] ? [`best ${name}`, `last ${name}`] : [name])];
    return element('div', {class: 'scroll'}, element('table', {class: 'compare-table'},
      element('thead', {}, element('tr', {}, heads.map((text, index) => element('th', {class: index > 1 && 'number', scope: 'col'}, text)))),
      element('tbody', {}, found.names.map((name, index) => element('tr', {}, this.runCell(name),
        element('td', {}, status(found.statuses[index])), element('td', {class: 'number'}, integer(found.steps[index])),
        names.flatMap((each) => {
          const last = element('td', {class: 'number'}, number(found.last[each]?.[index]));
          const best = found.best[each]?.[index];
          if (!found.best[each]) return [last];
          return [element('td', {class: 'number nowrap', title: best ? `step ${best[1]}` : null}, best ? [element('b', {}, number(best[0])), element('span', {class: 'faint'}, ` @${integer(best[1])}`)] : '–'), last];
        }))))));
  }

  runCell(name) {
    return element('th', {class: 'compare-run', scope: 'row'}, swatch(this.styles.get(name)), ' ', link(`/run?${new URLSearchParams({run: name})}`, name));
  }

  /** A table with a column for each run. */
  columns(rows, textOf, head, differs) {
    return element('div', {class: 'scroll'}, element('table', {class: 'compare-table compare-columns'},
      element('thead', {}, element('tr', {}, element('th', {scope: 'col'}, head), this.runs.map((name) => this.runCell(name)))),
      element('tbody', {}, rows.map(([name, values]) => element('tr', {class: differs(values) && 'differs'},
        element('th', {class: 'mono', scope: 'row'}, name), values.map((value) => element('td', {class: 'mono'}, textOf(value))))))));
  }
}

/** What tells a control from the others of the tables. */
function nameOf(control) {
  const section = control.closest('section')?.getAttribute('aria-label') ?? '';
  return `${section} ${control.getAttribute('aria-label') ?? control.closest('label')?.firstChild.textContent ?? control.textContent}`;
}

function number(value) {
  return toNumber(value) === null ? '–' : metric(value);
}

/** The colour and the dashes of each run: the same for a run in this browser, wherever it is compared. */
function stylesOf(runs) {
  const count = COLOURS * DASHES.length;
  let kept = {};
  try {
    kept = JSON.parse(localStorage.getItem('run-colours')) ?? {};
  } catch (error) {
    // None, or none that can be read: by their order.
  }
  const taken = new Map(), slots = new Map();
  for (const name of runs) {
    const slot = Object.hasOwn(kept, name) && Number.isInteger(kept[name]) ? kept[name] % count : null;
    if (slot !== null && slot >= 0 && !taken.has(slot)) {
      taken.set(slot, name);
      slots.set(name, slot);
    }
  }
  for (const name of runs.filter((each) => !slots.has(each))) {
    let slot = 0;
    while (taken.has(slot) && slot < count - 1) slot += 1;
    if (taken.has(slot)) slot = slots.size % count;
    taken.set(slot, name);
    slots.set(name, slot);
  }
  try {
    const all = {...kept, ...Object.fromEntries(slots)};
    localStorage.setItem('run-colours', JSON.stringify(Object.fromEntries(Object.entries(all).slice(-MAX_KEPT))));
  } catch (error) {
    // No storage: the colours are those of this view.
  }
  return new Map([...slots].map(([name, slot]) => [name, styleOf(slot)]));
}

function styleOf(slot) {
  const turn = Math.floor(slot / COLOURS) % DASHES.length;
  return {colour: `--series-${slot % COLOURS + 1}`, dash: DASHES[turn], validation: VALIDATION_DASHES[turn]};
}
