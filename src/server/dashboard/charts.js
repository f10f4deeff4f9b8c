// --- Charts ------------------------------------------------------------------

const svg = (tag, attributes, ...children) => {
  const element = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter(Boolean));
  return element;
};

const CHART = { height: 150, left: 52, right: 10, top: 10, bottom: 22 };

/** Round numbers between both, at most `count`. */
function ticks(low, high, count) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const all = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step / 1e6; at += step) all.push(Number(at.toPrecision(12)));
  return all;
}

/**
 * One chart over time. `lines` are {points: [[ms, value or null]], kind, stepped}, `bands`
 * {points: [[ms, low, high]], kind}, `limits` {value, label}, `gaps` {from, to, label}.
 */
function chart({ title, width, from, to, lines, bands = [], limits = [], gaps = [], marks = [], unit, log, zero, max }) {
  const { height, left, right, top, bottom } = CHART;
  const values = [
    ...lines.flatMap((line) => line.points.map(([, value]) => value)),
    ...limits.map((limit) => limit.value),
    // Earlier ones are wider, and cut off.
    ...bands.flatMap((band) => band.points.slice(-1).flatMap(([, low, high]) => [low, high])),
  ].filter((value) => value !== null && Number.isFinite(value));
  let low = zero ? 0 : Math.min(...values);
  let high = max ?? Math.max(...values);
  if (!values.length) [low, high] = [0, 1];
  if (log) [low, high] = [1, Math.max(10, high * 1.5)];
  else if (max === undefined) {
    const room = (high - low) * 0.12 || Math.max(Math.abs(high) * 0.02, 0.5);
    high += room;
    if (!zero) low -= room;
    if (unit === '%') [low, high] = [Math.max(0, low), Math.min(100, high)];
  }
  const scale = (value) => (log ? Math.log10(Math.max(1, value)) : value);
  const x = (at) => left + ((at - from) / Math.max(1, to - from)) * (width - left - right);
  const y = (value) => {
    const share = (scale(value) - scale(low)) / (scale(high) - scale(low) || 1);
    return height - bottom - Math.min(1, Math.max(0, share)) * (height - top - bottom);
  };
  const parts = [];
  const levels = log ? [1, 10, 100, 1000, 1e4, 1e6].filter((level) => level <= high) : ticks(low, high, 4);
  for (const level of levels) {
    parts.push(svg('line', { class: 'grid', x1: left, x2: width - right, y1: y(level), y2: y(level) }));
    const label = svg('text', { class: 'axis', x: left - 6, y: y(level) + 4, 'text-anchor': 'end' });
    label.textContent = log ? String(level) : number(level, unit === '%' ? '%' : '').replace(' %', '%');
    parts.push(label);
  }
  const moments = Math.max(2, Math.floor(width / 130));
  for (let at = 0; at <= moments; at += 1) {
    const time = from + ((to - from) * at) / moments;
    const anchor = at === 0 ? 'start' : at === moments ? 'end' : 'middle';
    const label = svg('text', { class: 'axis', x: x(time), y: height - 6, 'text-anchor': anchor });
    label.textContent = clockTime(time, to - from < 600_000);
    parts.push(label);
  }
  for (const gap of gaps) {
    const [x1, x2] = [x(Math.max(from, gap.from)), x(Math.min(to, gap.to))];
    parts.push(svg('rect', { class: 'gap', x: x1, y: top, width: Math.max(2, x2 - x1), height: height - top - bottom }));
    const fits = x1 + 6.5 * gap.label.length < width - right;
    const label = svg('text', { class: 'gap-label', x: fits ? x1 + 4 : width - right - 4, y: height - bottom - 6, 'text-anchor': fits ? 'start' : 'end' });
    label.textContent = gap.label;
    parts.push(label);
  }
  for (const mark of marks.filter((mark) => mark >= from && mark <= to)) {
    parts.push(svg('line', { class: 'mark', x1: x(mark), x2: x(mark), y1: top, y2: height - bottom }));
  }
  for (const band of bands.filter((band) => band.points.length > 1)) {
    const upper = band.points.map(([at, , value]) => `${x(at)},${y(value)}`);
    const lower = band.points.map(([at, value]) => `${x(at)},${y(value)}`).reverse();
    parts.push(svg('polygon', { class: `band ${band.kind}`, points: [...upper, ...lower].join(' ') }));
  }
  for (const limit of limits) {
    parts.push(svg('line', { class: 'limit', x1: left, x2: width - right, y1: y(limit.value), y2: y(limit.value) }));
    const label = svg('text', { class: 'limit-label', x: left + 4, y: y(limit.value) + (y(limit.value) < top + 14 ? 13 : -4) });
    label.textContent = limit.label;
    parts.push(label);
  }
  for (const line of lines) {
    let path = '';
    let open = false;
    let last = null;
    for (const [at, value] of line.points) {
      if (value === null || value === undefined) {
        open = false;
        continue;
      }
      if (!open) path += `M${x(at)} ${y(value)}`;
      else if (line.stepped) path += `H${x(at)}V${y(value)}`;
      else path += `L${x(at)} ${y(value)}`;
      [open, last] = [true, [at, value]];
    }
    if (line.stepped && last) path += `H${x(to)}`;
    if (line.filled && path) {
      parts.push(svg('path', { class: `area ${line.kind}`, d: `${path}V${y(low)}H${x(line.points[0][0])}Z` }));
    }
    parts.push(svg('path', { class: `line ${line.kind}`, d: path }));
    if (last && !line.stepped) parts.push(svg('circle', { class: `dot ${line.kind}`, cx: x(last[0]), cy: y(last[1]), r: 3 }));
  }
  return svg('svg', { class: 'chart', viewBox: `0 0 ${width} ${height}`, width, height, role: 'img', 'aria-label': title }, parts);
}

const legend = (...entries) =>
  el('p', { class: 'legend' }, entries.map(([kind, text]) => el('span', {}, el('span', { class: `key ${kind}`, 'aria-hidden': 'true' }), text)));

/** Whether a measurement has any requests in it. */
const hasData = (point) => !point.missing && (point.canary.value !== undefined || point.primary.value !== undefined);

/** Stretches without data: no measurements, no requests, or silence of several intervals. */
function silences(points, to) {
  const gaps = [];
  const times = points.filter(hasData).map((point) => Date.parse(point.at));
  const steps = times.slice(1).map((at, index) => at - times[index]).sort((a, b) => a - b);
  const usual = Math.max(5_000, steps[Math.floor(steps.length / 2)] ?? 60_000);
  const label = (from, ended) => (ended ? 'no data' : `no data since ${clockTime(from)}`);
  if (!times.length && points.length) {
    return [{ from: Date.parse(points[0].at), to, label: label(points[0].at, false) }];
  }
  times.forEach((at, index) => {
    const next = times[index + 1];
    if (next !== undefined && next - at > 4 * usual) gaps.push({ from: at, to: next, label: label(at, true) });
  });
  const last = times.at(-1);
  const ended = points.length && !hasData(points.at(-1));
  if (last !== undefined && (ended || to - last > 4 * usual)) gaps.push({ from: last, to, label: label(last, false) });
  return gaps;
}

const asTable = (title, headers, cells) =>
  el(
    'details', { class: 'numbers' },
    el('summary', {}, title),
    el(
      'div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': title },
      el(
        'table', {},
        el('thead', {}, el('tr', {}, headers.map((header) => el('th', { scope: 'col' }, header)))),
        el('tbody', {}, cells.map((row) => el('tr', {}, row.map((cell) => el('td', {}, cell))))),
      ),
    ),
  );

