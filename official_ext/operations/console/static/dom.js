// Elements. Every text becomes a text node: names, tags and logs are text, with any contents.

/**
 * Makes an element.
 *
 * @param {string} tag - its name; for SVG such as `svg:path`.
 * @param {Object} attributes - by name. names such as `onclick` are listeners; `class` a text or a list, in which what is
 *   false is left out; `style` an object of properties (a text is refused by the policy of the page); `dataset` an
 *   object; `value`, `checked`, `selected`, `disabled`, `hidden` and `indeterminate` are properties. null, undefined and
 *   false leave an attribute out.
 * @param {...(Node|string|number|Array|null|false)} children - nodes and texts; lists of them; null and false are skipped.
 * @returns {Element}
 */
export function element(tag, attributes = {}, ...children) {
  const made = tag.startsWith('svg:') ?
    document.createElementNS('http://www.w3.org/2000/svg', tag.slice(4)) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) set(made, name, value);
  append(made, children);
  return made;
}

const PROPERTIES = new Set(['value', 'checked', 'selected', 'disabled', 'hidden', 'indeterminate', 'open']);
const ADDRESSES = new Set(['href', 'src', 'action', 'formaction', 'xlink:href']);

function set(made, name, value) {
  if (value === null || value === undefined || value === false) {
    if (PROPERTIES.has(name)) made[name] = name === 'value' ? value ?? '' : false;
  } else if (name.startsWith('on')) {
    if (typeof value !== 'function') throw new TypeError(`${name} is not a function`);
    made.addEventListener(name.slice(2), value);
  } else if (name === 'class') {
    const names = Array.isArray(value) ? value.filter(Boolean).join(' ') : value;
    if (names) made.setAttribute('class', names);
  } else if (name === 'style') {
    for (const [property, text] of Object.entries(value)) made.style.setProperty(property, text);
  } else if (name === 'dataset') {
    Object.assign(made.dataset, value);
  } else if (PROPERTIES.has(name)) {
    made[name] = value;
  } else if (ADDRESSES.has(name) && !/^(\/(?!\/)|#|blob:|data:image\/(png|jpeg|gif|webp);)/.test(String(value))) {
    throw new TypeError(`${name} leads out of the console`);
  } else {
    made.setAttribute(name, value === true ? '' : String(value));
  }
}

/** Adds nodes, texts, and lists of them to an element. */
export function append(parent, children) {
  for (const child of [children].flat(Infinity)) {
    if (child === null || child === undefined || child === false || child === '') continue;
    parent.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** Puts other children into an element. */
export function replace(parent, ...children) {
  parent.replaceChildren();
  append(parent, children);
}

/** Sets the text of an element, if it is another: a selection in it stays. */
export function setText(made, text) {
  if (made.textContent !== String(text)) made.textContent = String(text);
}

/** A text as nodes: the parts between backticks are code. */
export function withCode(text) {
  return String(text).split(/(`+)([^`]+)\1/).map((part, index) => index % 3 === 2 ? element('code', {}, part) : index % 3 === 1 ? null : part);
}
