// Which runs are shown: statuses, tags, words, and the conditions that `runs list --filter` takes, which the server judges.

const CONDITION = /^[^\s=<>!~]+(<=|>=|!=|=|<|>|~)/;

/**
 * The parts of a filter's text: `learning_rate=1e-3 accuracy>0.9 "name~my run" resnet`.
 *
 * @param {string} text - words, and conditions; a quoted part may have spaces.
 * @returns {{conditions: string[], words: string[]}} words in small letters.
 */
export function parseFilter(text) {
  const parts = text.replace(/("[^"]*")|\s*(<=|>=|!=|=|<|>|~)\s*/g, (all, quoted, sign) => quoted ?? sign)
    .match(/(?:[^\s"]+|"[^"]*")+/g) ?? [];
  const plain = parts.map((part) => part.replaceAll('"', '')).filter(Boolean);
  return {
    conditions: plain.filter((part) => CONDITION.test(part)),
    words: plain.filter((part) => !CONDITION.test(part)).map((part) => part.toLowerCase()),
  };
}

/**
 * The runs that are meant, without the conditions.
 *
 * @param {Object[]} runs - summaries.
 * @param {Object} wanted - `words`, all of them in a run's name, experiment, status, tags or note; `statuses`, any;
 *   `tags`, all; `names`, a Set of those for which the conditions hold, or null.
 */
export function chooseRuns(runs, {words, statuses, tags, names}) {
  return runs.filter((run) => (!names || names.has(run.name)) && (!statuses.length || statuses.includes(run.status)) &&
    tags.every((tag) => run.tags.includes(tag)) && words.every((word) => textOf(run).includes(word)));
}

const texts = new WeakMap();

function textOf(run) {
  let text = texts.get(run);
  if (text === undefined) {
    text = [run.name, run.experiment, run.status, run.mode, ...run.tags, run.note].join('\n').toLowerCase();
    texts.set(run, text);
  }
  return text;
}

const collator = new Intl.Collator('en', {numeric: true});

/**
 * Runs in an order, those without a value last.
 *
 * @param {Object[]} runs - summaries.
 * @param {function(Object)} valueOf - of a run: a number, a text, or null.
 * @param {boolean} descending
 */
export function sortRuns(runs, valueOf, descending) {
  const sign = descending ? -1 : 1, known = [], unknown = [];
  for (const run of runs) {
    const value = valueOf(run);
    if (value === null || value === undefined || value === '' || Number.isNaN(value)) unknown.push(run);
    else known.push([value, run]);
  }
  known.sort(([one, first], [other, second]) => sign * compare(one, other) || collator.compare(first.name, second.name));
  return [...known.map(([, run]) => run), ...unknown.sort((one, other) => collator.compare(one.name, other.name))];
}

function compare(one, other) {
  const numbers = typeof one === 'number' && typeof other === 'number';
  if (numbers) return one - other;
  if (typeof one !== typeof other) return typeof one === 'number' ? -1 : 1;
  return collator.compare(String(one), String(other));
}
