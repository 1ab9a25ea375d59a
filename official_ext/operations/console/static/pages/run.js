import {keys, setTitle} from '../app.js';
import {get, post, stream} from '../api.js';
import {charts, parseName} from '../charts.js';
import {element, replace, setText, withCode} from '../dom.js';
import {confirm, prompt} from '../dialog.js';
import {ago, duration, integer, percent, speed, time, toNumber, withTimes} from '../format.js';
import {bar, empty, errorList, link, setStatus, status} from '../parts.js';
import {STYLES} from '../plot.js';
import {navigate, setQuery} from '../router.js';
import {completions} from '../completions.js';
import {about, checkpoints, config, events, images, log} from '../run_parts.js';
import {toast, toastError} from '../toast.js';

export const title = 'Run';
export const help = {text: 'One run: curves, log, configuration, checkpoints, events. Drag over a chart to zoom. Stop saves a checkpoint first, Resume continues from the newest one, Clone with changes opens its configuration as a form.', docs: 'docs/how_to/console.md'};
export const styles = STYLES;

const ALIVE = new Set(['starting', 'running', 'stopping', 'hung']);
const TABS = [['curves', 'Curves'], ['log', 'Log'], ['config', 'Configuration'], ['checkpoints', 'Checkpoints'], ['events', 'Events'],
  ['completions', 'Completions'], ['images', 'Images'], ['about', 'About']];
const FIRST_OF_A_MISTAKE = ['log', 'events'];
const MEDIA = ['completions', 'images'];
const MEDIA_MS = 15000; // Between questions whether there are images now.
const WATCH_MS = 1500;
const KNOWN_KEYS = new Set(['time', 'event', 'step']);

export async function show(view, query, signal) {
  const name = query.get('run');
  if (!name) {
    replace(view, empty('No run selected', 'Choose one from the list.', null, link('/runs', 'All runs')));
    return;
  }
  const page = new RunPage(view, name, query, signal);
  await page.start();
}

class RunPage {
  constructor(view, name, query, signal) {
    Object.assign(this, {view, name, query, signal, names: [], about: null, summary: null, part: null, media: {}, tab: null});
  }

  async start() {
    const [found, {names}] = await Promise.all([this.get('/api/run'), get('/api/curves/names', {run: this.name}, {signal: this.signal})]);
    if (this.signal.aborted) return;
    setTitle(this.name === '.' ? 'Run' : this.name);
    this.about = found;
    this.summary = found.summary;
    this.isMistake = isMistake(this.summary); // The tabs keep their order while the page is open.
    this.names = names[this.name] ?? [];
    this.head = this.makeHead();
    this.panel = element('div', {class: 'run-panel', role: 'tabpanel', id: 'run-panel', tabindex: -1});
    this.problem = element('div', {});
    this.gone = element('div', {class: 'run-gone', role: 'status'});
    replace(this.view, this.gone, this.head.node, this.problem, this.makeTabs(), this.panel);
    this.tellHead();
    const wanted = this.query.get('tab');
    this.open(TABS.some(([tab]) => tab === wanted) ? wanted : this.shownTabs()[0][0]);
    this.askMedia();
    stream(['runs'], [this.name], {
      runs: ({all, changed, removed}) => this.heardRuns(all ?? changed, all ? null : removed),
      events: ({events: found_, restarted}) => this.heardEvents(found_, restarted),
      problem: ({errors}) => replace(this.problem, errorList(errors)),
    }, this.signal);
    const clock = setInterval(() => {
      this.tellHead();
      this.refreshAbout();
    }, 1000);
    this.signal.addEventListener('abort', () => clearInterval(clock));
  }

  /** Asks something about this run. */
  get(path, values = {}) {
    return get(path, {run: this.name, ...values}, {signal: this.signal});
  }

  // The part that changes.

  heardRuns(runs, removed) {
    const found = runs.find((run) => run.name === this.name);
    if (found) {
      this.setGone(null);
      const changed = found.status !== this.summary.status;
      this.summary = found;
      this.heard = Date.now() / 1000;
      this.tellHead();
      this.refreshAbout();
      this.part?.changed?.(found, changed);
    } else if (!removed || removed.includes(this.name)) { // Without a list of removed ones these are all runs.
      this.setGone(runs.filter((run) => isSameRun(run, this.summary)));
    }
  }

  /**
   * Shows that the run is not in the folder; or that it is.
   *
   * @param {Object[]|null} others - runs of other names that have its record: those that it may be now; null: it exists.
   */
  setGone(others) {
    this.isGone = others !== null;
    this.head.buttons.hidden = this.isGone;
    replace(this.gone, this.isGone && element('div', {class: 'errors'}, element('p', {},
      `${this.name}: is no longer in this folder. It was ${others.length ? 'renamed' : 'deleted, moved or renamed'}.`),
    element('p', {class: 'toolbar'}, others.map(({name}) => link(`/run?${new URLSearchParams({run: name})}`, `Open ${name}`)),
      !others.length && link('/runs?view=trash', 'Trash'), link('/runs', 'All runs'))));
  }

  heardEvents(found, restarted) {
    // The first message says where the stream begins: earlier messages may be later than the page.
    if (!found.length && !restarted && this.listens) return;
    this.listens = true;
    const known = new Set(this.names.map((each) => each.slice(each.indexOf('/') + 1)));
    const isNew = found.some((event) => (event.event === 'train' || event.event === 'eval') &&
      Object.keys(event).some((key) => !KNOWN_KEYS.has(key) && toNumber(event[key]) !== null && !known.has(key)));
    if (isNew || restarted) this.askNames();
    if (found.some(({event}) => event === 'checkpoint') && !this.about.parts.includes('checkpoints')) this.askAbout();
    if (found.some(({event}) => event === 'completions')) {
      this.media.completions = true;
      this.updateTabs();
    }
    if (found.some(({event}) => event === 'eval' || event === 'train')) this.askMedia();
    this.part?.events?.(found);
  }

  async askNames() {
    try {
      const {names} = await get('/api/curves/names', {run: this.name}, {signal: this.signal});
      this.names = names[this.name] ?? [];
      this.updateTabs();
      this.part?.named?.();
    } catch (error) {
      toastError(error);
    }
  }

  async askAbout() {
    this.asksAbout = true;
    try {
      this.about = await this.get('/api/run');
      this.tellHead();
      this.updateTabs();
    } catch (error) {
      if (error.status) toastError(error);
    } finally {
      this.asksAbout = false;
    }
  }

  /** Asks whether the run has completions and images, until it has both: their files may be long. */
  async askMedia() {
    if (MEDIA.every((tab) => this.media[tab]) || performance.now() < (this.nextMedia ?? 0)) return;
    this.nextMedia = performance.now() + MEDIA_MS;
    try {
      const media = await this.get('/api/run/media');
      for (const tab of MEDIA) this.media[tab] ||= media[tab];
      this.updateTabs();
    } catch (error) {
      if (error.status) toastError(error);
    }
  }

  /** Asks again if the answer, such as whether the run can be resumed, is of another status than the present one. */
  refreshAbout() {
    if (!this.isGone && !this.asksAbout && this.about.summary.status !== this.summary.status) this.askAbout();
  }

  /** Reports when a process beside the training has ended, such as an evaluation that was started here. */
  async watchMode(mode) {
    for (;;) {
      await new Promise((resolve) => setTimeout(resolve, WATCH_MS));
      if (this.signal.aborted) return;
      await this.askAbout();
      const found = this.about.modes.find((each) => each.mode === mode);
      if (!found || ALIVE.has(found.status)) continue;
      const isGood = found.status === 'finished';
      toast(`${mode}: ${found.status}${found.reason ? `: ${found.reason}` : ''}`, {kind: isGood ? 'info' : 'error', action: {text: isGood ? 'Events' : 'Log', do: () => {
        this.query.set('mode', mode);
        setQuery({mode});
        this.open(isGood ? 'events' : 'log');
      }}});
      this.askNames();
      this.part?.events?.([{event: 'eval'}]);
      return;
    }
  }

  // The head.

  makeHead() {
    const fact = (text, ...more) => {
      const value = element('dd', {class: 'nowrap', ...more[0]});
      return {node: element('div', {class: 'run-fact'}, element('dt', {}, text), value), value};
    };
    const button = (text, kind, act) => element('button', {type: 'button', class: kind, onclick: async (event) => {
      const own = event.currentTarget;
      own.dataset.busy = '';
      own.disabled = true;
      try {
        await act();
      } catch (error) {
        toastError(error);
      } finally {
        delete own.dataset.busy;
        own.disabled = false;
        this.tellHead();
        if (document.activeElement === document.body) own.focus(); // A dialog cannot return the focus to a disabled button.
      }
    }}, text);
    const found = {
      status: status(this.summary.status, this.summary.reason), reason: element('p', {class: 'run-reason'}),
      step: fact('Step'), left: fact('Left'), speed: fact('Speed'), started: fact('Started'), updated: fact('Last step'),
      experiment: fact('Experiment'), tags: element('div', {class: 'run-tags'}), bar: element('div', {class: 'run-bar'}),
      stop: button('Stop', 'danger', () => this.stop()), resume: button('Resume', 'primary', () => this.resume()),
      extend: button('Extend', '', () => this.extend()),
      clone: element('a', {class: 'button', href: `/new?${new URLSearchParams({clone: this.name})}`}, 'Clone with changes'),
      compare: element('a', {class: 'button', href: `/compare?${new URLSearchParams({run: this.name})}`}, 'Compare'),
      board: button('TensorBoard', '', () => this.tensorboard()), archive: button('Archive', '', () => this.archive()),
      remove: button('Delete', 'danger', () => this.remove()),
    };
    found.buttons = element('div', {class: 'toolbar run-buttons'}, found.stop, found.resume, found.extend, found.clone, found.compare, found.board, found.archive, found.remove);
    const facts = [found.experiment, found.step, found.left, found.speed, found.started, found.updated].map(({node}) => node);
    found.node = element('header', {class: 'run-head card'},
      element('div', {class: 'run-title'}, element('h1', {}, this.name), found.status, element('span', {class: 'grow'}), found.buttons),
      found.reason, found.bar, element('dl', {class: 'run-facts'}, facts), found.tags);
    return found;
  }

  tellHead() {
    const {summary, head, about: found} = this, alive = ALIVE.has(summary.status);
    setStatus(head.status, summary.status, summary.reason);
    if (head.reason.dataset.text !== summary.reason) {
      head.reason.dataset.text = summary.reason;
      replace(head.reason, withCode(withTimes(summary.reason)));
    }
    head.reason.hidden = !summary.reason;
    head.reason.dataset.status = summary.status;
    const part = toNumber(summary.percent);
    setText(head.step.value, summary.step === null ? '–' :
      `${integer(summary.step)}${summary.train_steps ? ` of ${integer(summary.train_steps)}` : ''}${part === null ? '' : ` · ${percent(part)}`}`);
    const key = part === null ? '' : part.toFixed(1);
    if (head.bar.dataset.key !== key) {
      head.bar.dataset.key = key;
      replace(head.bar, part !== null && bar(part));
    }
    const eta = toNumber(summary.eta_seconds), since = this.heard ? Date.now() / 1000 - this.heard : 0;
    setText(head.left.value, alive && eta !== null ? duration(Math.max(0, eta - since)) || '–' : '–');
    setText(head.speed.value, speed(summary.steps_per_second) || '–');
    setText(head.started.value, (ago(summary.started) || '–') + (summary.attempt > 1 ? ` · attempt ${summary.attempt}` : ''));
    head.started.value.title = time(summary.started);
    setText(head.updated.value, ago(summary.updated) || '–');
    head.updated.value.title = time(summary.updated);
    setText(head.experiment.value, summary.experiment || '–');
    for (const {node, value} of [head.experiment, head.step, head.left, head.speed, head.started, head.updated]) {
      node.hidden = !alive && value.textContent === '–'; // Of a run that lives it may come.
    }
    head.stop.hidden = !alive;
    setText(head.stop, summary.status === 'stopping' ? 'Stop now' : 'Stop');
    head.stop.title = summary.status === 'stopping' ? 'Kills the process without a save' : 'Saves a checkpoint and stops';
    head.resume.hidden = alive || summary.status === 'finished';
    const isWrong = isMistake(summary);
    head.resume.classList.toggle('primary', !isWrong);
    head.clone.classList.toggle('primary', isWrong);
    head.extend.hidden = summary.status !== 'finished' || !summary.train_steps;
    head.extend.title = 'Trains more steps from the newest checkpoint';
    head.resume.title = found.can_resume || 'Continues from the newest checkpoint';
    head.resume.disabled = 'busy' in head.resume.dataset || Boolean(found.can_resume);
    setText(head.archive, summary.is_archived ? 'Unarchive' : 'Archive');
    for (const each of [head.archive, head.remove]) each.disabled = alive || 'busy' in each.dataset;
    this.tellNotes();
  }

  tellNotes() {
    const {tags, note} = this.summary, key = JSON.stringify([tags, note]);
    if (this.head.tags.dataset.key === key) return;
    this.head.tags.dataset.key = key;
    replace(this.head.tags, tags.map((tag) => element('span', {class: 'tag'}, tag)),
      element('button', {class: 'link', type: 'button', onclick: () => this.editTags()}, tags.length ? 'Edit tags' : 'Add tags'),
      note && element('span', {class: 'run-note soft anywhere'}, note),
      element('button', {class: 'link', type: 'button', onclick: () => this.editNote()}, note ? 'Edit note' : 'Add a note'));
  }

  // The actions.

  /** Does something with this run, as the list of runs does with several; returns the result. */
  async act(action, body = {}) {
    const {done, errors} = await post(`/api/runs/${action}`, {runs: [this.name], ...body});
    if (errors.length) toast(errors, {kind: 'error'});
    return done[0] ?? null;
  }

  async stop() {
    const now = this.summary.status === 'stopping';
    if (now && !await confirm('Kill the run?', `${this.name} is saving and will stop. Steps after its last checkpoint are lost.`,
      'Kill', {kind: 'danger', keep: 'Wait for the save', signal: this.signal})) return;
    const done = await this.act('stop', {now});
    if (done) {
      this.summary = {...this.summary, status: done.status};
      toast(now ? `${this.name}: ended` : `${this.name}: will save and stop`);
    }
  }

  async resume() {
    const done = await this.act('resume');
    if (done) this.summary = {...this.summary, status: done.status, reason: ''};
  }

  async extend() {
    const {train_steps: before} = this.summary;
    const text = await prompt(`Extend ${this.name}`, {label: 'Train to step', value: String(2 * before), text: 'Extend', signal: this.signal,
      hint: `The run finished at step ${integer(before)}. The schedule of the learning rate changes only if its fields do.`});
    if (text === null) return;
    const done = await this.act('resume', {train_steps: Number(text.replaceAll(/[\s,_]/g, ''))});
    if (done) this.summary = {...this.summary, status: done.status, reason: ''};
  }

  async archive() {
    const undo = this.summary.is_archived;
    if (await this.act(undo ? 'unarchive' : 'archive')) this.summary = {...this.summary, is_archived: !undo};
  }

  async remove() {
    const done = await this.act('delete');
    if (!done) return;
    toast(`${this.name} is in the trash`, {action: {text: 'Undo', do: async () => {
      try {
        const {errors} = await post('/api/runs/restore', {keys: [done.key]});
        if (errors.length) toast(errors, {kind: 'error'});
        else navigate(`/run?${new URLSearchParams({run: this.name})}`);
      } catch (error) {
        toastError(error);
      }
    }}});
    navigate('/runs');
  }

  async tensorboard() {
    const tab = window.open('', '_blank'); // Now: later the browser takes it for an unwanted one.
    try {
      setText(this.head.board, 'Starting…');
      const {url} = await post('/api/run/tensorboard', {run: this.name});
      if (!/^http:\/\/127\.0\.0\.1:\d+\//.test(url)) throw new Error('TensorBoard has no address of this machine');
      if (tab) {
        tab.opener = null;
        tab.location = url;
      } else {
        toast(`TensorBoard answers at ${url}`);
      }
    } catch (error) {
      tab?.close();
      throw error;
    } finally {
      setText(this.head.board, 'TensorBoard');
    }
  }

  async editTags() {
    const before = this.summary.tags;
    const text = await prompt('Tags', {label: 'Separated by commas', value: before.join(', '), signal: this.signal});
    if (text === null) return;
    const after = text.split(',').map((tag) => tag.trim()).filter(Boolean);
    await this.note({add: after.filter((tag) => !before.includes(tag)), remove: before.filter((tag) => !after.includes(tag))});
  }

  async editNote() {
    const note = await prompt('Note', {value: this.summary.note, multiline: true, signal: this.signal});
    if (note !== null) await this.note({note});
  }

  async note(body) {
    try {
      const done = await this.act('tag', body);
      if (done) this.summary = {...this.summary, tags: done.tags, note: done.note};
      this.tellHead();
    } catch (error) {
      toastError(error);
    }
  }

  // The parts.

  makeTabs() {
    const keydown = (event) => {
      const tabs = [...this.tabs.children], place = tabs.indexOf(event.target);
      const next = {ArrowRight: place + 1, ArrowLeft: place - 1, Home: 0, End: tabs.length - 1}[event.key];
      if (next === undefined) return;
      event.preventDefault();
      const tab = tabs[(next + tabs.length) % tabs.length];
      tab.focus();
      tab.click();
    };
    this.tabs = element('div', {class: 'tabs run-tabs', role: 'tablist', 'aria-label': 'Parts of the run', onkeydown: keydown});
    this.updateTabs();
    return this.tabs;
  }

  /** The tabs that have contents or may get them, and the one that is open. A run that failed before training begins with its log. */
  shownTabs() {
    const {parts} = this.about, alive = ALIVE.has(this.summary.status) || ['submitted', 'unknown'].includes(this.summary.status);
    const has = (tab) => tab === 'about' || tab === this.tab || this.media[tab] ||
      (!MEDIA.includes(tab) && (alive || (tab === 'curves' ? this.names.length > 0 : parts.includes(tab))));
    const shown = TABS.filter(([tab]) => has(tab)), isFirst = ([tab]) => this.isMistake && FIRST_OF_A_MISTAKE.includes(tab);
    return [...shown.filter(isFirst), ...shown.filter((each) => !isFirst(each))];
  }

  updateTabs() {
    const shown = this.shownTabs(), key = shown.map(([tab]) => tab).join();
    if (this.tabs.dataset.key === key) return;
    this.tabs.dataset.key = key;
    const made = new Map([...this.tabs.children].map((tab) => [tab.id, tab])), focused = document.activeElement;
    replace(this.tabs, shown.map(([tab, text]) => made.get(`tab-${tab}`) ?? element('button', {type: 'button', role: 'tab', id: `tab-${tab}`,
      'aria-controls': 'run-panel', 'aria-selected': 'false', tabindex: -1, onclick: () => this.open(tab)}, text)));
    if (this.tabs.contains(focused)) focused.focus({preventScroll: true});
    keys(Object.fromEntries(shown.map(([tab, text], index) => [String(index + 1), {text, do: () => this.open(tab)}])), this.signal);
  }

  async open(tab) {
    this.leave?.abort();
    this.leave = new AbortController();
    const {signal} = this.leave;
    this.signal.addEventListener('abort', () => this.leave.abort(), {signal});
    this.tab = tab;
    this.updateTabs();
    for (const each of this.tabs.children) {
      each.setAttribute('aria-selected', String(each.id === `tab-${tab}`));
      each.tabIndex = each.id === `tab-${tab}` ? 0 : -1;
    }
    document.getElementById(`tab-${tab}`).scrollIntoView({block: 'nearest', inline: 'nearest'});
    this.panel.setAttribute('aria-labelledby', `tab-${tab}`);
    setQuery({tab: tab === 'curves' && !this.isMistake ? null : tab});
    this.part = null;
    replace(this.panel);
    try {
      const part = await {curves: openCurves, log, config, checkpoints, events, completions, images, about}[tab](this, signal);
      if (signal.aborted) return;
      this.part = part;
      replace(this.panel, part.node);
    } catch (error) {
      if (error.name === 'AbortError' || signal.aborted) return;
      if (!error.lines) console.error(error);
      replace(this.panel, errorList(error.lines ?? [String(error)]));
    }
  }
}

/** Whether a run ended by a mistake of its command, of its data or of its settings: resumed, it would end so again. */
function isMistake({status: word, step}) {
  return word === 'diverged' || (word === 'failed' && !step);
}

/** Whether two summaries are of one run, which has another name now: they have the same start, and its steps. */
function isSameRun(one, other) {
  return one.started !== null && ['started', 'attempt', 'experiment', 'train_steps'].every((key) => one[key] === other[key]);
}

const OTHERS = ['--series-3', '--series-4', '--series-5', '--series-6', '--series-7', '--series-8'];

async function openCurves(page, signal) {
  if (!page.names.length) {
    const node = element('div', {}, empty('No curves yet', 'The first point is written after the first loop of training steps. The log shows the progress until then.'));
    return {node, named: () => page.open('curves')};
  }
  const modes = () => [...new Set(page.names.map((name) => parseName(name).mode).filter(Boolean))];
  const seriesOf = ({name}, group) => {
    const {mode, event, metric: own} = parseName(name);
    const word = {train: 'training', eval: 'validation', system: 'machine'}[event];
    const several = group.names.filter((each) => parseName(each).event === event && parseName(each).mode === mode).length > 1;
    const colour = mode ? OTHERS[modes().indexOf(mode) % OTHERS.length] : event === 'train' ? '--series-1' : '--series-2';
    return {label: `${mode && mode !== event ? `${mode} ` : ''}${word}${several ? ` ${own}` : ''}`, colour, dash: event === 'eval' ? [6, 3] : undefined,
      points: event === 'eval' ? true : undefined};
  };
  const found = charts({runs: () => [page.name], names: () => page.names, seriesOf, query: new URLSearchParams(location.search), signal,
    refined: () => page.askNames()});
  return {node: found.node, events: () => found.refresh(), named: () => {
    found.update();
    found.refresh();
  }};
}

