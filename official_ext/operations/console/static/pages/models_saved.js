// A SavedModel that is tried: a field for each tensor of its signature, which takes values or a picture.
import {post} from '../api.js';
import {element, replace} from '../dom.js';
import {metric, shellWord} from '../format.js';
import {command, errorList, link, loading} from '../parts.js';
import {head} from './models.js';
import {picturesOf} from './models_pictures.js';

const MOST_BARS = 10;
const MOST_LETTERS = 4000; // Of a command that is worth copying.
const RANGES = ['0..255', '0..1', '-1..1'];

/** Shows the form of a SavedModel. */
export async function showSavedModel(view, {run, result, signal}) {
  const top = head('Try a model', element('span', {class: 'anywhere'}, `${run.name} / ${result.name}`),
    link('/models', 'All models'));
  const place = element('div', {});
  replace(view, top, place);
  const done = loading(place, 'Loading the model; TensorFlow takes a few seconds…');
  let signatures, labels;
  try {
    ({signatures, labels} = await post('/api/models/open', {run: run.name, result: result.name}, {signal}));
  } catch (error) {
    done();
    if (!signal.aborted) replace(place, errorList(error.lines ?? [String(error)]));
    return;
  }
  done();
  const names = Object.keys(signatures);
  const form = element('form', {class: 'card try', novalidate: true});
  const outputs = element('section', {class: 'card', 'aria-label': 'Outputs', 'aria-live': 'polite'},
    element('p', {class: 'soft'}, 'Outputs appear here.'));
  let fields = [];

  const choice = names.length > 1 && element('label', {class: 'inline'}, 'Signature', element('select', {
    onchange: (event) => fill(event.target.value)}, names.map((name) => element('option', {value: name}, name))));

  const shell = element('div', {class: 'as-command'});

  function showCommand(name) {
    const words = fields.map((one) => one.word()).filter(Boolean);
    const text = [result.command, ...(name === names[0] ? [] : [shellWord(`--signature=${name}`)]), ...words].join(' ');
    replace(shell, element('span', {class: 'soft'}, 'The same in a shell'),
      command(text.length > MOST_LETTERS ? result.command : text));
  }

  function fill(name) {
    fields = signatures[name].inputs.map((spec) => field(spec, () => showCommand(name)));
    showCommand(name);
    const problems = element('div', {});
    const button = element('button', {class: 'primary', type: 'submit'}, 'Compute');
    replace(form, choice, fields.map((one) => one.node), element('div', {class: 'toolbar'}, button), problems);
    form.onsubmit = async (event) => {
      event.preventDefault();
      button.disabled = true;
      for (const one of fields) one.setError('');
      replace(problems);
      replace(outputs, element('p', {class: 'soft'}, 'Computing…'));
      try {
        const inputs = Object.fromEntries(fields.map((one) => [one.name, one.value()]));
        const begun = performance.now();
        const found = await post('/api/models/predict', {run: run.name, result: result.name, signature: name, inputs}, {signal});
        showOutputs(outputs, found.outputs, performance.now() - begun, fields.map((one) => one.picture()).find(Boolean), labels);
      } catch (error) {
        if (signal.aborted) return;
        replace(outputs, element('p', {class: 'soft'}, 'No outputs: the input was refused.')); // Not those of an earlier input.
        const rest = (error.lines ?? [String(error)]).filter((text) => !fields.some((one) => one.takes(text)));
        replace(problems, errorList(rest));
      } finally {
        button.disabled = false;
      }
    };
  }

  replace(place, element('div', {class: 'try-columns'}, form, outputs), shell);
  fill(names[0]);
}

function shapeOf(spec) {
  return spec.shape ? `(${spec.shape.map((size) => size ?? 'any').join(', ')})` : 'any shape';
}

/** Whether a tensor can be a picture: of four dimensions, a square in one, or the bytes of a file. */
function isPicture({dtype, shape}) {
  if (!shape) return false;
  if (dtype === 'string') return shape.length <= 1;
  if (shape.length === 4) return [1, 3, 4, null].includes(shape[3]);
  return shape.length === 2 && shape[1] > 15 && Number.isInteger(Math.sqrt(shape[1]));
}

function exampleOf({dtype, shape}) {
  if (dtype === 'string') return 'text, or ["one", "two"]';
  const rest = (shape ?? []).slice(1);
  const size = rest.reduce((product, one) => product * (one ?? 2), 1);
  if (size > 64) return `${size} numbers, nested as ${shapeOf({shape})}`;
  const zeros = (sizes) => sizes.length ? Array.from({length: sizes[0] ?? 2}, () => zeros(sizes.slice(1))) : 0;
  return JSON.stringify(zeros(rest));
}

function field(spec, changed) {
  let image = null;
  const problem = element('div', {class: 'bad problem', role: 'alert'});
  const area = element('textarea', {rows: 4, class: 'mono', spellcheck: 'false', placeholder: exampleOf(spec),
    id: `input-${spec.name}`, oninput: () => setImage(null)});
  const picture = element('img', {class: 'picture', alt: 'The picture', hidden: true});
  const range = element('select', {'aria-label': 'The range of its values', onchange: () => changed()},
    RANGES.map((one) => element('option', {value: one, selected: one === spec.range}, one)));
  const isRangeKnown = RANGES.includes(spec.range);
  const remove = element('button', {type: 'button', class: 'small', hidden: true, onclick: () => setImage(null)}, 'Remove');
  const file = element('input', {type: 'file', accept: 'image/png,image/jpeg,image/gif,image/bmp',
    'aria-label': `A picture for ${spec.name}`, onchange: () => file.files[0] && read(file.files[0])});

  function read(chosen) {
    const reader = new FileReader();
    reader.onload = () => setImage(reader.result, chosen);
    reader.readAsDataURL(chosen);
  }

  function setImage(url) {
    image = url === null ? null : url.slice(url.indexOf(',') + 1);
    picture.hidden = remove.hidden = image === null;
    if (image === null) file.value = '';
    else {
      area.value = '';
      if (/^data:image\/(png|jpeg|gif);/.test(url)) picture.src = url;
    }
    changed();
  }

  const node = element('div', {class: 'tensor', ondragover: (event) => event.preventDefault(), ondrop: (event) => {
    event.preventDefault();
    if (isPicture(spec) && event.dataTransfer.files[0]) read(event.dataTransfer.files[0]);
  }},
  element('label', {for: `input-${spec.name}`}, element('strong', {}, spec.name), ' ',
    element('span', {class: 'soft mono'}, `${spec.dtype} ${shapeOf(spec)}`)), area,
  isPicture(spec) && element('div', {class: 'toolbar'}, file, spec.dtype.startsWith('float') && !isRangeKnown && range, remove, picture), problem);

  return {
    name: spec.name, node,
    word() {
      if (image === null) return area.value.trim() && shellWord(`--input=${spec.name}=${area.value}`);
      const flag = range.isConnected && range.value !== RANGES[0] ? ` --range=${range.value}` : '';
      return shellWord(`--image=${spec.name}=${file.files[0]?.name ?? 'FILE'}`) + flag;
    },
    value: () => image === null ? {text: area.value} : isRangeKnown ? {image} : {image, range: range.value},
    picture: () => image === null || picture.hidden || !picture.src ? null : picture.src,
    takes(text) {
      const mark = `inputs.${spec.name}: `;
      if (!text.startsWith(mark)) return false;
      this.setError(text.slice(mark.length));
      return true;
    },
    setError(text) {
      problem.textContent = text;
      area.setAttribute('aria-invalid', text ? 'true' : 'false');
    },
  };
}

function showOutputs(place, outputs, milliseconds, picture, labels) {
  replace(place, element('p', {class: 'soft'}, `${Math.round(milliseconds)} ms`), picturesOf(outputs, picture, labels), Object.entries(outputs).map(([name, one]) =>
    element('div', {class: 'output'}, element('h3', {}, name, ' ',
      element('span', {class: 'soft mono'}, `${one.dtype} (${one.shape.join(', ')})`)), bars(name, one, labels) ?? values(one))));
}

function values({values: found}) {
  if (found === null) return element('p', {class: 'soft'}, 'Too many values to be shown.');
  return element('pre', {class: 'values'}, typeof found === 'string' ? found : JSON.stringify(found, null, 1)
    .replace(/\[\n\s*(?=[-\d"])/g, '[').replace(/,\n\s*(?=[-\d"])/g, ', ').replace(/([^\]\s])\n\s*\]/g, '$1]'));
}

/** The highest values of each row of a matrix with a column for each class, as bars; null for other outputs. */
function bars(name, {shape, values: found, dtype}, labels = []) {
  if (name.startsWith('detection_')) return null; // A column for each object.
  if (shape.length !== 2 || found === null || dtype === 'string' || shape[1] < 2 || shape[0] > 16) return null;
  return found.map((row) => {
    const numbers = row.map(Number), least = Math.min(0, ...numbers), most = Math.max(...numbers);
    const order = numbers.map((value, place) => [value, place]).sort((a, b) => b[0] - a[0]).slice(0, MOST_BARS);
    return element('ol', {class: 'bars'}, order.map(([value, place]) => element('li', {},
      element('span', {class: 'number', title: labels[place] ?? null}, labels[place] ?? place), element('span', {class: 'bar', 'aria-hidden': 'true'},
        element('span', {class: 'bar-fill', style: {width: `${100 * (value - least) / ((most - least) || 1)}%`}})),
      element('span', {class: 'number mono'}, metric(value)))));
  });
}
