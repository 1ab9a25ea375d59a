// A chart as a file: its points as CSV, and the picture that is drawn as SVG.
import uPlot from './vendor/uPlot.esm.js';

const ROW = 16; // Pixels of a line of the legend.

/**
 * The points of a chart, as many as are drawn, in full precision.
 *
 * @param {Object} model - of the chart, see plot.js.
 * @returns {string} a row for each point, in the order of the axis. `low` and `high` are the least and the greatest value of a
 *   column of pixels, or mean - deviation and mean + deviation of a group; without either they are empty.
 */
export function csvOf({x, first, last, series}) {
  const rows = series.flatMap(({label: given, curve}) => {
    const label = given.replace(/^[=+@-]/, "'$&"); // A spreadsheet would compute it.
    const values = curve.y ?? curve.mean;
    const points = curve.x.map((place, index) => [label, place, values[index], curve.low?.[index], curve.high?.[index]]);
    const marks = Object.entries(curve.marks).flatMap(([name, places]) => places.map((place) => [label, place, name, null, null]));
    return [...points.filter((row) => row[2] !== null), ...marks].filter((row) => row[1] >= first && row[1] <= last).sort((a, b) => a[1] - b[1]);
  });
  return [['curve', x, 'value', 'low', 'high'], ...rows].map((row) => `${row.map(cell).join(',')}\r\n`).join('');
}

function cell(value) {
  const text = String(value ?? '');
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/**
 * The picture of a chart: its axes, zoom, smoothing and colours.
 *
 * @param {Object} u - the uPlot.
 * @param {Object} model - of the chart, see plot.js.
 * @param {Object} style - `title`, `font`, and the colours `background`, `text` and `line`; `colourOf(name)` of a series.
 * @returns {string} an SVG file.
 */
export function svgOf(u, model, style) {
  const ratio = uPlot.pxRatio, [left, top, width, height] = ['left', 'top', 'width', 'height'].map((each) => u.bbox[each] / ratio);
  const right = left + width, bottom = top + height, head = 24, full = head + u.height + ROW * model.series.length + 8;
  const place = (x, y) => [(left + u.valToPos(x, 'x')).toFixed(1), (top + u.valToPos(y, 'y')).toFixed(1)];
  const text = (x, y, anchor, content, fill = style.text) => `<text x="${x}" y="${y}" text-anchor="${anchor}" fill="${escape(fill)}">${escape(content)}</text>`;
  const line = (x1, y1, x2, y2, stroke, more = '') => `<line x1="${x1}" y1="${y1}" x2="${x2}" y2="${y2}" stroke="${escape(stroke)}"${more}/>`;
  const grid = [0, 1].flatMap((axis) => u.axes[axis]._splits.flatMap((value, index) => {
    const at = Number(place(axis ? u.scales.x.min : value, axis ? value : u.scales.y.min)[axis]), label = u.axes[axis]._values[index] ?? '';
    return axis ? [line(left, at, right, at, style.line), text(left - 8, at + 4, 'end', label)] :
      [line(at, top, at, bottom, style.line), text(at, bottom + 18, 'middle', label)];
  }));
  const below = model.xTitle ? [text((left + right) / 2, bottom + 36, 'middle', model.xTitle)] : [];
  const curves = u.series.slice(1).flatMap((series, index) => drawing(u, series, index + 1, place));
  const legend = model.series.flatMap((one, index) => {
    const y = head + u.height + ROW * (index + 0.5), dash = one.dash ? ` stroke-dasharray="${one.dash.join(' ')}"` : '';
    return [line(left, y, left + 22, y, style.colourOf(one.colour), ` stroke-width="2.5"${dash}`), text(left + 30, y + 4, 'start', one.label)];
  });
  return [`<svg xmlns="http://www.w3.org/2000/svg" width="${u.width}" height="${full}" viewBox="0 0 ${u.width} ${full}" role="img" font-family="${escape(style.font)}" font-size="11">`,
    `<title>${escape(style.title)}</title>`, `<rect width="100%" height="100%" fill="${escape(style.background)}"/>`,
    `<text x="${left}" y="17" font-size="14" font-weight="600" fill="${escape(style.text)}">${escape(style.title)}</text>`,
    `<clipPath id="part"><rect x="${left}" y="${top}" width="${width}" height="${height}"/></clipPath>`,
    `<g transform="translate(0 ${head})">`, ...grid, ...below, '<g clip-path="url(#part)" fill="none">', ...u.bands.flatMap((band) => area(u, band, place)), ...curves, '</g></g>', ...legend, '</svg>', ''].join('\n');
}

/** One line of a chart in the pieces between its gaps; a piece of one point is a dot. */
function drawing(u, series, index, place) {
  if (!series.width) return [];
  const pieces = [[]], xs = u.data[0], ys = u.data[index];
  xs.forEach((x, at) => {
    if (ys[at] === null) pieces.push([]);
    else if (Number.isFinite(ys[at])) pieces.at(-1).push(place(x, ys[at]));
  });
  const colour = escape(series.stroke(u, index));
  const stroke = `stroke="${colour}" stroke-opacity="${series.alpha ?? 1}" stroke-width="${series.width}" stroke-linejoin="round"`;
  const dash = series.dash?.length ? ` stroke-dasharray="${series.dash.join(' ')}"` : '';
  const dots = (piece) => piece.map(([x, y]) => `<circle cx="${x}" cy="${y}" r="2" fill="${colour}" stroke="none"/>`);
  return pieces.filter((piece) => piece.length).flatMap((piece) => [
    ...(piece.length > 1 && !series.dots ? [`<polyline points="${piece.map((point) => point.join(',')).join(' ')}" ${stroke}${dash}/>`] : []),
    ...(piece.length === 1 || series.points.show(u, index) ? dots(piece) : [])]);
}

/** The area between two lines in the pieces between its gaps; its colour ends with the opacity, which not all programs read. */
function area(u, {series: [upper, lower], fill}, place) {
  const pieces = [[]], xs = u.data[0], colour = fill(u);
  xs.forEach((x, at) => {
    const ends = [u.data[upper][at], u.data[lower][at]];
    if (ends.includes(null)) pieces.push([]);
    else if (ends.every(Number.isFinite)) pieces.at(-1).push(ends.map((y) => place(x, y).join(',')));
  });
  return pieces.filter((piece) => piece.length > 1).map((piece) => `<polygon fill="${escape(colour.slice(0, -2))}" fill-opacity="${(parseInt(colour.slice(-2), 16) / 255).toFixed(2)}" stroke="none" points="${
    [...piece.map(([high]) => high), ...piece.map(([, low]) => low).reverse()].join(' ')}"/>`);
}

function escape(text) {
  return String(text).replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, '\ufffd').replace(/[&<>"]/g, (sign) => `&#${sign.charCodeAt(0)};`);
}

/** Lets the browser save a text as a file. */
export function download(name, text, type) {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([text], {type}));
  link.download = name.replace(/[^\w.-]+/g, '_');
  link.click();
  URL.revokeObjectURL(link.href);
}

/** The values of bars as CSV: a row for each run, or for each group with its mean and its deviation. */
export function csvOfBars(rows, title, isGrouped) {
  const head = isGrouped ? ['group', title, 'deviation', 'runs'] : ['run', title, 'step'];
  const lines = rows.map(({label, value, deviation, members, step}) => [label.replace(/^[=+@-]/, "'$&"), value, ...(isGrouped ? [deviation, members.length] : [step])]);
  return [head, ...lines].map((row) => `${row.map(cell).join(',')}\r\n`).join('');
}

const BAR = {width: 720, left: 220, right: 150, row: 24, top: 36, axis: 18};

/** The picture of bars. `drawn`: as compare_bars.js has it; `style` as of svgOf. */
export function svgOfBars(title, {found, part, zero, has, ticks}, textOf, style) {
  const bottom = BAR.top + BAR.row * found.length, height = bottom + 10 + (ticks.length ? BAR.axis : 0), place = (share) => BAR.left + (BAR.width - BAR.left - BAR.right) * share / 100;
  const text = (x, y, anchor, content) => `<text x="${x.toFixed(1)}" y="${y}" text-anchor="${anchor}" fill="${escape(style.text)}">${escape(content)}</text>`;
  const grid = ticks.flatMap(({at, text: label}) => [`<line x1="${place(at).toFixed(1)}" y1="${BAR.top}" x2="${place(at).toFixed(1)}" y2="${bottom}" stroke="${escape(style.line)}"/>`, text(place(at), bottom + BAR.axis, 'middle', label)]);
  const lines = found.flatMap((row, index) => {
    const y = BAR.top + BAR.row * (index + 0.5), colour = escape(style.colourOf(row.style.colour)), label = row.label.length > 34 ? `${row.label.slice(0, 33)}…` : row.label;
    const at = has(row.value) ? place(part(row.value)) : null, from = place(zero);
    const line = (x1, y1, x2, y2) => `<line x1="${x1.toFixed(1)}" y1="${y1}" x2="${x2.toFixed(1)}" y2="${y2}" stroke="${escape(style.text)}" stroke-width="1.5"/>`;
    const ends = has(row.value) && Number.isFinite(row.deviation) ? [row.value - row.deviation, row.value + row.deviation].map((value) => place(part(value))) : [];
    return [text(BAR.left - 8, y + 4, 'end', label),
      ...(at === null ? [] : [`<rect x="${Math.min(from, at).toFixed(1)}" y="${y - 8}" width="${Math.abs(at - from).toFixed(1)}" height="16" fill="${colour}" fill-opacity="0.75"/>`]),
      ...(ends.length ? [line(ends[0], y, ends[1], y), ...ends.map((x) => line(x, y - 5, x, y + 5))] : []),
      ...(row.members.length > 1 ? row.members.filter(([, value]) => has(value)).map(([, value]) => `<circle cx="${place(part(value)).toFixed(1)}" cy="${y}" r="3" fill="${colour}" stroke="${escape(style.background)}"/>`) : []),
      text(BAR.width - BAR.right + 10, y + 4, 'start', textOf(row))];
  });
  return [`<svg xmlns="http://www.w3.org/2000/svg" width="${BAR.width}" height="${height}" viewBox="0 0 ${BAR.width} ${height}" role="img" font-family="${escape(style.font)}" font-size="12">`,
    `<title>${escape(title)}</title>`, `<rect width="100%" height="100%" fill="${escape(style.background)}"/>`,
    `<text x="12" y="22" font-size="14" font-weight="600" fill="${escape(style.text)}">${escape(title)}</text>`, ...grid, ...lines, '</svg>', ''].join('\n');
}
