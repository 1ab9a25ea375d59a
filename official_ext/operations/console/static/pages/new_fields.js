// The rows of the form of a new run: an input for each field, with its meaning or the driver's message.
import {element, replace, withCode} from '../dom.js';

let number = 0;

/**
 * The row of a field.
 *
 * @param {Object} field - as driver_answers.py describes it.
 * @param {Function} changed - called with (key, edit) after each edit: {text} or {string}, null if it is taken back.
 */
export class Row {
  constructor(field, changed) {
    this.field = field;
    this.key = field.key;
    this.changed = changed;
    this.isEdited = false;
    this.isCommon = (field.names.length > 1 && !field.unread) || Boolean(field.is_entry);
    this.id = `field-${++number}`;
    this.search = [field.path, ...field.names, field.meaning].join('\n').toLowerCase();
    this.text = element('div', {class: 'field-text', id: `${this.id}-text`});
    this.reset = element('button', {class: 'icon field-reset', type: 'button', title: 'Reset to the default',
      'aria-label': `Reset to the default: ${field.path}`, onclick: () => this.takeBack()}, '↺');
    this.input = this.makeInput();
    this.null = this.makeNull();
    this.element = element('div', {class: 'field', dataset: {path: field.path}}, this.head(),
      element('div', {class: 'field-input'}, this.input, this.null, this.reset), this.text);
    this.setError(null);
    this.mark(false);
  }

  head() {
    const {path, type, range, also, unread, default: usual, is_secret: secret} = this.field;
    const short = this.field.names.find((name) => name !== path), word = path.split('.').at(-1);
    const facts = [type, range, usual === null ? null : `default ${usual === '' || secret ? '…' : usual}`].filter(Boolean);
    return element('div', {class: 'field-head'},
      element('label', {for: this.id, title: path}, word),
      short && short !== word && element('span', {class: 'tag', title: 'Short name'}, short),
      element('div', {class: 'field-type'}, facts.join(' · ')),
      unread && element('div', {class: 'field-type warn', title: unread}, withCode(unread)),
      also.length > 0 && element('div', {class: 'field-type', title: also.join('\n')}, `also sets ${also.join(', ')}`));
  }

  makeInput() {
    const {kind, choices, nullable, is_secret: secret} = this.field;
    const shared = {id: this.id, 'aria-describedby': `${this.id}-text`, spellcheck: 'false', autocomplete: 'off',
      autocapitalize: 'off'};
    if (kind === 'bool' || kind === 'choice') {
      const options = [...(kind === 'bool' ? ['true', 'false'] : choices)];
      if (nullable && !options.includes('null')) options.push('null');
      return element('select', {...shared, onchange: () => this.edit({text: this.input.value})},
        options.map((text) => option(text)));
    }
    if (secret) {
      return element('input', {...shared, type: 'password', oninput: () =>
        this.edit(kind === 'string' ? {string: this.input.value} : {text: this.input.value})});
    }
    if (kind === 'int' || kind === 'float') {
      return element('input', {...shared, type: 'text', inputmode: kind === 'int' ? 'numeric' : 'decimal',
        oninput: () => this.edit({text: this.input.value})});
    }
    const lines = element('textarea', {...shared, rows: 1, class: kind === 'yaml' && 'mono', oninput: () => {
      grow(lines);
      this.edit(kind === 'yaml' ? {text: lines.value} : {string: lines.value});
    }});
    return lines;
  }

  /** The button for null beside an input of strings, in which null would be a word. */
  makeNull() {
    if (this.field.kind !== 'string' || !this.field.nullable) return null;
    return element('button', {class: 'small field-null', type: 'button', 'aria-pressed': 'false',
      title: 'null: nothing, which is not the empty string', onclick: () => {
        const isNull = this.null.getAttribute('aria-pressed') === 'true';
        this.edit(isNull ? {string: this.input.value} : {text: 'null'});
        if (isNull) this.input.focus();
      }}, 'null');
  }

  edit(edit) {
    const {kind, default: usual, default_string: string} = this.field;
    const isDefault = 'string' in edit ? string !== null && edit.string === string : edit.text === usual;
    const isEmpty = kind !== 'string' && !('string' in edit) && edit.text.trim() === '';
    const chosen = isDefault || isEmpty ? null : edit;
    this.mark(chosen !== null);
    if (this.null) this.showNull(edit.text === 'null');
    this.changed(this.key, chosen);
  }

  takeBack() {
    this.mark(false);
    this.show(this.field.default ?? '', this.field.default_string);
    this.changed(this.key, null);
    this.input.focus();
  }

  mark(isEdited) {
    this.isEdited = isEdited;
    this.element.classList.toggle('edited', isEdited);
    this.reset.classList.toggle('idle', !isEdited);
    this.reset.disabled = !isEdited;
  }

  /** Shows an edit that was made elsewhere, as in the address. */
  showEdit(key, edit) {
    this.key = key;
    this.mark(true);
    if ('string' in edit) this.show(null, edit.string);
    else this.show(edit.text, null);
  }

  /** Shows a value: its text for --set and, if it is a string, that. The edited field stays. */
  show(text, string) {
    const isString = this.field.kind === 'string', isNull = isString && text === 'null' && string === null;
    const value = isString ? (isNull ? '' : string ?? text ?? '') : text ?? string ?? '';
    if (this.null) this.showNull(isNull);
    if (this.input.value === value) return;
    if (this.input.tagName === 'SELECT' && ![...this.input.options].some((each) => each.value === value)) {
      this.input.append(option(value));
    }
    this.input.value = value;
    if (this.input.tagName === 'TEXTAREA') grow(this.input);
  }

  showNull(isNull) {
    this.null.setAttribute('aria-pressed', String(isNull));
    this.input.placeholder = isNull ? 'null' : '';
    if (isNull) this.input.value = '';
  }

  /** Shows the driver's message about the field; null for nothing. */
  setError(lines) {
    this.hasError = Boolean(lines);
    if (lines) replace(this.text, lines.map((line) => element('div', {class: 'bad field-error'}, withCode(line))));
    else replace(this.text, withCode(this.field.meaning));
    this.text.title = lines ? '' : this.field.meaning;
    this.element.classList.toggle('wrong', this.hasError);
    if (lines) this.input.setAttribute('aria-invalid', 'true');
    else this.input.removeAttribute('aria-invalid');
  }
}

function option(text) {
  return element('option', {value: text}, text === '""' ? '(empty)' : text);
}

/** As many lines as there are, up to eight. */
function grow(area) {
  area.rows = Math.min(8, area.value.split('\n').length);
}

/** The row of a change that no field of the form has: a name that does not exist, or an entry of a mapping. */
export class OtherRow {
  constructor(key, edit, changed) {
    this.key = key;
    this.id = `field-${++number}`;
    this.search = key.toLowerCase();
    this.isEdited = true;
    this.text = element('div', {class: 'field-text', id: `${this.id}-text`});
    this.input = element('input', {id: this.id, type: 'text', class: 'mono', value: edit.text ?? edit.string, spellcheck: 'false',
      autocomplete: 'off', 'aria-describedby': `${this.id}-text`, oninput: () => changed(key, {text: this.input.value})});
    this.element = element('div', {class: 'field edited', dataset: {path: key}},
      element('div', {class: 'field-head'}, element('label', {for: this.id}, key),
        element('div', {class: 'field-type'}, 'a change by its name')),
      element('div', {class: 'field-input'}, this.input,
        element('button', {class: 'icon field-reset', type: 'button', title: 'Undo', 'aria-label': `Undo: ${key}`,
          onclick: () => {
            this.element.remove();
            changed(key, null);
          }}, '↺')), this.text);
  }

  setError(lines) {
    this.hasError = Boolean(lines);
    replace(this.text, (lines ?? []).map((line) => element('div', {class: 'bad field-error'}, withCode(line))));
    this.element.classList.toggle('wrong', this.hasError);
    if (lines) this.input.setAttribute('aria-invalid', 'true');
    else this.input.removeAttribute('aria-invalid');
  }
}
