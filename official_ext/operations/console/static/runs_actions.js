// Actions on several runs at once. Each calls the function of `official-ext runs`.
import {post} from './api.js';
import {confirm, dialog, prompt} from './dialog.js';
import {element} from './dom.js';
import {plural} from './format.js';
import {isLiving} from './runs_columns.js';
import {toast, toastError} from './toast.js';

/** Posts, and shows errors; returns the answer, null if there is none. */
async function act(path, body, text, action = null) {
  try {
    const answer = await post(path, body);
    if (answer.done.length) toast(text(answer), {action: action?.(answer)});
    if (answer.errors.length) toast(answer.errors, {kind: 'error'});
    return answer;
  } catch (error) {
    toastError(error);
    return null;
  }
}

const namesOf = (runs) => runs.map((run) => run.name);
const count = (answer) => plural(answer.done.length, 'run');

/** The names of runs in a dialog: the first of many. */
function list(runs) {
  return element('ul', {class: 'names'}, runs.slice(0, 8).map((run) => element('li', {class: 'cut'}, run.name)),
    runs.length > 8 && element('li', {class: 'soft'}, `and ${runs.length - 8} more`));
}

/** Asks runs to save and stop; or ends them at once. */
export async function stop(runs, signal) {
  const chosen = runs.filter(isLiving);
  const how = await dialog(`Stop ${plural(chosen.length, 'run')}?`, [
    element('p', {}, 'Each saves a checkpoint at its next step and stops (SIGTERM). Resume continues from there.'), list(chosen)],
  [{text: 'Cancel', value: null}, {text: 'Stop without a save', value: 'now', kind: 'danger'},
    {text: 'Save and stop', value: 'save', kind: 'primary'}], {signal});
  if (!how) return null;
  return act('/api/runs/stop', {runs: namesOf(chosen), now: how === 'now'}, (answer) =>
    how === 'now' ? `${count(answer)} ended` : `${count(answer)} will save and stop`);
}

/** Resumes runs, detached. */
export async function resume(runs) {
  const chosen = runs.filter((run) => !isLiving(run));
  return act('/api/runs/resume', {runs: namesOf(chosen)}, (answer) => `${count(answer)} started again`);
}

/** Adds or removes tags. */
export async function tag(runs, signal) {
  const common = runs.map((run) => run.tags).reduce((all, tags) => all.filter((one) => tags.includes(one)));
  const text = await prompt(`Tags of ${plural(runs.length, 'run')}`, {label: 'Common tags', text: 'Save',
    value: common.join(', '), hint: 'Separated by commas. Other tags of a run are kept.', signal});
  if (text === null) return null;
  return setTags(runs, common, text);
}

/** Gives runs the tags in a text in place of others. */
export async function setTags(runs, before, text) {
  const wanted = text.split(',').map((word) => word.trim()).filter(Boolean);
  const body = {runs: namesOf(runs), add: wanted.filter((word) => !before.includes(word)),
    remove: before.filter((word) => !wanted.includes(word))};
  if (!body.add.length && !body.remove.length) return {done: [], errors: []};
  return act('/api/runs/tag', body, (answer) => `Tags of ${count(answer)} changed`);
}

/** Gives a run a note. */
export async function setNote(run, note) {
  return act('/api/runs/tag', {runs: [run.name], note}, () => `Note of ${run.name} changed`);
}

/** Takes runs out of the list. */
export async function archive(runs) {
  return act('/api/runs/archive', {runs: namesOf(runs)}, (answer) => `${count(answer)} archived`, (answer) =>
    ({text: 'Undo', do: () => unarchive(answer.done.map(({run}) => ({name: run})))}));
}

/** Takes runs into the list again. */
export async function unarchive(runs) {
  return act('/api/runs/unarchive', {runs: namesOf(runs)}, (answer) => `${count(answer)} in the list again`);
}

/** Moves runs to the trash. */
export async function remove(runs, signal) {
  const sure = await confirm(`Delete ${plural(runs.length, 'run')}?`, [
    element('p', {}, 'Deleted runs can be restored from the trash. A running run is not deleted: stop it first.'),
    list(runs)], 'Delete', {kind: 'danger', signal});
  if (!sure) return null;
  return act('/api/runs/delete', {runs: namesOf(runs)}, (answer) => `${count(answer)} in the trash`, (answer) =>
    ({text: 'Undo', do: () => restore(answer.done.map(({key}) => key))}));
}

/** Brings runs back from the trash. */
export async function restore(keys) {
  return act('/api/runs/restore', {keys}, (answer) => `${count(answer)} restored`);
}

/** Deletes runs in the trash with all their files. */
export async function removeForever(deleted, signal) {
  const sure = await confirm(`Delete ${plural(deleted.length, 'run')} permanently?`, [
    element('p', {}, 'All their files are deleted, checkpoints too. This cannot be undone.'), list(deleted)],
  'Delete permanently', {kind: 'danger', signal});
  if (!sure) return null;
  return act('/api/runs/delete_forever', {keys: deleted.map((each) => each.key)}, (answer) => `${count(answer)} deleted`);
}
