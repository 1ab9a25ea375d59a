// The parts of a run's page: log, configuration, checkpoints, events, images, and its environment.
import {get, post, withQuery} from './api.js';
import {element, replace, setText, withCode} from './dom.js';
import {dialog} from './dialog.js';
import {bytes, duration, field, integer, metric, plural, time, toNumber} from './format.js';
import {command, copyButton, empty, errorList, status} from './parts.js';
import {setQuery} from './router.js';
import {toast, toastError} from './toast.js';

const POLL_MS = 700;
const MAX_LINES = 5000;
const COLOURS = /\\x1b\[[0-9;]*m/g; // The server shows them as text.

/** Calls a function again and again, until the signal fires; not while nobody sees the page. */
function every(ms, signal, act) {
  let timer = null;
  const next = () => {
    timer = setTimeout(async () => {
      if (!document.hidden) await act();
      if (!signal.aborted) next();
    }, ms);
  };
  signal.addEventListener('abort', () => clearTimeout(timer));
  next();
}

// The log.

export async function log(page, signal) {
  const modes = page.about.modes.map(({mode}) => mode);
  let mode = modes.includes(page.query.get('mode')) ? page.query.get('mode') : modes[0] ?? 'train';
  let place = null, following = true, filter = '', lines = [];
  const text = element('pre', {class: 'log', tabindex: 0, 'aria-label': 'Output of the run', onscroll: scrolled});
  const none = element('div', {});
  const follow = element('input', {type: 'checkbox', checked: true, onchange: () => setFollowing(follow.checked)});
  const search = element('input', {type: 'search', placeholder: 'Lines with', 'aria-label': 'Only lines with', oninput: () => {
    filter = search.value.toLowerCase();
    showAll();
  }});
  const choice = element('select', {'aria-label': 'Process', hidden: modes.length < 2, onchange: () => {
    mode = choice.value;
    setQuery({mode});
    place = null;
    load();
  }}, modes.map((value) => element('option', {value, selected: value === mode}, value)));
  const node = element('div', {class: 'log-part'},
    element('div', {class: 'toolbar'}, choice, search, element('label', {class: 'inline'}, follow, 'Follow'), element('span', {class: 'grow'}),
      element('button', {class: 'small', type: 'button', onclick: copyAll}, 'Copy')), none, text);

  async function copyAll() {
    const {copy} = await import('./parts.js');
    if (await copy(lines.join('\n'))) toast(`${plural(lines.length, 'line')} copied`);
  }

  function matches(line) {
    return !filter || line.toLowerCase().includes(filter);
  }

  function showAll() {
    text.textContent = lines.filter(matches).map((line) => `${line}\n`).join('');
    toEnd();
  }

  function scrolled() {
    if (text.scrollHeight - text.scrollTop - text.clientHeight < 30) {
      if (!following) setFollowing(true);
    } else if (following && text.scrollTop < lastTop) {
      setFollowing(false);
    }
    lastTop = text.scrollTop;
  }
  let lastTop = 0;

  function setFollowing(value) {
    following = follow.checked = value;
    toEnd();
  }

  function toEnd() {
    if (following) text.scrollTop = text.scrollHeight;
  }

  async function load() {
    const answer = await get('/api/run/log', {run: page.name, mode, from: place}, {signal});
    answer.lines = answer.lines.map((line) => line.replace(COLOURS, ''));
    if (!answer.follows) {
      lines = answer.lines;
      place = answer.place;
      showAll();
    } else if (answer.lines.length) {
      place = answer.place;
      lines.push(...answer.lines);
      const tooMany = lines.length - MAX_LINES;
      if (tooMany > 0) {
        lines.splice(0, tooMany);
        showAll();
      } else {
        text.append(answer.lines.filter(matches).map((line) => `${line}\n`).join(''));
        toEnd();
      }
    }
    text.hidden = !lines.length;
    replace(none, !lines.length && empty('No log',
      'Runs of train.py and background runs write `run.log`. Other drivers print to their terminal, and a remote folder has no log.'));
  }

  await load();
  every(POLL_MS, signal, async () => {
    try {
      await load();
    } catch (error) {
      if (error.status) toastError(error);
    }
  });
  requestAnimationFrame(toEnd);
  return {node};
}

// The configuration.

const SHOWN = [['', 'All fields'], ['given', 'Values set by the command'], ['changed', 'Values that differ from the defaults']];

export async function config(page, signal) {
  const {values, short_names: shortNames, given} = await get('/api/run/config', {run: page.name}, {signal});
  const names = Object.keys(values);
  if (!names.length) return {node: element('div', {}, empty('No configuration', 'params.yaml of the run is missing or unreadable.'))};
  const short = new Map(Object.entries(shortNames).map(([name, path]) => [path, name])), isGiven = new Set(given);
  const rows = names.map((path) => {
    const text = field(values[path]), own = element('td', {class: 'mono anywhere soft'});
    return {path, text, own, words: `${path} ${short.get(path) ?? ''} ${text}`.toLowerCase(), node: element('tr', {class: isGiven.has(path) && 'given'},
      element('td', {class: 'mono anywhere', title: isGiven.has(path) ? 'Set by the command' : null}, path), element('td', {class: 'mono soft'}, short.get(path) ?? ''),
      element('td', {class: 'mono anywhere'}, text), own)};
  });
  let defaults = null;
  const search = element('input', {type: 'search', placeholder: 'Search', 'aria-label': 'Search fields', value: page.query.get('field') ?? '', oninput: tell});
  const choice = element('select', {'aria-label': 'Which fields', onchange: choose}, SHOWN.map(([value, text]) =>
    element('option', {value, selected: value === (page.query.get('fields') ?? '')}, text)));
  const count = element('span', {class: 'faint'}), body = element('tbody', {}), problem = element('div', {});
  const last = element('th', {}, 'Default of the experiment');
  const button = element('button', {class: 'small', type: 'button', onclick: async () => {
    const {copy} = await import('./parts.js');
    if (await copy(rows.filter(visible).map(({path, text}) => `${path}: ${text}`).join('\n'))) toast('Copied');
  }}, 'Copy');

  function visible({path, words}) {
    const isShown = choice.value === 'given' ? isGiven.has(path) : choice.value === 'changed' ? defaults && Object.hasOwn(defaults, path) : true;
    return isShown && words.includes(search.value.toLowerCase());
  }

  async function choose() {
    replace(problem);
    if (choice.value === 'changed' && !defaults) {
      setText(count, 'Reading the defaults; TensorFlow takes some seconds…');
      try {
        ({defaults} = await get('/api/run/config', {run: page.name, defaults: true}, {signal}));
        for (const {path, own} of rows) setText(own, Object.hasOwn(defaults, path) ? defaults[path] === '-' ? '–' : field(defaults[path]) : '');
      } catch (error) {
        if (error.name === 'AbortError') return;
        replace(problem, errorList(error.lines ?? [String(error)]));
        choice.value = '';
      }
    }
    tell();
  }

  function tell() {
    setQuery({field: search.value, fields: choice.value});
    const shown = rows.filter(visible);
    last.hidden = !defaults;
    for (const {own} of rows) own.hidden = !defaults;
    replace(body, shown.map(({node}) => node));
    setText(count, `${integer(shown.length)} of ${plural(rows.length, 'field')}`);
  }
  choose();
  return {node: element('div', {}, element('div', {class: 'toolbar'}, search, choice, count, element('span', {class: 'grow'}), button), problem,
    element('div', {class: 'scroll'}, element('table', {class: 'config'}, element('thead', {}, element('tr', {},
      ['Field', 'Short name', 'Value'].map((text) => element('th', {}, text)), last)), body)))};
}

// Checkpoints.

export async function checkpoints(page, signal) {
  const node = element('div', {});
  const load = async () => {
    const {checkpoints: found} = await get('/api/run/checkpoints', {run: page.name}, {signal});
    replace(node, found.length ? table(found) : empty('No checkpoints yet', 'The first one is written after `checkpoint_interval` steps, or when the run is stopped.'));
  };

  function table(found) {
    const names = {training: 'resume', best: 'best metrics', average: 'moving average'};
    const size = found.reduce((sum, each) => sum + each.size, 0);
    return [element('p', {class: 'soft'}, `${plural(found.length, 'checkpoint')}, ${bytes(size)}`),
      element('div', {class: 'scroll'}, element('table', {class: 'checkpoints'}, element('thead', {}, element('tr', {},
        ['Checkpoint', 'Step', 'For', 'Size', 'Written', 'Metrics', ''].map((text) => element('th', {}, text)))),
      element('tbody', {}, [...found].reverse().map((each) => element('tr', {},
        element('td', {class: 'mono anywhere'}, each.name), element('td', {class: 'number'}, integer(each.step)),
        element('td', {class: 'nowrap'}, each.damage ? element('span', {class: 'bad'}, each.damage) : each.is_best ? element('b', {class: 'good'}, '★ best') : names[each.kind]),
        element('td', {class: 'number nowrap'}, bytes(each.size)), element('td', {class: 'nowrap'}, time(each.time)),
        element('td', {class: 'soft'}, numbers(each.logs)),
        element('td', {class: 'nowrap'}, !each.damage && element('button', {class: 'small', type: 'button', onclick: () => evaluate(each)}, 'Evaluate')))))))];
  }

  async function evaluate(each) {
    try {
      await post('/api/run/evaluate', {run: page.name, checkpoint: each.name});
      toast(`Evaluating ${each.name}; the output is in the log, process eval`, {action: {text: 'Log', do: async () => {
        await page.askAbout();
        setQuery({mode: 'eval'});
        page.query.set('mode', 'eval');
        page.open('log');
      }}});
      await page.watchMode('eval');
    } catch (error) {
      toastError(error);
    }
  }

  await load();
  return {node, events: (found) => {
    if (found.some(({event}) => ['checkpoint', 'eval', 'rollback', 'finished', 'preempted'].includes(event))) load().catch(toastError);
  }};
}

function numbers(values, limit = 4) {
  return Object.entries(values).filter(([, value]) => toNumber(value) !== null).slice(0, limit).map(([name, value]) => `${name} ${metric(value)}`).join('  ');
}

// Events.

const KINDS = {failed: 'bad', checkpoint_failed: 'bad', hung: 'bad', rollback: 'warn', update_skipped: 'warn', preempted: 'warn',
  learning_rate_reduced: 'warn', early_stopped: 'warn', finished: 'good', restored: 'accent', start: 'accent', checkpoint: 'idle', eval: 'eval', completions: 'eval'};

export async function events(page, signal) {
  const node = element('div', {});
  const hidden = new Set(page.query.getAll('hide'));
  let found = {events: [], num_left_out: 0};

  async function load() {
    found = await get('/api/run/timeline', {run: page.name}, {signal});
    tell();
  }

  function tell() {
    const all = found.events;
    if (!all.length) {
      replace(node, empty('No events yet', 'The first event is the start of the run.'));
      return;
    }
    const kinds = [...new Set(all.map(({event}) => event))], shown = all.filter(({event}) => !hidden.has(event));
    replace(node,
      element('div', {class: 'toolbar', role: 'group', 'aria-label': 'Kinds of events'}, kinds.map((kind) => element('button', {class: 'small', type: 'button',
        'aria-pressed': String(!hidden.has(kind)), onclick: () => {
          if (!hidden.delete(kind)) hidden.add(kind);
          setQuery({hide: [...hidden]});
          tell();
        }}, element('span', {class: 'event-dot', dataset: {kind: KINDS[kind] ?? 'idle'}}), `${kind} ${integer(all.filter(({event}) => event === kind).reduce((sum, {count}) => sum + count, 0))}`))),
      line(shown), found.num_left_out > 0 && element('p', {class: 'faint'}, `${integer(found.num_left_out)} earlier events are not shown.`),
      element('ol', {class: 'event-list', reversed: true}, [...shown].reverse().map(row)));
  }

  function row(each) {
    const steps = each.count > 1 ? `${integer(each.count)} × · steps ${integer(each.first_step)} to ${integer(each.step)}` : `step ${integer(each.step)}`;
    return element('li', {class: each.is_superseded && 'superseded'},
      element('time', {class: 'faint nowrap'}, time(each.time)), element('span', {class: 'event-dot', dataset: {kind: KINDS[each.event] ?? 'idle'}}),
      element('span', {class: 'nowrap'}, element('b', {}, each.event), each.mode && ` (${each.mode})`), element('span', {class: 'nowrap soft'}, steps),
      element('span', {class: 'event-values soft anywhere'}, valuesText(each.values), each.is_superseded && ' · superseded by a resume or rollback'));
  }

  await load();
  return {node, events: (news) => {
    if (news.some(({event}) => event !== 'train')) load().catch(toastError);
  }};
}

function valuesText(values) {
  return Object.entries(values).map(([name, value]) => {
    const number = toNumber(value);
    return `${name} ${number === null ? value : name.endsWith('seconds') ? duration(number) : metric(number)}`;
  }).join(' · ');
}

/** The events on a line of time: an SVG, each with its text for whoever points at it. */
function line(shown) {
  const timed = shown.filter((each) => each.time !== null);
  if (timed.length < 2) return null;
  const first = Math.min(...timed.map((each) => each.time)), span = Math.max(...timed.map((each) => each.time)) - first || 1;
  const rows = {bad: 0, warn: 1, accent: 2, good: 2, eval: 3, idle: 4};
  return element('div', {class: 'event-line'}, element('svg:svg', {viewBox: '0 0 1000 76', preserveAspectRatio: 'none', role: 'img', 'aria-label': 'Events on a line of time'},
    timed.map((each) => {
      const kind = KINDS[each.event] ?? 'idle', x = 4 + 992 * (each.time - first) / span, y = 4 + 14 * rows[kind];
      return element('svg:rect', {x: x - 1.5, y, width: 3, height: 12, class: ['event-mark', each.is_superseded && 'superseded'], 'data-kind': kind},
        element('svg:title', {}, `${each.event} · step ${each.step} · ${time(each.time)}`));
    })), element('div', {class: 'event-ends faint'}, element('span', {}, time(first)), element('span', {}, duration(span)), element('span', {}, time(first + span))));
}

// Images.

export async function images(page, signal) {
  const {images: found} = await get('/api/run/images', {run: page.name}, {signal});
  if (!found.length) {
    return {node: element('div', {}, empty('No images', 'A task that logs tensors with three or four dimensions or confusion matrices to TensorBoard has images.'))};
  }
  const series = Map.groupBy(found, ({folder, tag, number}) => JSON.stringify([folder, tag, number]));
  const address = ({file, offset, number}) => withQuery('/api/run/image', {run: page.name, file, offset, number});
  const node = element('div', {class: 'image-cards'}, [...series.values()].map((all) => {
    const last = all.length - 1, title = `${all[0].folder} · ${all[0].tag}`;
    const step = element('span', {class: 'soft'}), picture = element('img', {loading: 'lazy', alt: title, width: all[0].width, height: all[0].height,
      onclick: () => dialog(title, element('img', {class: 'image-large', src: picture.getAttribute('src'), alt: title}), undefined, {wide: true, signal})});
    const slider = element('input', {type: 'range', min: 0, max: last, value: last, 'aria-label': `Step of ${title}`, hidden: !last, oninput: tell});
    function tell() {
      const image = all[Number(slider.value)];
      picture.setAttribute('src', address(image));
      setText(step, `step ${integer(image.step)}`);
    }
    tell();
    return element('figure', {class: 'card'}, element('figcaption', {}, element('b', {class: 'cut', title}, title), step), element('div', {class: 'image-frame'}, picture), slider);
  }));
  return {node};
}

// Its environment.

const ALIVE = new Set(['starting', 'running', 'stopping', 'hung']);

/** A process of the run, with a button that stops it. */
function processOf(page, {mode, status: word, reason, command: text}) {
  const stop = ALIVE.has(word) && element('button', {class: 'small', type: 'button', onclick: async () => {
    try {
      const {status: now} = await post('/api/run/stop', {run: page.name, mode});
      toast(`${mode}: ${now}`);
      await page.askAbout();
      page.open('about');
    } catch (error) {
      toastError(error);
    }
  }}, 'Stop');
  return element('div', {class: 'process'}, element('div', {class: 'toolbar'}, element('b', {}, mode), status(word, reason), stop), text && text !== page.about.record.command && command(text));
}

/** The size of a model at the start, and the estimate of the memory that a step takes. */
function modelFacts(model, memory) {
  if (!model) return [];
  const found = [['Parameters', integer(model.parameters)], ['Trained', model.trained_parameters ? integer(model.trained_parameters) : null],
    ['Weights', bytes(model.weight_bytes)], ['Gradients', model.gradient_bytes ? bytes(model.gradient_bytes) : null], ['Optimizer slots', model.slot_bytes ? bytes(model.slot_bytes) : null]];
  return memory ? [...found, ['Activations', bytes(memory.activations)], ['Peak of a step, estimated', bytes(memory.peak)], ['Available', memory.available ? bytes(memory.available) : null]] : found;
}

export async function about(page, signal) {
  const {record, profile, modes, tensorboard} = page.about, versions = record.versions ?? {};
  const spent = element('section', {class: 'card', hidden: true});
  get('/api/run/goodput', {run: page.name}, {signal}).then(({goodput}) => {
    spent.hidden = !goodput;
    if (goodput) replace(spent, element('h2', {}, 'Goodput'), goodputTable(goodput));
  }).catch(toastError); // A long file is read meanwhile.
  const size = modelFacts(record.model, record.memory);
  const facts = (values) => element('dl', {class: 'facts'}, values.filter(([, value]) => value !== null && value !== undefined && value !== '')
    .map(([name, value]) => [element('dt', {}, name), element('dd', {}, value)]));
  const parts = [
    element('section', {class: 'card wide'}, element('h2', {}, 'Command'), record.command ? command(record.command) : element('p', {class: 'soft'}, 'Unknown.'),
      record.cwd && element('p', {class: 'hint'}, 'in ', element('code', {}, record.cwd))),
    element('section', {class: 'card'}, element('h2', {}, 'Run'), facts([['Experiment', record.experiment], ['Mode', record.mode], ['Stage', record.stage],
      ['Seed', record.seed], ['Devices', record.devices], ['Step', record.step_shape && `${record.step_shape}: ${record.step_shape_reason ?? ''}`],
      ['Process', record.pid && `${record.pid} on ${record.host}`], ['Attempt', record.attempt], ['Started', time(record.started)], ['Finished', time(record.finished)],
      ['Error', record.error && withCode(record.error)], ['Started from', startedFrom(record.started_from)],
      ...Object.entries(record.balance ?? {}).map(([name, found]) => [name, found.map((each) => element('div', {}, each.text))])])),
    size.length && element('section', {class: 'card'}, element('h2', {}, 'Model and memory'), facts(size)),
    element('section', {class: 'card'}, element('h2', {}, 'Versions'), facts([['Git commit', record.git_commit && [element('code', {}, record.git_commit), ' ', copyButton(record.git_commit.replace('+changes', ''))]],
      ...Object.entries(versions).map(([name, version]) => [name, version])])),
    spent,
    element('section', {class: 'card'}, element('h2', {}, 'Profile'), profile ? profileTable(profile) :
      [element('p', {class: 'soft'}, 'No profile. This flag of train.py records two steps:'), command('--profile_steps=20,21')]),
    modes.length > 1 && element('section', {class: 'card wide'}, element('h2', {}, 'Processes'), modes.map((each) => processOf(page, each))),
    tensorboard && element('section', {class: 'card'}, element('h2', {}, 'TensorBoard'), element('p', {class: 'soft'}, 'Running. It ends twelve hours after its start.'),
      element('button', {type: 'button', onclick: async (event) => {
        const own = event.currentTarget;
        try {
          await post('/api/run/tensorboard/stop', {run: page.name});
          own.closest('section').remove();
          page.askAbout();
        } catch (error) {
          toastError(error);
        }
      }}, 'Stop TensorBoard')),
  ];
  return {node: element('div', {class: 'about-cards'}, parts, errorList([]))};
}

function startedFrom(value) {
  return value === null || value === undefined ? null : typeof value === 'string' ? value : JSON.stringify(value);
}

const GOODPUT = {training: 'steps that count', input: 'waiting for data', compilation: 'compiling steps', evaluation: 'evaluating', saving: 'waiting for saves',
  repeated: 'steps lost to a restart or rollback', stopped: 'between attempts', other: 'starts, callbacks, logs'};

/** The wall time by purpose: one bar, and a row for each part. */
function goodputTable({seconds, ...parts}) {
  const shown = Object.keys(GOODPUT).map((name) => [name, parts[name]]).filter(([, value]) => value >= 0.0005 * seconds);
  const share = (value) => `${(100 * value / seconds).toFixed(1)} %`;
  return [element('p', {class: 'soft'}, `${share(parts.training)} of ${duration(seconds)} is training`),
    element('div', {class: 'goodput-bar', 'aria-hidden': 'true'}, shown.map(([name, value]) => element('span', {dataset: {part: name}, title: `${name} ${share(value)}`, style: {width: `${100 * value / seconds}%`}}))),
    element('table', {class: 'profile'}, element('tbody', {}, shown.map(([name, value]) => element('tr', {},
      element('td', {class: 'nowrap'}, element('span', {class: 'goodput-key', dataset: {part: name}, 'aria-hidden': 'true'}), name), element('td', {class: 'soft'}, GOODPUT[name]),
      element('td', {class: 'number nowrap'}, duration(value)), element('td', {class: 'number nowrap'}, share(value))))))];
}

function profileTable({first, last, programs, seconds, rows}) {
  const steps = Math.max(1, last - first + 1);
  return [element('p', {class: 'soft'}, `Steps ${integer(first)} to ${integer(last)}, ${plural(programs, 'program')}, ${metric(1000 * seconds / steps)} ms a step`),
    element('table', {class: 'profile'}, element('tbody', {}, Object.entries(rows).map(([name, value]) => element('tr', {}, element('td', {}, name),
      element('td', {class: 'number'}, `${value.toFixed(4)} s`), element('td', {class: 'number'}, `${(100 * value / seconds).toFixed(1)} %`),
      element('td', {class: 'profile-bar'}, element('span', {class: 'bar'}, element('span', {class: 'bar-fill', style: {width: `${100 * value / seconds}%`}}))))),
    element('tr', {}, element('th', {}, 'all'), element('th', {class: 'number'}, `${seconds.toFixed(4)} s`), element('th', {}), element('th', {}))))];
}
