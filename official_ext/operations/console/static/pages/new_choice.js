// The choice of an experiment, and its description.
import {append, element, replace, withCode} from '../dom.js';
import {commandWords, errorList} from '../parts.js';
import {navigate} from '../router.js';
import {withQuery} from '../api.js';

/** The list of experiments, with a search; a click or Enter chooses one. `lines`: why others are missing. */
export function choice(experiments, lines) {
  const list = element('ul', {class: 'experiments'}), count = element('span', {class: 'soft', role: 'status'});
  const search = element('input', {type: 'search', placeholder: 'Search experiments', 'aria-label': 'Search experiments',
    autofocus: true, oninput: () => filter(), onkeydown: (event) => {
      if (event.key === 'Enter') shown()[0]?.firstElementChild.click();
      if (event.key === 'ArrowDown') shown()[0]?.firstElementChild.focus();
    }});
  const shown = () => [...list.children].filter((item) => !item.hidden);
  append(list, experiments.map((each) => element('li', {dataset: {search: `${each.name}\n${each.doc}`.toLowerCase()}},
    element('a', {class: 'experiment', href: withQuery('/new', {experiment: each.name})},
      element('span', {class: 'experiment-name'}, each.name),
      element('span', {class: 'soft'}, withCode(each.summary || 'No description.'))))));
  list.addEventListener('keydown', (event) => {
    const steps = {ArrowDown: 1, ArrowUp: -1}[event.key], items = shown();
    const place = items.indexOf(document.activeElement.parentElement);
    if (!steps || place < 0) return;
    event.preventDefault();
    (items[place + steps]?.firstElementChild ?? (steps < 0 ? search : null))?.focus();
  });

  function filter() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const item of list.children) item.hidden = !words.every((word) => item.dataset.search.includes(word));
    replace(count, `${shown().length} of ${experiments.length}`);
  }

  filter();
  return [errorList(lines), element('div', {class: 'toolbar'}, search, count), list];
}

/** The description of an experiment: the command, the time, the result; the whole text behind a triangle. */
export function about(experiment) {
  const parts = Object.entries(experiment.parts);
  const rest = experiment.doc.split('\n').slice(1).join('\n').trim();
  const small = matchMedia('(max-width: 40rem)').matches;
  return element('section', {class: 'card about'},
    element('p', {}, withCode(experiment.summary || 'No description.')),
    parts.length > 0 && element('details', {open: !small}, element('summary', {}, 'Command, time and result'),
      element('dl', {class: 'facts'}, parts.map(([name, text]) =>
        [element('dt', {}, name), element('dd', {class: name === 'Command' && 'mono'}, name === 'Command' ? commandWords(text) : withCode(text))]))),
    rest && element('details', {}, element('summary', {}, 'Description'), element('pre', {class: 'doc'}, withCode(rest))));
}

/** The page's link to another experiment. */
export function changeLink() {
  return element('button', {class: 'small', type: 'button', onclick: () => navigate('/new')}, 'Other experiment');
}
