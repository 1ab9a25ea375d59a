// The page's requests to the server: JSON by GET and POST, and the stream of changes.

/** An answer with errors: `lines` are the command line's own, `status` that of HTTP, 0 if the server is unreachable. */
export class ApiError extends Error {
  constructor(lines, status) {
    super(lines.join('\n'));
    this.lines = lines;
    this.status = status;
  }
}

let session = null;

/** The server's description of itself: {token, root, version, has_password}. Asked once, and again if it was started anew. */
export async function getSession(again = false) {
  if (!session || again) session = get('/api/session');
  try {
    return await session;
  } catch (error) {
    session = null;
    throw error;
  }
}

/**
 * Asks by GET.
 *
 * @param {string} path - such as /api/runs.
 * @param {Object|URLSearchParams} query - names and values; a list of values gives the name several times.
 * @param {Object} options - `signal`, an AbortSignal.
 * @returns {Promise<Object>} the JSON.
 */
export async function get(path, query = {}, {signal} = {}) {
  return answerOf(await ask(withQuery(path, query), {signal}));
}

/**
 * Changes something by POST. If the server was started anew meanwhile, it has another token, and is asked again.
 *
 * @param {string} path - such as /api/runs/stop.
 * @param {Object} body - a JSON object.
 * @param {Object} options - `signal`, an AbortSignal.
 * @returns {Promise<Object>} the JSON.
 */
export async function post(path, body = {}, {signal} = {}) {
  for (const again of [false, true]) {
    const answer = await postOnce(path, body, signal, path === '/api/login' ? '' : (await getSession(again)).token);
    if (answer.status !== 403 || again) return answerOf(answer);
  }
  return null;
}

function postOnce(path, body, signal, token) {
  const headers = {'Content-Type': 'application/json', 'X-Console-Token': token};
  return ask(path, {method: 'POST', headers, body: JSON.stringify(body), signal});
}

/** A path with a query. */
export function withQuery(path, query = {}) {
  const words = query instanceof URLSearchParams ? query : new URLSearchParams();
  if (words !== query) {
    for (const [name, value] of Object.entries(query)) {
      for (const one of Array.isArray(value) ? value : [value]) {
        if (one !== null && one !== undefined && one !== false) words.append(name, one === true ? '1' : one);
      }
    }
  }
  const text = words.toString();
  return text ? `${path}?${text}` : path;
}

async function ask(path, options) {
  try {
    return await fetch(path, {credentials: 'same-origin', cache: 'no-store', redirect: 'error', ...options});
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new ApiError(['The console does not answer: it was stopped, or the connection is lost. Runs continue.'], 0);
  }
}

async function answerOf(answer) {
  let values = null;
  try {
    values = await answer.json();
  } catch (error) {
    if (error.name === 'AbortError') throw error;
  }
  if (answer.status === 401) window.dispatchEvent(new CustomEvent('console-login'));
  if (!answer.ok || values === null) {
    throw new ApiError(values?.errors ?? [`The console answers with status ${answer.status}.`], answer.status);
  }
  return values;
}

// The stream.

const SILENCE_MS = 15000; // The server says something every five seconds.
const HIDDEN_MS = 5000; // A browser has six connections to a server: a tab that nobody sees gives its own back.

// A page that replaces a link while the mouse presses it would lose the click: messages wait until the release.
let isPressed = false;
let waiting = [];

function whenReleased(handle) {
  if (isPressed) waiting.push(handle);
  else handle();
}

function release() {
  isPressed = false;
  const handles = waiting;
  waiting = [];
  for (const handle of handles) handle();
}

addEventListener('pointerdown', () => { isPressed = true; }, true);
// The click follows the release; a timer runs after both.
for (const name of ['pointerup', 'pointercancel', 'dragend']) addEventListener(name, () => setTimeout(release), true);

/**
 * Listens to changes, until the signal fires. It connects again by itself, and misses nothing: see live.py.
 *
 * @param {string[]} topics - runs, queue, sweeps, ...
 * @param {string[]} runs - names of runs whose events are requested.
 * @param {Object} handlers - a function for each kind of message, called with its JSON: `runs` ({all} or {changed,
 *   removed}), a topic's own (its state), `events` ({run, events, offset, restarted}), `problem` ({errors}; [] when it is
 *   over). `connected(bool)` is called when the connection is lost or restored.
 * @param {AbortSignal} signal - ends it.
 * @param {number[]} from - the place in the events.jsonl of each run, in bytes, behind the known part.
 */
export function stream(topics, runs, handlers, signal, from = []) {
  let source = null, last = '', lastHeard = 0, retry = null, hiddenAt = null, delay = 500;
  const kinds = [...new Set([...topics, 'events', 'problem', 'ping'])];

  function connect() {
    clearTimeout(retry);
    close();
    if (signal.aborted || hiddenAt === 'closed') return;
    source = new EventSource(withQuery('/api/stream', {topics: topics.join(','), run: runs, from, last: last || null}));
    lastHeard = Date.now();
    for (const kind of kinds) source.addEventListener(kind, (event) => heard(kind, event));
    source.onopen = () => {
      delay = 500;
      tell(true);
    };
    source.onerror = () => {
      tell(false);
      // A browser does not retry after an answer that is not a stream, and its own pauses grow long.
      close();
      retry = setTimeout(connect, delay);
      delay = Math.min(delay * 2, 5000);
    };
  }

  function heard(kind, event) {
    if (signal.aborted) return;
    lastHeard = Date.now();
    last = event.lastEventId || last;
    if (kind !== 'ping') whenReleased(() => signal.aborted || handlers[kind]?.(JSON.parse(event.data)));
  }

  function tell(connected) {
    if (!signal.aborted) handlers.connected?.(connected);
    window.dispatchEvent(new CustomEvent('console-connected', {detail: connected}));
  }

  function close() {
    source?.close();
    source = null;
  }

  function visibility() {
    clearTimeout(hiddenAt);
    if (document.hidden) {
      hiddenAt = setTimeout(() => {
        hiddenAt = 'closed';
        close();
      }, HIDDEN_MS);
    } else {
      const closed = hiddenAt === 'closed';
      hiddenAt = null;
      if (closed) connect();
    }
  }

  const watch = setInterval(() => {
    if (source && Date.now() - lastHeard > SILENCE_MS) {
      tell(false);
      connect();
    }
  }, 1000);
  document.addEventListener('visibilitychange', visibility);
  window.addEventListener('online', connect);
  signal.addEventListener('abort', () => {
    clearInterval(watch);
    clearTimeout(retry);
    clearTimeout(hiddenAt);
    close();
    document.removeEventListener('visibilitychange', visibility);
    window.removeEventListener('online', connect);
  });
  connect();
}
