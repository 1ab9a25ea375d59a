// A new run: an experiment, a form over all of its fields, the driver's mistakes beside them, the command, and its start.
import {get, post, withQuery} from '../api.js';
import {keys, setTitle} from '../app.js';
import {element, replace, setText, withCode} from '../dom.js';
import {commandWords, copyButton, errorList, link} from '../parts.js';
import {navigate, setQuery} from '../router.js';
import {toast, toastError} from '../toast.js';
import {showCheck} from './new_check.js';
import {about, changeLink, choice} from './new_choice.js';
import {OtherRow, Row} from './new_fields.js';
import {showStart} from './new_start.js';
import {sweepPart} from './new_sweep.js';

export const title = 'New run';
export const help = {text: 'A form over the fields of an experiment. Mistakes are shown at their field. Start runs the command below the form, Queue adds it to the queue, Check tries it in a temporary folder.', docs: 'docs/how_to/console_forms.md'};
export const styles = ['/static/pages/new.css'];

const PAUSE_MS = 100; // After the last key, until the driver is asked.
const IN_ADDRESS = 4000; // Letters of a pasted text; more would make addresses that servers refuse.
const VIEWS = [['common', 'Common'], ['all', 'All'], ['changed', 'Changed']];

export async function show(view, query, signal) {
  const state = element('div', {class: 'loading'}, 'Reading the experiments…');
  replace(view, element('div', {class: 'page-head'}, element('h1', {}, 'New run')), state);
  const steps = element('div', {});
  state.after(steps);
  const ended = showStart(steps, signal);
  try {
    const clone = query.get('clone');
    const origin = clone ? await get('/api/new/clone', {run: clone}, {signal}) : null;
    if (origin?.form) { // Of a run that ended before it wrote its configuration: a form with its command.
      navigate(`/new?${new URLSearchParams(origin.form)}`, {replace: true});
      return;
    }
    const chosen = origin?.experiment ?? query.get('experiment');
    if (chosen) {
      await new Form(view, query, signal, chosen, origin, clone).open();
      return;
    }
    const found = await get('/api/new/experiments', {}, {signal});
    replace(state, choice(found.experiments, found.lines));
    state.className = 'narrow';
    view.firstElementChild.classList.add('narrow');
    view.querySelector('input').focus({preventScroll: true});
  } finally {
    ended();
  }
}

/** The form of one experiment. */
class Form {
  constructor(view, query, signal, experiment, origin, clone) {
    Object.assign(this, {view, signal, experiment, origin, clone: clone ?? ''});
    this.mode = origin?.mode ?? query.get('mode') ?? '';
    this.name = query.get('name') ?? origin?.name ?? '';
    this.files = query.getAll('config');
    this.from = query.get('from') ?? '';
    const kept = history.state?.newRun ?? {};
    this.base = query.get('base') ?? kept.base ?? '';
    this.edits = new Map(kept.secrets ?? []); // Name of --set -> {text} or {string}.
    for (const [kind, name] of [['set', 'text'], ['str', 'string']]) {
      for (const word of query.getAll(kind)) {
        const at = word.indexOf('=');
        this.edits.set(at < 0 ? word : word.slice(0, at), {[name]: at < 0 ? '' : word.slice(at + 1)});
      }
    }
    this.sweepKept = readSweep(query.get('sweep'));
    this.shown = query.get('view') ?? (this.edits.size ? 'changed' : 'common');
    this.words = query.get('search') ?? '';
    this.opened = new Set(); // Groups, in the view of all.
    this.rows = new Map(); // Path, or name of another change -> row.
    this.shape = null;
    this.asking = null;
    this.again = false;
    this.answer = null;
  }

  body() {
    return {experiment: this.experiment, mode: this.mode || 'train', name: this.name, clone: this.clone, base: this.base,
      edits: [...this.edits].map(([key, edit]) => ({key, ...edit})),
      config_files: this.files.filter((file) => file.trim())};
  }

  /** Requests the fields, shows them, and then requests all answers of the driver. */
  async open() {
    const found = await post('/api/new/form', {...this.body(), fields: true, quick: true}, {signal: this.signal});
    this.render(found);
    await this.ask(0);
  }

  // The page.

  render(answer) {
    const {about: found, modes} = answer;
    setTitle(`New run: ${this.experiment}`);
    this.mode ||= /--mode=(\w+)/.exec(found?.parts.Command ?? '')?.[1] ?? 'train';
    this.top = element('div', {});
    this.starting = element('div', {});
    this.groups = element('div', {class: 'groups'});
    this.none = element('p', {class: 'soft nothing', hidden: true});
    this.command = element('code', {class: 'command-text', tabindex: 0, 'aria-label': 'The command'});
    replace(this.view,
      element('div', {class: 'page-head'}, element('h1', {}, this.clone ? `Clone of ${this.clone}` : this.experiment),
        this.clone ? element('span', {class: 'soft'}, this.experiment) : changeLink()),
      found ? about(found) : null, this.top, this.starting, this.makeBegin(modes), this.makeBase(), this.makeSweep(), this.makeTools(),
      this.groups, this.none, this.makeOther(), this.makeBar());
    keys({'/': {text: 'Search the fields', do: () => this.search.focus()}}, this.signal);
    this.view.addEventListener('keydown', (event) => {
      if (event.key === 'Enter' && event.ctrlKey) this.begin('start');
    }, {signal: this.signal});
    this.take(answer, true);
  }

  /** Name and mode. */
  makeBegin(modes) {
    this.nameInput = element('input', {type: 'text', id: 'new-name', value: this.name, spellcheck: 'false', autocomplete: 'off',
      'aria-describedby': 'new-name-text', oninput: () => {
        this.name = this.nameInput.value.trim();
        this.remember();
        this.ask();
      }});
    this.nameText = element('div', {class: 'field-text', id: 'new-name-text'});
    this.modeInput = element('select', {id: 'new-mode', value: this.mode, disabled: Boolean(this.clone), onchange: () => {
      this.mode = this.modeInput.value;
      this.remember();
      this.ask();
    }}, [...new Set([...modes, this.mode])].map((mode) => element('option', {value: mode, selected: mode === this.mode}, mode)));
    this.modeText = element('div', {class: 'field-text'});
    return element('section', {class: 'card begin'},
      element('div', {class: 'field'}, element('div', {class: 'field-head'}, element('label', {for: 'new-name'}, 'Name')),
      element('div', {class: 'field-input'}, this.nameInput), this.nameText),
      element('div', {class: 'field'}, element('div', {class: 'field-head'}, element('label', {for: 'new-mode'}, 'Mode')),
      element('div', {class: 'field-input'}, this.modeInput), this.modeText));
  }

  /** Its initial configuration: files, or a text. */
  makeBase() {
    if (this.clone) {
      return element('p', {class: 'hint'}, 'Starts from the configuration of ',
        link(withQuery('/run', {run: this.clone}), this.clone), ', which is copied; changes are passed as --set.');
    }
    const from = this.from && element('p', {class: 'hint'}, 'The form has the command of ', link(withQuery('/run', {run: this.from}), this.from), '.');
    const file = element('input', {type: 'text', id: 'new-file', value: this.files.join(' ; '), spellcheck: 'false', autocomplete: 'off',
      placeholder: '/path/of/changes.yaml', oninput: () => {
        this.files = file.value.split(';').map((each) => each.trim());
        this.remember();
        this.ask();
      }});
    const text = element('textarea', {id: 'new-base', rows: 6, class: 'mono', spellcheck: 'false', value: this.base,
      placeholder: 'trainer:\n  train_steps: 1000', oninput: () => {
        this.base = text.value.trim() ? text.value : '';
        this.remember();
        this.ask();
      }});
    this.baseText = element('div', {class: 'field-text'});
    return [from, element('details', {class: 'card base', open: Boolean(this.base || this.files.length)},
      element('summary', {}, 'Start from a YAML file'),
      element('label', {class: 'stacked'}, 'A file on this machine; separate several by ;', file),
      element('label', {class: 'stacked'}, 'Or its text, such as the params.yaml of another run', text), this.baseText)];
  }

  /** Several values of some fields: a sweep in place of a run. */
  makeSweep() {
    this.sweep = sweepPart({kept: this.sweepKept, formOf: () => this.body(), signal: this.signal,
      names: () => [...this.rows.values()].map((row) => row.field?.names.find((name) => name !== row.field.path) ?? row.key),
      metric: () => {
        const value = (path) => this.answer?.values[`trainer.${path}`] ?? '', name = value('best_checkpoint_eval_metric');
        const isNone = ['', 'null', '""'].includes(name);
        return {name: isNone ? '' : name, goal: isNone ? '' : this.answer?.goal ?? ''};
      }, changed: (values) => {
        this.sweepKept = values;
        this.remember();
      }, started: (name) => navigate(withQuery('/sweep', {sweep: name}))});
    return this.sweep.node;
  }

  makeTools() {
    this.search = element('input', {type: 'search', placeholder: 'Search the fields', 'aria-label': 'Search the fields',
      value: this.words, oninput: () => {
        this.words = this.search.value;
        this.remember();
        this.filter();
      }});
    this.viewButtons = VIEWS.map(([name, text]) => element('button', {type: 'button', dataset: {view: name}, onclick: () => {
      this.shown = name;
      this.remember();
      this.filter();
    }}, text));
    this.count = element('span', {class: 'soft nowrap', role: 'status'});
    return element('div', {class: 'toolbar tools'}, this.search,
      element('div', {class: 'segments', role: 'group', 'aria-label': 'Fields'}, this.viewButtons), this.count,
      element('span', {class: 'grow'}), this.openAll = element('button', {class: 'small', type: 'button', onclick: () => {
        const names = [...this.groups.children].map((group) => group.name);
        this.opened = new Set(names.every((name) => this.opened.has(name)) ? [] : names);
        this.filter();
      }}, 'Open all'), this.takeBackAll = element('button', {class: 'small', type: 'button', onclick: () => {
        this.edits.clear();
        this.shape = null; // The rows are made anew.
        this.remember();
        this.ask(0);
      }}, 'Undo all'));
  }

  /** A change by its name: an entry of a mapping, or a field that does not exist yet. */
  makeOther() {
    const name = element('input', {type: 'text', placeholder: 'task.parameters.temperature=0.7', 'aria-label': 'NAME=VALUE',
      class: 'mono', spellcheck: 'false', autocomplete: 'off'});
    return element('form', {class: 'toolbar other', onsubmit: (event) => {
      event.preventDefault();
      const at = name.value.indexOf('=');
      if (at < 1) {
        toast('Expected NAME=VALUE, as after --set.', {kind: 'error'});
        return;
      }
      this.edits.set(name.value.slice(0, at).trim(), {text: name.value.slice(at + 1)});
      name.value = '';
      this.shape = null;
      this.remember();
      this.ask(0);
    }}, element('label', {class: 'soft'}, 'Another change'), name, element('button', {class: 'small', type: 'submit'}, 'Add'));
  }

  /** The command, and its buttons. */
  makeBar() {
    this.mistakes = element('button', {class: 'link mistakes', type: 'button', hidden: true, onclick: () => this.goToMistake()});
    this.buttons = [['start', 'Start', 'primary', 'Starts the run in the background (Ctrl-Enter)'], ['queue', 'Queue', '', 'Adds the run to the queue'],
      ['check', 'Check', '', 'Trains, evaluates, saves and restores once in a temporary folder: official-ext check'],
      ['preview', 'Preview', '', 'Shows examples of the input: official-ext preview']].map(([what, text, kind, hint]) =>
      element('button', {class: kind, type: 'button', title: hint, dataset: {do: what}, onclick: () => this.begin(what)}, text));
    this.copy = element('span', {});
    return element('section', {class: 'bar-below', 'aria-label': 'Command'}, element('div', {class: 'command'}, this.command, this.copy),
      element('div', {class: 'toolbar'}, this.buttons, this.mistakes));
  }

  // The driver's answer.

  /** Asks the driver after a pause; answers that are overtaken are requested again. */
  ask(pause = PAUSE_MS) {
    this.view.classList.add('asking');
    clearTimeout(this.timer);
    this.settled ??= new Promise((resolve) => {
      this.settle = resolve;
    });
    this.timer = setTimeout(() => {
      this.timer = null;
      this.askNow();
    }, pause);
    return this.settled;
  }

  async askNow() {
    if (this.asking) {
      this.again = true;
      return;
    }
    this.asking = true;
    const started = showStart(this.starting, this.signal); // A module has changed, or the process has died.
    try {
      do {
        this.again = false;
        const asked = this.body(), wanted = this.shape === null;
        let found = await post('/api/new/form', {...asked, fields: wanted}, {signal: this.signal});
        if (!wanted && found.shape !== this.shape && !this.again) {
          found = await post('/api/new/form', {...asked, fields: true}, {signal: this.signal});
        }
        if (!this.again && !this.signal.aborted) this.take(found);
      } while (this.again);
    } catch (error) {
      if (error.name === 'AbortError') return;
      replace(this.top, errorList(error.lines ?? [String(error)]));
      this.setButtons(false);
    } finally {
      started();
      this.asking = null;
      if (!this.timer) { // Otherwise it is asked again in a moment.
        this.view.classList.remove('asking');
        this.settle?.();
        this.settled = null;
      }
    }
  }

  /** Shows an answer; one that is `quick` does not say that all is right. */
  take(found, quick = false) {
    this.answer = found;
    if (found.fields) this.makeRows(found);
    if (!this.name) this.nameInput.value = this.name = found.name;
    for (const [path, row] of this.rows) {
      if (row instanceof Row && !row.isEdited) row.show(found.values[path] ?? '', stringOf(found, path));
    }
    if (found.fields) this.sweep.tellNames();
    this.sweep.check();
    this.showMistakes(found, quick);
    this.showCommand(found.command);
    this.filter();
  }

  showCommand(text) {
    this.command.classList.toggle('missing', !text);
    if (text && this.command.textContent === text) return;
    replace(this.command, text ? commandWords(text) : 'The command appears when the run has a new name.');
    replace(this.copy, text ? copyButton(text) : null);
  }

  makeRows(found) {
    const focused = document.activeElement?.closest?.('.field')?.dataset.path;
    const place = document.activeElement?.selectionStart;
    this.shape = found.shape;
    const rows = new Map(), rowOf = new Map(), groups = new Map();
    for (const field of found.fields) {
      const row = new Row(field, (key, edit) => this.changed(key, edit));
      rows.set(field.path, row);
      for (const name of field.names) rowOf.set(name, row);
      row.show(found.values[field.path] ?? '', stringOf(found, field.path));
      const group = field.path.split('.').slice(0, -1).join('.');
      groups.set(group, [...groups.get(group) ?? [], row]);
    }
    const others = [];
    for (const [key, edit] of this.edits) {
      if (rowOf.has(key)) {
        rowOf.get(key).showEdit(key, edit);
      } else {
        const row = new OtherRow(key, edit, (name, changed) => this.changed(name, changed));
        rows.set(key, row);
        others.push(row);
      }
    }
    this.rows = rows;
    replace(this.groups, others.length ? this.makeGroup('Other changes', others) : null,
      [...groups].map(([name, members]) => this.makeGroup(name, members)));
    const row = focused && rows.get(focused);
    if (row) {
      row.input.focus({preventScroll: true});
      if (place !== null && place !== undefined && row.input.setSelectionRange) row.input.setSelectionRange(place, place);
    }
  }

  makeGroup(name, rows) {
    const count = element('span', {class: 'soft'}), content = element('div', {class: 'group-rows'}, rows.map((row) => row.element));
    const button = element('button', {class: 'group-head', type: 'button', onclick: () => {
      if (this.opened.has(name)) this.opened.delete(name);
      else this.opened.add(name);
      this.filter();
    }}, element('span', {class: 'group-sign', 'aria-hidden': 'true'}), element('span', {class: 'group-name'}, name || 'experiment'), count);
    const made = element('section', {class: 'group'}, element('h2', {}, button), content);
    made.update = (number, isOpen) => {
      made.hidden = number === 0;
      content.hidden = !isOpen;
      button.setAttribute('aria-expanded', String(isOpen));
      const changed = rows.filter((row) => row.isEdited).length;
      setText(count, `${number}${number === rows.length ? '' : ` of ${rows.length}`}${changed ? ` · ${changed} changed` : ''}`);
    };
    made.name = name;
    made.rows = rows;
    return made;
  }

  showMistakes(found, quick) {
    const byRow = new Map(), top = [];
    this.hints ??= new Map([[this.nameText, 'The folder of the run.'], [this.baseText, ''],
      [this.modeText, this.clone ? 'The mode of the original.' : '']]);
    const special = {'--mode': this.modeText, '--model_dir': this.nameText, '--config_file': this.baseText};
    const texts = new Map([[this.nameText, [...found.name_errors]], [this.modeText, []], [this.baseText, []]]);
    for (const {text, field} of found.lines) {
      if (field && this.rows.has(field)) byRow.set(field, [...byRow.get(field) ?? [], text]);
      else if (special[field]) texts.get(special[field]).push(text);
      else top.push(text);
    }
    for (const [path, row] of this.rows) row.setError(byRow.get(path) ?? null);
    for (const [place, lines] of texts) {
      if (place) replace(place, lines.length ? lines.map((line) => element('div', {class: 'bad field-error'}, withCode(line))) : this.hints.get(place));
    }
    setInvalid(this.nameInput, texts.get(this.nameText).length);
    setInvalid(this.modeInput, texts.get(this.modeText).length);
    if (!found.complete && !quick) top.push('The check of devices and of the task takes long; the other fields are valid.');
    replace(this.top, errorList(top));
    const number = found.lines.length + found.name_errors.length;
    this.mistakes.hidden = !number;
    setText(this.mistakes, number ? `${number} mistake${number > 1 ? 's' : ''}` : '');
    this.setButtons(number === 0 && !quick);
  }

  setButtons(enabled) {
    for (const button of this.buttons) button.disabled = !enabled;
  }

  goToMistake() {
    const wrong = this.view.querySelector('[aria-invalid=true]') ?? this.top;
    wrong.scrollIntoView({block: 'center'});
    wrong.focus?.({preventScroll: true});
  }

  // The visible part of the form.

  filter() {
    const words = this.words.toLowerCase().split(/\s+/).filter(Boolean);
    const isShown = (row) => words.length ? words.every((word) => row.search.includes(word)) :
      this.shown === 'all' || row.isEdited || row.hasError || (this.shown === 'common' && row.isCommon);
    let number = 0;
    for (const group of this.groups.children) {
      let here = 0;
      for (const row of group.rows) {
        // The edited field stays in place.
        const shown = isShown(row) || row.element.contains(document.activeElement);
        row.element.hidden = !shown;
        here += shown;
      }
      const wrong = group.rows.some((row) => row.hasError);
      group.update(here, wrong || words.length > 0 || this.shown !== 'all' || this.opened.has(group.name));
      number += here;
    }
    for (const button of this.viewButtons) button.setAttribute('aria-pressed', String(!words.length && button.dataset.view === this.shown));
    setText(this.viewButtons.at(-1), `Changed (${this.edits.size})`);
    setText(this.openAll, [...this.groups.children].every((group) => this.opened.has(group.name)) ? 'Close all' : 'Open all');
    this.openAll.hidden = this.shown !== 'all' || words.length > 0;
    setText(this.count, `${number} of ${this.rows.size} fields`);
    this.takeBackAll.disabled = !this.edits.size;
    this.none.hidden = number > 0 || !this.rows.size;
    setText(this.none, words.length ? 'No matching fields.' :
      this.shown === 'changed' ? 'No changes: all fields have their defaults.' : 'No common fields; see All.');
  }

  // Edits.

  changed(key, edit) {
    if (edit) this.edits.set(key, edit);
    else this.edits.delete(key);
    this.remember();
    this.filter();
    this.ask();
  }

  /** Notes the form in the address; private values, with the tab. */
  remember() {
    const secrets = [...this.rows.values()].filter((row) => row.field?.is_secret).map((row) => row.key);
    const open = [...this.edits].filter(([key]) => !secrets.includes(key));
    const base = this.base.length > IN_ADDRESS ? '' : this.base;
    history.replaceState({...history.state, newRun: {base: this.base,
      secrets: [...this.edits].filter(([key]) => secrets.includes(key))}}, '');
    setQuery({sweep: this.sweepKept && JSON.stringify(this.sweepKept), mode: this.clone ? null : this.mode, name: this.name, config: this.files, base, search: this.words,
      view: this.shown === 'common' ? null : this.shown,
      set: open.filter(([, edit]) => 'text' in edit).map(([key, edit]) => `${key}=${edit.text}`),
      str: open.filter(([, edit]) => 'string' in edit).map(([key, edit]) => `${key}=${edit.string}`)});
  }

  async begin(what) {
    if (this.view.classList.contains('asking')) await this.settled;
    if (this.signal.aborted || this.buttons[0].disabled) return;
    this.setButtons(false);
    try {
      if (what === 'check' || what === 'preview') {
        await showCheck(what, this.body(), this.signal);
      } else {
        const found = await post(`/api/new/${what}`, this.body(), {signal: this.signal});
        if (what === 'start') {
          navigate(withQuery('/run', {run: found.run}));
          return;
        }
        const more = found.has_dispatcher ? '' : ' No dispatcher is running: official-ext queue run starts one.';
        toast(`${found.run} is job ${found.job} of the queue.${more}`, {action: {text: 'Queue', do: () => navigate('/queue')}});
        this.name = '';
        await this.ask(0);
      }
    } catch (error) {
      toastError(error);
      if (what !== 'check') this.ask(0);
    } finally {
      this.setButtons(!this.answer?.lines.length && !this.answer?.name_errors.length);
    }
  }
}

/** The part of a sweep in an address; null if it is none. */
function readSweep(text) {
  try {
    const found = JSON.parse(text);
    return found && typeof found === 'object' && Array.isArray(found.rows) ? found : null;
  } catch (error) {
    return null;
  }
}

function stringOf(found, path) {
  return found.strings[path] ?? null;
}

function setInvalid(input, isInvalid) {
  if (isInvalid) input.setAttribute('aria-invalid', 'true');
  else input.removeAttribute('aria-invalid');
}

