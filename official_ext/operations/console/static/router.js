// Addresses: the path names the page, the query holds the view, so that a link, a reload and Back give the same.

let show = () => {};

/** Called by app.js: shows the page of the address. */
export function onNavigate(function_) {
  show = function_;
}

/** Goes to a page of the console. */
export function navigate(href, {replace = false} = {}) {
  if (replace) history.replaceState(null, '', href);
  else if (href !== location.pathname + location.search) history.pushState(null, '', href);
  show();
}

/**
 * Notes the state of the view in the address, without showing the page again.
 *
 * @param {Object} values - names and values; null, '' and [] remove a name; a list gives it several times.
 */
export function setQuery(values) {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(values)) {
    query.delete(name);
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== null && one !== undefined && one !== '' && one !== false) query.append(name, one === true ? '1' : one);
    }
  }
  const text = query.toString();
  const href = location.pathname + (text ? `?${text}` : '');
  if (href !== location.pathname + location.search) history.replaceState(history.state, '', href);
}
