// A sweep from the form of a new run: fields with several values, the number of points, and the start.
import {post} from '../api.js';
import {element, replace, setText} from '../dom.js';
import {plural} from '../format.js';
import {errorList} from '../parts.js';

const PAUSE_MS = 250; // After the last key, until the server is asked.
const KINDS = [['values', 'values'], ['linear', 'range'], ['log', 'logarithmic range']];
const METHODS = [['grid', 'Grid: all combinations'], ['random', 'Random points'], ['bayes', 'Bayesian: points learn from results']];
const ENDS = [['', 'Runs train to the end'], ['hyperband', 'Hyperband ends poor runs']];
const GOALS = [['', 'goal'], ['maximize', 'maximize'], ['minimize', 'minimize']];
const EMPTY = {name: '', kind: 'values', values: '', low: '', high: '', count: 3};

let number = 0;

/**
 * The part of the form.
 *
 * @param {Object} options - `kept`: what `changed` gave before, or null; `formOf()`: the form, as a request has it; `names()`: those
 *   of its fields; `metric()`: {name, goal} of its configuration; `changed(values)`: the part has other contents, null for none;
 *   `started(name)`: there is such a sweep now; `signal`.
 * @returns {Object} `node`; `check()`, when the form has changed; `tellNames()`, when its fields have.
 */
export function sweepPart({kept, formOf, names, metric, changed, started, signal}) {
  const state = {name: '', method: 'grid', count: 10, metric: null, goal: null, early: '', minIter: 3, slots: 1, ...kept, rows: kept?.rows?.map((row) => ({...EMPTY, ...row})) ?? []};
  const id = `sweep-${++number}`, list = element('datalist', {id: `${id}-names`}), rows = element('div', {class: 'sweep-rows'});
  const count = element('b', {role: 'status', class: 'sweep-points'}), problem = element('div', {}), file = element('pre', {tabindex: 0, 'aria-label': 'The file of the sweep'});
  const text = element('p', {class: 'hint', role: 'status'});
  let timer = null, asked = 0, isStarting = false, answer = null;

  const input = (label, name, type = 'text', more = {}) => element('input', {type, 'aria-label': label, value: state[name] ?? '', spellcheck: 'false', autocomplete: 'off',
    oninput: (event) => change(name, type === 'number' ? Math.max(1, Math.round(Number(event.target.value)) || 1) : event.target.value), ...more});
  const choice = (label, value, choices, act) => element('select', {'aria-label': label, onchange: (event) => act(event.target.value)},
    choices.map(([each, words]) => element('option', {value: each, selected: each === value}, words)));
  const nameInput = input('Name of the sweep', 'name'), countInput = input('Number of points', 'count', 'number', {min: 1, class: 'sweep-number'});
  const metricInput = input('Metric to optimize', 'metric', 'text', {placeholder: 'none'}), goalInput = choice('Goal', state.goal ?? '', GOALS, (value) => change('goal', value));
  const numberOf = element('label', {class: 'inline'}, 'points', countInput);
  const bandsOf = element('label', {class: 'inline'}, 'after', input('Values of the metric before the first comparison', 'minIter', 'number', {min: 1, class: 'sweep-number'}), 'values');
  const start = element('button', {class: 'primary', type: 'button', disabled: true, onclick: begin}, 'Start sweep');
  const add = element('button', {class: 'small', type: 'button', onclick: () => {
    state.rows.push({...EMPTY});
    draw();
    rows.lastElementChild.querySelector('input').focus();
    note();
  }}, 'Add a field');
  const node = element('details', {class: 'card base sweep', open: state.rows.length > 0, ontoggle: () => {
    if (!node.open || state.rows.length) return;
    state.rows.push({...EMPTY});
    draw();
    check();
  }}, element('summary', {}, 'Sweep: several values of some fields'), list, rows, add,
  element('div', {class: 'toolbar'}, element('label', {class: 'inline'}, 'Name', nameInput),
    choice('Method', state.method, METHODS, (value) => {
      change('method', value);
      draw();
    }), numberOf, element('label', {class: 'inline'}, 'Metric', metricInput), goalInput,
    choice('Early termination', state.early, ENDS, (value) => {
      change('early', value);
      draw();
    }), bandsOf,
    element('label', {class: 'inline'}, 'Runs at once', input('Runs at the same time', 'slots', 'number', {min: 1, class: 'sweep-number'}))),
  problem, element('div', {class: 'toolbar'}, start, count), text,
  element('details', {}, element('summary', {}, 'sweep.yaml'), file));

  /** The rows of the fields. */
  function draw() {
    numberOf.hidden = state.method === 'grid';
    bandsOf.hidden = state.early !== 'hyperband';
    replace(rows, state.rows.map((row, index) => {
      const which = `${index + 1}`, cell = (label, name, more = {}) => element('input', {type: 'text', 'aria-label': `${label} of field ${which}`, value: row[name], spellcheck: 'false',
        autocomplete: 'off', oninput: (event) => edit(row, name, event.target.value), ...more});
      const ends = [element('label', {class: 'inline'}, 'from', cell('Lower end', 'low', {class: 'sweep-number'})), element('label', {class: 'inline'}, 'to', cell('Upper end', 'high', {class: 'sweep-number'})),
        state.method === 'grid' && element('label', {class: 'inline'}, 'in', element('input', {type: 'number', min: 2, class: 'sweep-number', 'aria-label': `Number of values of field ${which}`,
          value: row.count, oninput: (event) => edit(row, 'count', Math.max(1, Math.round(Number(event.target.value)) || 1))}), 'values')];
      return element('div', {class: 'toolbar sweep-row'}, cell('Name', 'name', {list: list.id, placeholder: 'field', class: 'mono sweep-name'}),
        choice(`Kind of the values of field ${which}`, row.kind, KINDS, (value) => {
          edit(row, 'kind', value);
          draw();
          rows.children[index].querySelector('select').focus();
        }), row.kind === 'values' ? cell('Values', 'values', {placeholder: '1e-2, 1e-3', class: 'mono sweep-values'}) : ends,
        element('button', {class: 'icon small', type: 'button', 'aria-label': `Remove field ${which} from the sweep`, onclick: () => {
          state.rows.splice(index, 1);
          draw();
          note();
          add.focus();
        }}, '×'));
    }));
  }

  function edit(row, name, value) {
    row[name] = value;
    note();
  }

  function change(name, value) {
    state[name] = value;
    note();
  }

  function note() {
    changed(state.rows.length ? state : null);
    check();
  }

  function body() {
    return {...formOf(), name: state.name.trim(), method: state.method, count: state.count, metric: metricInput.value, goal: goalInput.value,
      min_iter: state.early === 'hyperband' ? state.minIter : null, slots: state.slots, parameters: state.rows};
  }

  /** Asks the server for the number of points, after a pause. */
  function check() {
    clearTimeout(timer);
    if (!node.open) return;
    start.disabled = true;
    if (state.metric === null && state.goal === null) { // Nobody has chosen: those of the configuration.
      const found = metric();
      metricInput.value = found.name;
      goalInput.value = found.goal;
    }
    if (!state.rows.some((row) => row.name.trim())) {
      replace(problem);
      setText(count, state.rows.length ? 'Choose a field and its values.' : 'Add a field.');
      return;
    }
    timer = setTimeout(async () => {
      const own = asked += 1;
      try {
        const found = await post('/api/new/sweep/check', body(), {signal});
        if (own === asked) tell(found);
      } catch (error) {
        if (error.name !== 'AbortError') replace(problem, errorList(error.lines ?? [String(error)]));
      }
    }, PAUSE_MS);
  }

  function tell(found) {
    answer = found;
    nameInput.placeholder = found.name;
    replace(problem, errorList(found.lines));
    setText(count, found.points === null ? '' : plural(found.points, 'point'));
    setText(file, found.file && `# ${found.command}\n${found.file}`);
    start.disabled = isStarting || found.points === null;
  }

  /** Starts it. The command checks the points in a process with TensorFlow, which takes some seconds. */
  async function begin() {
    const since = Date.now(), show = () => setText(text, `official-ext sweep checks the points with TensorFlow: ${Math.round((Date.now() - since) / 1000)} s…`);
    isStarting = start.disabled = true;
    show();
    const clock = setInterval(show, 1000);
    try {
      const {sweep} = await post('/api/new/sweep/start', {...body(), name: state.name.trim() || answer.name}, {signal});
      started(sweep);
    } catch (error) {
      if (error.name === 'AbortError') return;
      replace(problem, errorList(error.lines ?? [String(error)]));
    } finally {
      clearInterval(clock);
      setText(text, '');
      isStarting = false;
      start.disabled = false;
    }
  }

  function tellNames() {
    replace(list, names().map((value) => element('option', {value})));
  }

  signal.addEventListener('abort', () => clearTimeout(timer));
  draw();
  return {node, check, tellNames};
}
