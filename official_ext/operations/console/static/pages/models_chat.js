// Chat with a language model, or with two side by side. The conversation stays in the page; answers are text, never HTML.
import {ApiError, getSession, post} from '../api.js';
import {element, replace, setText} from '../dom.js';
import {command, errorList, link} from '../parts.js';
import {setQuery} from '../router.js';
import {head} from './models.js';

const SETTINGS = [
  ['max_new_tokens', 'Maximum number of tokens', 1],
  ['temperature', '0: the likeliest token; above: drawn', 'any'],
  ['top_k', 'Number of most likely tokens; 0: all', 1],
  ['top_p', 'Cumulative probability of the most likely tokens; 1: all', 'any'],
  ['min_p', 'Least probability, relative to the most likely token', 'any'],
  ['repetition_penalty', 'Above 1: fewer repetitions', 'any'],
  ['seed', 'Equal seeds draw equal tokens', 1],
];

/** Shows a chat; `query` may name a second model (run2, result2), and base, base2 for the base of adapters. */
export async function showChat(view, {run, result, runs, query, signal}) {
  const models = runs.flatMap((one) => one.results.filter((each) => each.kind !== 'saved_model').flatMap((each) =>
    variantsOf(one, each)));
  const find = (suffix) => models.find((model) => model.run === query.get(`run${suffix}`) &&
    model.result === query.get(`result${suffix}`) && model.base === (query.get(`base${suffix}`) === '1') &&
    model.in4bit === (query.get(`in4bit${suffix}`) ?? ''));
  const settings = makeSettings();
  const system = element('textarea', {rows: 2, id: 'system', placeholder: 'System message',
    oninput: () => changed()});
  const columns = element('div', {class: 'chat-columns'});
  const shell = element('div', {class: 'as-command'});
  const input = element('textarea', {rows: 3, id: 'message', placeholder: 'A message; Enter sends it, Shift+Enter is a new line',
    'aria-label': 'Message'});
  const send = element('button', {class: 'primary', type: 'submit'}, 'Send');
  const stop = element('button', {type: 'button', onclick: () => stopAll(), disabled: true}, 'Stop');
  const clear = element('button', {type: 'button', onclick: () => talks.forEach((talk) => talk.clear())}, 'Clear');
  const more = element('button', {type: 'button', onclick: () => {
    if (talks.length === 1) add(models.find((model) => model !== talks[0].model && !model.in4bit) ?? models[0]);
    else drop();
  }}, 'Compare with another');
  let talks = [];

  function add(model) {
    talks.push(makeTalk(model, models, changed, settings, signal));
    columns.append(talks.at(-1).node);
    changed();
  }

  function drop() {
    talks.pop().leave();
    changed();
  }

  function changed() {
    const [one, two] = talks.map((talk) => talk.model);
    setText(more, two ? 'Only one' : 'Compare with another');
    columns.classList.toggle('two', talks.length === 2);
    setQuery({run: one.run, result: one.result, base: one.base, in4bit: one.in4bit,
      run2: two?.run, result2: two?.result, base2: two?.base, in4bit2: two?.in4bit});
    replace(shell, one.command && [element('span', {class: 'soft'}, 'The same in a shell'),
      command([one.command, ...settings.flags(), system.value && shellWord(`--system_prompt=${system.value}`)]
        .filter(Boolean).join(' '))]);
    const isChat = talks.every((talk) => talk.hasTemplate !== false);
    input.placeholder = isChat ? 'A message; Enter sends it, Shift+Enter is a new line' : 'Text to continue';
  }

  function stopAll() {
    for (const talk of talks) talk.stop();
  }

  const form = element('form', {class: 'chat-form', onsubmit: async (event) => {
    event.preventDefault();
    const text = input.value;
    if (!text.trim() || send.disabled) return;
    settings.clearErrors();
    send.disabled = true;
    stop.disabled = false;
    input.value = '';
    const answered = await Promise.all(talks.map((talk) => talk.say(text, system.value)));
    if (signal.aborted) return;
    if (!answered.some(Boolean)) input.value = input.value || text;
    send.disabled = false;
    stop.disabled = true;
    input.focus();
  }}, input, element('div', {class: 'toolbar'}, send, stop, clear, more));
  input.addEventListener('keydown', (event) => {
    if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      form.requestSubmit();
    }
  });
  signal.addEventListener('abort', stopAll);

  replace(view, head('Chat', link('/models', 'All models')), element('div', {class: 'chat'}, columns, form,
    element('details', {class: 'card settings'}, element('summary', {}, 'Settings'),
      element('label', {class: 'stacked'}, 'System prompt', system), settings.node), shell));
  settings.onchange = changed;
  add(find('') ?? models.find((model) => model.run === run.name && model.result === result.name));
  const second = query.get('run2') && find('2');
  if (second) add(second);
  input.focus();
}

/** A result as it was trained, and in 4 bits or not if that is another model; the base of adapters. */
function variantsOf(run, result) {
  const is4bit = result.base_kept?.startsWith('nf4');
  const made = (base, in4bit, text) => ({run: run.name, result: result.name, base, in4bit, text,
    command: base ? null : [result.command, in4bit && `--load_in_4bit=${in4bit}`].filter(Boolean).join(' ')});
  const name = `${run.name} / ${result.name}`;
  return [
    made(false, '', is4bit ? `${name}, in 4 bits as trained` : name),
    is4bit ? made(false, 'false', `${name}, over float weights`) : made(false, 'true', `${name}, in 4 bits`),
    ...(result.has_base ? [made(true, '', `base of ${name}`)] : []),
  ];
}

// The settings: empty fields are as the model's own generation_config.json says.

function makeSettings() {
  const made = {onchange: () => {}};
  const fields = Object.fromEntries(SETTINGS.map(([name, hint, step]) => {
    const input = element('input', {type: 'number', step, id: `setting-${name}`, 'aria-describedby': `hint-${name}`,
      oninput: () => made.onchange()});
    const problem = element('span', {class: 'bad problem', role: 'alert'});
    return [name, {input, problem, node: element('label', {class: 'stacked'}, name, input,
      element('span', {class: 'hint', id: `hint-${name}`}, hint), problem)}];
  }));
  const set = () => Object.entries(fields).filter(([, {input}]) => input.value !== '');
  return Object.assign(made, {
    node: element('div', {class: 'settings-fields'}, Object.values(fields).map(({node}) => node)),
    values: () => Object.fromEntries(set().map(([name, {input}]) => [name, Number(input.value)])),
    flags: () => set().map(([name, {input}]) => `--${name}=${input.value}`),
    showDefaults(values) {
      for (const [name, value] of Object.entries(values)) if (fields[name]) fields[name].input.placeholder = value;
    },
    clearErrors() {
      for (const {problem, input} of Object.values(fields)) {
        setText(problem, '');
        input.removeAttribute('aria-invalid');
      }
    },
    /** Shows those lines of errors that are about a setting at its field, and returns the others. */
    takeErrors: (lines) => lines.filter((line) => {
      const name = /^--(\w+): /.exec(line)?.[1];
      if (!fields[name]) return true;
      setText(fields[name].problem, line);
      fields[name].input.setAttribute('aria-invalid', 'true');
      fields[name].input.closest('details').open = true;
      return false;
    }),
  });
}

// The conversation with one model.

function makeTalk(model, models, changed, settings, signal) {
  let messages = [], answering = null, defaults = null;
  const list = element('div', {class: 'messages', role: 'log', 'aria-live': 'polite', tabindex: 0, 'aria-label': 'Conversation'});
  const note = element('div', {class: 'soft note', 'aria-live': 'polite'});
  const choice = element('select', {'aria-label': 'Model', onchange: () => {
    talk.stop();
    talk.model = models[choice.selectedIndex];
    talk.clear();
    open();
    changed();
  }}, models.map((one) => element('option', {selected: one === model}, one.text)));
  const node = element('section', {class: 'card talk', 'aria-label': 'Conversation'}, choice, list, note);

  const named = () => ({run: talk.model.run, result: talk.model.result, ...(talk.model.base && {base: true}),
    ...(talk.model.in4bit && {load_in_4bit: talk.model.in4bit === 'true'})});

  async function open() {
    const asked = talk.model;
    setText(note, 'Loading the model; TensorFlow takes a few seconds…');
    try {
      const found = await post('/api/models/open', named(), {signal});
      if (talk.model !== asked) return;
      talk.hasTemplate = found.has_chat_template;
      defaults = found.settings;
      settings.showDefaults(defaults);
      const base = found.base ? `; ${found.base}` : '';
      setText(note, (found.has_chat_template ? `${found.model_type}, ${found.positions} positions` :
        `${found.model_type}: has no chat template, and continues texts`) + base);
      changed();
    } catch (error) {
      if (signal.aborted || talk.model !== asked) return;
      replace(note, errorList(error.lines ?? [String(error)]));
    }
  }

  function bubble(role, text) {
    const made = element('div', {class: ['message', role]}, text);
    const atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 40;
    list.append(made);
    if (atEnd) list.scrollTop = list.scrollHeight;
    return made;
  }

  const talk = {
    model, node, hasTemplate: null,
    clear() {
      talk.stop();
      messages = [];
      replace(list);
    },
    stop() {
      answering?.abort();
    },
    leave() {
      talk.stop();
      node.remove();
    },
    /** Sends a message, and shows the answer as it comes; returns whether there was one. */
    async say(text, systemPrompt) {
      const said = bubble('user', text), answer = bubble('assistant', ''), controller = new AbortController();
      answering = controller;
      node.setAttribute('aria-busy', 'true');
      const begun = performance.now(), isChat = talk.hasTemplate !== false;
      const asked = isChat ? {messages: [...messages, {role: 'user', content: text}], system_prompt: systemPrompt} : {prompt: text};
      let whole = '', first = null;
      setText(note, 'Waiting for the first token…');
      try {
        for await (const part of ask({...named(), ...asked, settings: settings.values()}, controller.signal)) {
          if (part.errors) throw new ApiError(part.errors, 200);
          if (part.text) {
            first ??= performance.now();
            whole += part.text;
            const atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 40;
            answer.textContent = whole;
            if (atEnd) list.scrollTop = list.scrollHeight;
          }
          if (part.done) {
            const seconds = (performance.now() - (first ?? begun)) / 1000;
            setText(note, `${part.tokens} tokens, ${(part.tokens / Math.max(seconds, 1e-3)).toFixed(1)} a second` +
              (part.ended_by === 'max_new_tokens' ? '; stopped at max_new_tokens' : '') +
              (part.forgotten > 0 ? `; the context is full: the ${part.forgotten} oldest messages are forgotten` : ''));
          }
        }
      } catch (error) {
        if (error.name !== 'AbortError') {
          const rest = settings.takeErrors(error.lines ?? [String(error)]);
          said.remove();
          answer.remove();
          replace(note, errorList(rest));
          return false;
        }
        setText(note, 'Stopped; the answer so far is kept.');
      } finally {
        answering = null;
        node.removeAttribute('aria-busy');
      }
      messages.push({role: 'user', content: text}, {role: 'assistant', content: whole});
      return true;
    },
  };
  open();
  return talk;
}

/** The lines of JSON of an answer, as they come. */
async function* ask(body, signal) {
  for (const again of [false, true]) {
    const {token} = await getSession(again);
    let answer;
    try {
      answer = await fetch('/api/models/chat', {method: 'POST', credentials: 'same-origin', signal, body: JSON.stringify(body),
        headers: {'Content-Type': 'application/json', 'X-Console-Token': token}});
    } catch (error) {
      if (error.name === 'AbortError') throw error;
      throw new ApiError(['The console does not answer: it was stopped, or the line is dead.'], 0);
    }
    if (answer.status === 403 && !again) continue;
    if (!answer.ok) {
      const values = await answer.json().catch(() => null);
      throw new ApiError(values?.errors ?? [`The console answers with status ${answer.status}.`], answer.status);
    }
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = '';
    for (;;) {
      const {done, value} = await reader.read();
      const lines = (rest + (value ?? '')).split('\n');
      rest = lines.pop();
      for (const line of lines) if (line) yield JSON.parse(line);
      if (done) return;
    }
  }
}
