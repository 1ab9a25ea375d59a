// A sweep: its best runs, the relation of its parameters to the metric, and all its points.
import {get, post, stream} from '../api.js';
import {keys, setTitle} from '../app.js';
import {axisOf} from '../axes.js';
import {confirm, dialog} from '../dialog.js';
import {element, replace, setText} from '../dom.js';
import {field, metric as shown, plural} from '../format.js';
import {parallelCoordinates} from '../parallel_coordinates.js';
import {bar, command, copyButton, empty, link, loading, setStatus, status} from '../parts.js';
import {navigate, setQuery} from '../router.js';
import {scatter, STYLES} from '../scatter.js';
import {table} from '../table.js';
import {toast, toastError} from '../toast.js';

export const title = 'Sweep';
export const help = {text: 'The points of a sweep, the best first. Drag along an axis to select points. Retry and Resume act on the selected points.', docs: 'docs/how_to/sweep.md'};
export const styles = [...STYLES, '/static/pages/sweep.css'];

const ROW = 34, MAX_ROWS = 14;
const brief = (value) => typeof value === 'number' ? shown(value) : field(value);
const runHref = (run) => `/run?${new URLSearchParams({run})}`;

export async function show(view, query, signal) {
  const name = query.get('sweep') ?? '';
  if (!name) return navigate('/sweeps', {replace: true});
  setTitle(name);
  const end = loading(view);
  const first = await get('/api/sweep', {sweep: name}, {signal});
  end();
  const page = makePage(view, first, query, signal);
  let revision = null;
  stream(['sweeps'], [], {sweeps: async (all) => {
    const own = all.find((each) => each.name === name);
    const now = own && JSON.stringify([own.revision, own.status, own.counts]);
    if (!now || now === revision) return;
    const isFirst = revision === null;
    revision = now;
    try {
      if (!isFirst || own.status === 'running') page.update(await get('/api/sweep', {sweep: name}, {signal}));
    } catch (error) {
      toastError(error);
    }
  }}, signal);
  return null;
}

function makePage(view, first, query, signal) {
  let sweep = first, points = [], selected = new Set(), over = null;
  let sort = [query.get('sort') ?? '', query.get('descending') === '1'];
  const brushes = Object.fromEntries(query.getAll('brush').map((text) => text.split('~')).filter((parts) => parts.length === 3)
    .map(([axis, low, high]) => [axis, [Number(low), Number(high)]]));

  const open = (point) => point.run && navigate(runHref(point.run));
  const hover = (point) => {
    over = point;
    plot.mark(point);
    dots.mark(point);
  };
  const plot = parallelCoordinates({onOpen: open, onHover: hover, onBrush: (ranges) => {
    setQuery({brush: Object.entries(ranges).map(([axis, [low, high]]) => `${axis}~${low.toFixed(3)}~${high.toFixed(3)}`)});
    drawDots();
    fillTable();
  }});
  const dots = scatter({onOpen: open, onHover: hover});
  const choice = element('select', {'aria-label': 'Parameter', onchange: () => {
    setQuery({x: choice.value});
    drawDots();
  }});
  const grid = table({label: 'Points', key: (point) => point.key, rowHeight: ROW, onOpen: open,
    onSort: (column) => {
      sort = [column, sort[0] === column ? !sort[1] : column === 'value' && sweep.metric?.goal === 'maximize'];
      setQuery({sort: sort[0], descending: sort[1]});
      fillTable();
    },
    onSelect: (chosen) => {
      selected = chosen;
      fillActions();
    }});
  const parts = {status: status(sweep.status), goal: element('span', {class: 'goal'}), buttons: element('div', {class: 'toolbar'}),
    command: element('div', {}), best: element('section', {class: 'card', 'aria-label': 'Best'}),
    importances: element('section', {class: 'card', 'aria-label': 'Importance of parameters'}),
    seeds: element('div', {}), actions: element('div', {class: 'toolbar actions'}), file: element('div', {}),
    figures: element('div', {class: 'sweep-figures'}), nothing: element('div', {})};
  replace(view, element('div', {class: 'sweep'},
    element('div', {class: 'page-head'}, element('h1', {}, sweep.name), parts.status, parts.goal, element('span', {class: 'grow'}), parts.buttons),
    sweep.description && element('p', {class: 'soft'}, sweep.description), parts.command, parts.nothing,
    element('div', {class: 'columns'}, parts.best, parts.importances),
    element('section', {class: 'card', 'aria-label': 'Parallel coordinates'}, element('h2', {}, 'Parameters and metric'), plot.node,
      element('p', {class: 'hint'}, 'Drag along an axis to select a range; click the axis to clear it. Click a line to open the run.')),
    element('section', {class: 'card', 'aria-label': 'One parameter'}, element('div', {class: 'toolbar'}, element('h2', {class: 'grow'}, 'One parameter'), choice), dots.node,
      element('p', {class: 'hint'}, 'Hollow points and dashed lines: failed runs.')),
    parts.seeds, element('section', {'aria-label': 'Points'}, parts.actions, grid.node),
    element('details', {}, element('summary', {}, 'sweep.yaml'), parts.file)));
  plot.setBrushes(brushes);
  keys({...grid.keys, b: {text: 'Open the best run', do: () => {
    const best = points.find((point) => point.number === sweep.best);
    if (best) open(best);
  }}}, signal);

  const change = async (path, body = {}) => {
    try {
      const answer = await post(`/api/sweep/${path}`, {sweep: sweep.name, ...body}, {signal});
      update(answer.sweep);
      return answer.done;
    } catch (error) {
      toastError(error);
      return null;
    }
  };

  // The server's data, as points with a value on each axis.

  let axes = [], value = null;

  function update(values) {
    sweep = values;
    const names = sweep.parameters.filter((each) => !each.is_constant);
    const last = sweep.metric?.name;
    points = sweep.points.filter((point) => point.status !== 'deleted').map((point) => ({...point, number: point.point, key: String(point.point),
      values: {...point.parameters, ...(last && {[last]: point.value})},
      title: [`Point ${point.point}: ${point.status}`, ...names.map((each) => `${each.name} = ${field(point.parameters[each.name] ?? null)}`),
        last && `${last} = ${shown(point.value)}`].filter(Boolean).join('\n')}));
    axes = names.map((each) => axisOf(each.name, points.map((point) => point.parameters[each.name]), each.distribution));
    value = last ? axisOf(last, points.map((point) => point.value)) : null;
    plot.draw(points, value ? [...axes, value] : axes, share);
    fillHead();
    fillBest();
    fillChoice(names);
    drawDots();
    setColumns(names);
    fillTable();
    fillSeeds();
    fillActions();
    if (parts.file.dataset.text !== sweep.file) {
      parts.file.dataset.text = sweep.file;
      replace(parts.file, element('pre', {}, sweep.file), copyButton(sweep.file));
    }
    loadImportances();
  }

  /** 0 for the worst value of all, 1 for the best. */
  function share(point) {
    const place = value && value.place(point.value);
    return place === null || place === undefined ? null : sweep.metric.goal === 'maximize' ? place : 1 - place;
  }

  function fillHead() {
    setStatus(parts.status, sweep.status, sweep.controller ?? '');
    const counts = Object.entries(sweep.counts).map(([word, count]) => `${count} ${word}`).join(', ');
    const total = sweep.num_points ?? null;
    setText(parts.goal, [sweep.method, sweep.metric && `${sweep.metric.goal} ${sweep.metric.name}`,
      `${counts || 'no points yet'}${total ? ` of ${total}` : ''}`].filter(Boolean).join(' · '));
    const focus = parts.buttons.contains(document.activeElement) ? document.activeElement.textContent : null;
    replace(parts.buttons,
      sweep.counts.failed && element('button', {onclick: async () => {
        const done = await change('retry');
        if (done) toast(`${plural(done.points.length, 'point')} queued again`);
      }}, 'Retry failed'),
      sweep.status === 'running' || sweep.counts.running || sweep.counts.queued ?
        element('button', {class: 'danger', onclick: stop}, 'Stop') : null,
      sweep.status !== 'running' && sweep.status !== 'finished' && element('button', {class: 'primary', onclick: goOn}, 'Resume'));
    if (focus) [...parts.buttons.children].find((each) => each.textContent === focus)?.focus();
    const waits = sweep.status === 'interrupted';
    replace(parts.command, waits && [element('p', {class: 'soft'}, 'No controller is running: no further points are tried. This command resumes it:'), command(sweep.command)]);
    replace(parts.nothing, !sweep.points.length && empty('No points yet', 'The controller has not proposed any.'));
  }

  async function stop() {
    const text = 'No further points are tried. Running points save and stop, and resume with the sweep.';
    if (await confirm(`Stop ${sweep.name}?`, text, 'Stop the sweep', {kind: 'danger', keep: 'Keep running', signal})) await change('stop');
  }

  async function goOn() {
    const input = element('input', {type: 'number', min: 1, value: sweep.slots ?? 1, autofocus: true});
    const content = [element('label', {class: 'stacked'}, 'Points at once', input),
      element('p', {class: 'hint'}, 'The controller runs in the background, also when the console is closed.')];
    if (await dialog('Resume the sweep', content, [{text: 'Cancel', value: null}, {text: 'Resume', value: true, kind: 'primary'}], {signal}) === true) {
      await change('go_on', {slots: Number(input.value)});
    }
  }

  function fillBest() {
    const best = points.find((point) => point.number === sweep.best);
    if (!best) {
      replace(parts.best, element('h2', {}, 'Best'), element('p', {class: 'soft'}, sweep.metric ? 'No point has finished yet.' : 'The sweep has no metric.'));
      return;
    }
    const varied = sweep.parameters.filter((each) => !each.is_constant);
    replace(parts.best, element('h2', {}, 'Best'),
      element('div', {class: 'best-value'}, shown(best.value), ' ', element('small', {}, sweep.metric.name)),
      element('p', {}, link(runHref(best.run), `Point ${best.number}`), element('span', {class: 'faint'}, ` · step ${shown(best.step)}`)),
      element('dl', {class: 'facts'}, varied.map((each) => [element('dt', {}, each.name), element('dd', {title: field(best.parameters[each.name] ?? null)}, brief(best.parameters[each.name] ?? null))])));
  }

  function fillChoice(names) {
    const wanted = choice.value || query.get('x') || names[0]?.name;
    replace(choice, names.map((each) => element('option', {value: each.name, selected: each.name === wanted}, each.name)));
  }

  function drawDots() {
    const across = axes.find((axis) => axis.name === choice.value);
    dots.node.closest('section').hidden = !across || !value;
    if (across && value) dots.draw(points, across, value, share, plot.chosen);
  }

  function fillSeeds() {
    const groups = sweep.seed_groups;
    replace(parts.seeds, groups.length > 0 && element('section', {class: 'card', 'aria-label': 'Spread by seeds'}, element('h2', {}, 'Spread by seeds'),
      element('div', {class: 'scroll'}, element('table', {}, element('thead', {}, element('tr', {}, ['Mean', 'Deviation', 'Points', 'Parameters'].map((text) => element('th', {}, text)))),
        element('tbody', {}, groups.map((group) => element('tr', {}, element('td', {}, shown(group.mean)), element('td', {}, shown(group.deviation)),
          element('td', {}, group.points.length), element('td', {}, Object.entries(group.parameters).map(([key, one]) => `${key}=${brief(one)}`).join(', ')))))))));
  }

  // The importance of parameters, which takes seconds to compute.

  let asked = '';

  async function loadImportances() {
    const finished = JSON.stringify(points.filter((point) => point.status === 'finished').map((point) => [point.number, point.value]));
    if (asked === finished) return;
    asked = finished;
    if (!parts.importances.childElementCount) {
      replace(parts.importances, element('h2', {}, 'Importance of parameters'), element('p', {class: 'soft'}, 'Computing…'));
    }
    try {
      let importances = null;
      while (importances === null && asked === finished && !signal.aborted) {
        ({importances} = await get('/api/sweep/importances', {sweep: sweep.name}, {signal}));
        if (importances === null) await new Promise((resolve) => setTimeout(resolve, 700));
      }
      if (importances === null) return;
      const rows = typeof importances === 'string' ? element('p', {class: 'soft'}, `Not known: ${importances}.`) :
        element('div', {class: 'importances'}, Object.entries(importances).map(([key, part]) => [element('span', {class: 'cut', title: key}, key), bar(100 * part), element('span', {class: 'number'}, part.toFixed(2))]));
      replace(parts.importances, element('h2', {}, 'Importance of parameters'), rows,
        typeof importances !== 'string' && element('p', {class: 'hint'}, 'The share of the variance of the metric that each explains (fANOVA).'));
    } catch (error) {
      if (!signal.aborted) replace(parts.importances, element('h2', {}, 'Importance of parameters'), element('p', {class: 'soft'}, error.message));
    }
  }

  // The table.

  let columns = '';

  function setColumns(names) {
    const wanted = JSON.stringify([names, sweep.metric?.name]);
    if (wanted === columns) return;
    columns = wanted;
    grid.setColumns([
      {name: 'number', title: 'Point', width: 70, sortable: true, render: (point) => link(runHref(point.run), String(point.number))},
      {name: 'status', title: 'Status', width: 110, sortable: true, render: (point) => status(point.status, point.reason)},
      {name: 'step', title: 'Step', width: 80, number: true, sortable: true, render: (point) => shown(point.step)},
      ...(sweep.metric ? [{name: 'value', title: sweep.metric.name, width: Math.max(110, 8 * sweep.metric.name.length + 40), number: true, sortable: true, render: (point) => shown(point.value)}] : []),
      ...names.map((each) => ({name: `p:${each.name}`, title: each.name.split('.').pop(), tooltip: each.name, width: Math.max(90, 8 * each.name.split('.').pop().length + 40), number: true, sortable: true,
        render: (point) => brief(point.parameters[each.name] ?? null)})),
      {name: 'reason', title: '', width: 220, render: (point) => element('span', {class: 'soft', title: point.reason}, point.reason)},
    ]);
  }

  function fillTable() {
    const ranks = new Map(sweep.order.map((number, place) => [number, place]));
    const valueOf = (point) => sort[0].startsWith('p:') ? point.parameters[sort[0].slice(2)] : sort[0] ? point[sort[0]] : ranks.get(point.number);
    const sign = sort[1] ? -1 : 1;
    const rows = points.filter(plot.chosen).sort((one, other) => {
      const [left, right] = [valueOf(one), valueOf(other)];
      if (left === right) return one.number - other.number;
      if (left === null || left === undefined) return 1;
      if (right === null || right === undefined) return -1;
      return sign * (typeof left === 'number' && typeof right === 'number' ? left - right : field(left).localeCompare(field(right), 'en', {numeric: true}));
    });
    grid.setSort(...sort);
    grid.node.style.height = `${Math.min(rows.length, MAX_ROWS) * ROW + 40}px`;
    grid.setRows(rows);
  }

  function fillActions() {
    const chosen = points.filter((point) => selected.has(point.key));
    const numbers = (words) => chosen.filter((point) => words.includes(point.status)).map((point) => point.number);
    const act = (text, path, words, kind = '') => {
      const fitting = numbers(words);
      return element('button', {class: ['small', kind], disabled: !fitting.length, onclick: async () => {
        if (kind && !await confirm(`Delete ${plural(fitting.length, 'point')}?`, 'Their runs move to the trash and are not retried.', 'Delete', {kind, signal})) return;
        if (await change(path, {points: fitting})) {
          toast(`${text}: ${plural(fitting.length, 'point')}`);
          if (path === 'delete') {
            selected = new Set();
            grid.setSelected(selected);
            fillActions();
          }
        }
      }}, text);
    };
    replace(parts.actions, element('h2', {class: 'grow'}, 'Points'), selected.size > 0 && element('span', {class: 'soft'}, `${selected.size} selected`),
      act('Resume', 'resume', ['pruned', 'stopped']), act('Retry', 'retry', ['failed', 'diverged']),
      element('button', {class: 'small', disabled: chosen.length < 2, onclick: () => navigate(`/compare?${new URLSearchParams(chosen.map((point) => ['run', point.run]))}`)}, 'Compare'),
      act('Delete', 'delete', ['finished', 'failed', 'diverged', 'pruned', 'stopped', 'queued', 'paused', 'new'], 'danger'));
  }

  update(first);
  return {update};
}
