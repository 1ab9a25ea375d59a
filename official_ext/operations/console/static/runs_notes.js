// The columns of people's notes on runs, which are edited in place.
import {element, replace} from './dom.js';
import {setNote, setTags} from './runs_actions.js';

const sameTags = (run, before) => run.tags.join() === before.tags.join() && run.name === before.name;

/**
 * The columns tags and note.
 *
 * @param {function(string)} onTag - a click on a tag.
 * @returns {Object} name -> column, see table.js.
 */
export function notesColumns(onTag) {
  return {
    tags: {name: 'tags', title: 'Tags', width: 108, sortable: true, class: 'tags', isSame: sameTags,
      render: (run) => shown('Edit tags', run.tags.map((tag) => element('button', {class: 'tag', title: `Only runs with the tag ${tag}`,
        onclick: () => onTag(tag)}, tag)), (cell) => edit(cell, run.tags.join(', '), 'Tags, separated by commas', (text) =>
        setTags([run], run.tags, text)))},
    note: {name: 'note', title: 'Note', width: 240, sortable: true, class: 'note',
      isSame: (run, before) => run.note === before.note && run.name === before.name,
      render: (run) => shown('Edit the note', element('span', {class: 'cut', title: run.note || null}, run.note.split('\n')[0]),
        (cell) => edit(cell, run.note, 'Note', (text) => setNote(run, text), run.note.includes('\n')))},
  };
}

function shown(label, content, onEdit) {
  const made = element('div', {class: 'editable'}, element('span', {class: 'editable-content'}, content),
    element('button', {class: 'icon edit', title: label, 'aria-label': label, onclick: () => onEdit(made)}, '✎'));
  return made;
}

/** Lets the user change a text in the place where it is shown; Enter or leaving keeps it, Escape does not. */
function edit(place, text, label, save, isLong = false) {
  const input = element(isLong ? 'textarea' : 'input', {...(isLong ? {rows: 1} : {type: 'text'}), value: text, 'aria-label': label,
    class: 'in-place', autocomplete: 'off', spellcheck: 'false'});
  const before = [...place.childNodes];
  let isOver = false;
  const end = async (keep, back) => {
    if (isOver) return;
    isOver = true;
    const changed = input.value !== text;
    input.disabled = true;
    if (keep && changed) await save(input.value);
    replace(place, before); // The list of runs brings the changes.
    if (back) place.querySelector('.edit')?.focus();
  };
  input.addEventListener('keydown', (event) => {
    event.stopPropagation();
    if (event.key === 'Enter' && !event.shiftKey) {
      event.preventDefault();
      end(true, true);
    }
    if (event.key === 'Escape') end(false, true);
  });
  input.addEventListener('blur', () => end(true, false));
  replace(place, input);
  input.focus();
  input.select();
}
