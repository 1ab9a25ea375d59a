// Completions of a run: a table for each step, and those of another run beside them.
import {get} from './api.js';
import {element, replace, setText} from './dom.js';
import {integer, metric, toNumber} from './format.js';
import {empty} from './parts.js';
import {setQuery} from './router.js';
import {toastError} from './toast.js';

const TEXTS = ['prompts', 'answers', 'completions'];
const TITLES = {prompts: 'Prompt', answers: 'Answer in the data', completions: 'Completion', num_tokens: 'Tokens', advantages: 'Advantage'};

export async function completions(page, signal) {
  const load = async (run) => (await get('/api/run/completions', {run}, {signal})).logs;
  const [first, {runs}] = await Promise.all([load(page.name), get('/api/runs', {}, {signal})]);
  let logs = first, others = [], beside = page.query.get('beside') ?? '';
  const step = element('span', {class: 'soft nowrap', role: 'status'}), table = element('div', {class: 'completions', tabindex: 0, role: 'region', 'aria-label': 'Completions'});
  const slider = element('input', {type: 'range', min: 0, 'aria-label': 'Step', oninput: tell});
  const choice = element('select', {'aria-label': 'Compare with', onchange: () => choose(choice.value)}, element('option', {value: ''}, 'no run'),
    runs.map(({name}) => name).filter((name) => name !== page.name).map((name) => element('option', {value: name, selected: name === beside}, name)));
  const node = element('div', {});

  async function choose(name) {
    beside = name;
    setQuery({beside: name || null});
    try {
      others = name ? await load(name) : [];
      tell();
    } catch (error) {
      if (error.name !== 'AbortError') toastError(error);
    }
  }

  /** Shows the logs; the slider stays at the last one if it was there. */
  function show() {
    if (!logs.length) {
      replace(node, empty('No completions', 'A fine-tuning logs completions of validation prompts every `task.completions.interval` steps.'));
      return;
    }
    const atEnd = slider.value === slider.max;
    slider.max = logs.length - 1;
    if (atEnd || !node.contains(table)) slider.value = slider.max;
    slider.hidden = logs.length < 2;
    if (!node.contains(table)) replace(node, element('div', {class: 'toolbar'}, slider, step, element('label', {class: 'inline'}, 'Compare with ', choice)), table);
    tell();
  }

  function tell() {
    const log = logs[Number(slider.value)];
    if (!log) return;
    const other = others.findLast((each) => each.step <= log.step) ?? others[0] ?? null;
    setText(step, `step ${integer(log.step)}${other ? ` · ${beside}: step ${integer(other.step)}` : beside ? ` · ${beside}: no completions` : ''}`);
    replace(table, rows(log, other, page.name, beside));
  }

  show();
  if (beside) await choose(beside);
  return {node, events: (news) => {
    if (news.some(({event}) => event === 'completions' || event === 'restored')) load(page.name).then((found) => {
      logs = found;
      show();
    }).catch((error) => error.name !== 'AbortError' && toastError(error));
  }};
}

function rows({columns}, other, name, beside) {
  const numbers = Object.keys(columns).filter((key) => !TEXTS.includes(key)), count = columns.completions?.length ?? 0;
  const places = matches(columns.prompts ?? [], other?.columns.prompts ?? []);
  const head = [...TEXTS.filter((key) => key !== 'completions' && columns[key]).map((key) => TITLES[key]), other ? name : TITLES.completions,
    ...(other ? [beside] : []), ...numbers.map((key) => TITLES[key] ?? key.replace(/^rewards\//, ''))];
  return element('table', {}, element('thead', {}, element('tr', {}, head.map((text) => element('th', {}, text)))),
    element('tbody', {}, Array.from({length: count}, (_, row) => element('tr', {},
      ['prompts', 'answers'].filter((key) => columns[key]).map((key) => text(columns[key][row])), text(columns.completions[row], 'completion'),
      other && text(other.columns.completions?.[places[row]] ?? '', 'completion'),
      numbers.map((key) => element('td', {class: 'number'}, toNumber(columns[key][row]) === null ? '–' : metric(columns[key][row])))))));
}

/** For each prompt the place of the same one in the other run: the second of two equal ones for the second. */
function matches(prompts, others) {
  const taken = new Set();
  return prompts.map((prompt) => {
    const place = others.findIndex((each, index) => each === prompt && !taken.has(index));
    taken.add(place);
    return place;
  });
}

function text(value, kind = '') {
  return element('td', {class: kind}, element('div', {class: 'completion-text anywhere'}, String(value)));
}
