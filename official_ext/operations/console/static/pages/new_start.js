// The start of the process that holds TensorFlow: its steps, as it reports them, with their seconds.
import {get} from '../api.js';
import {element, replace, setText} from '../dom.js';

const DELAY_MS = 800; // An answer that is quicker needs no explanation.
const POLL_MS = 400;

/** Shows the steps in a place while an answer is awaited; returns a function that ends it and empties the place. */
export function showStart(place, signal) {
  const name = element('span', {role: 'status'}), list = element('ol', {class: 'start-steps'}), total = element('span', {class: 'soft'});
  const node = element('div', {class: 'start-progress'}, element('p', {}, name, ' ', total), list);
  let timer = setTimeout(poll, DELAY_MS), isOver = false;

  async function poll() {
    try {
      tell((await get('/api/new/stages', {}, {signal})).stages);
    } catch (error) {
      if (error.name === 'AbortError') return;
    }
    if (!isOver && !signal.aborted) timer = setTimeout(poll, POLL_MS);
  }

  function tell(stages) {
    if (isOver || !stages.length) {
      node.remove();
      return;
    }
    if (!node.isConnected) replace(place, node);
    setText(name, `The process that checks the form is ${stages.at(-1).name}.`);
    setText(total, `${seconds(stages.reduce((sum, stage) => sum + stage.seconds, 0))} so far, usually 6 to 20 s. Other pages are available meanwhile.`);
    replace(list, stages.map((stage, index) => element('li', {class: index === stages.length - 1 && 'current'},
      element('span', {}, stage.name), element('span', {class: 'soft'}, seconds(stage.seconds)))));
  }

  signal.addEventListener('abort', () => clearTimeout(timer));
  return () => {
    isOver = true;
    clearTimeout(timer);
    node.remove();
  };
}

function seconds(value) {
  return `${value < 10 ? value.toFixed(1) : Math.round(value)} s`;
}
