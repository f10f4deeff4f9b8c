// Serin's page: one module without dependencies. Everything that is shown goes through
// text nodes; no markup is parsed at run time.

// --- Elements and text -------------------------------------------------------

const $ = (id) => document.getElementById(id);

/** An element: attributes, listeners as onclick, children as nodes or text. */
function el(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? '' : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

const setText = (element, text) => {
  if (element.textContent !== text) element.textContent = text;
};

/** How far the server's clock is ahead of this one, in milliseconds. */
let clockAhead = 0;
const now = () => Date.now() + clockAhead;
const setClock = (text) => {
  clockAhead = Date.parse(text) - Date.now();
};

const length = (ms) => {
  const s = Math.max(0, Math.round(ms / 1000));
  if (s < 100) return `${s} s`;
  if (s < 6000) return `${Math.round(s / 60)} min`;
  if (s < 172800) return `${Math.round(s / 3600)} h`;
  return `${Math.round(s / 86400)} d`;
};
const relative = (at) => {
  const past = now() - Date.parse(at);
  return past >= 0 ? `${length(past)} ago` : `in ${length(-past)}`;
};
const clockTime = (at, seconds = true) =>
  new Date(at).toLocaleTimeString([], { hour: '2-digit', minute: '2-digit', second: seconds ? '2-digit' : undefined, hourCycle: 'h23' });
const fullTime = (at) => new Date(at).toLocaleString([], { dateStyle: 'medium', timeStyle: 'medium', hourCycle: 'h23' });

/** `in 40 s`, with the absolute time beside it for those who point or listen. */
const timeElement = (at) => {
  const element = el('time', { datetime: at, title: fullTime(at) }, relative(at));
  return element;
};
const refreshTimes = (root) => {
  for (const element of root.querySelectorAll('time[datetime]')) setText(element, relative(element.dateTime));
};

const percent = (value) => `${Number(value.toFixed(2))} %`;
const number = (value, unit) => {
  if (value === undefined || value === null) return '–';
  const digits = Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2;
  return `${Number(value.toFixed(unit === '%' ? 2 : digits))}${unit ? ` ${unit}` : ''}`;
};

/** Colour is never alone: every state has a sign and a word. */
const STATES = {
  AwaitingApproval: ['?', 'ask', 'Awaiting approval'],
  AwaitingGate: ['◷', 'busy', 'Awaiting gate'],
  Refused: ['!', 'bad', 'Refused'],
  Failed: ['✗', 'bad', 'Rolled back'],
  Degraded: ['!', 'bad', 'Degraded'],
  Unreadable: ['!', 'bad', 'Unreadable'],
  Paused: ['❙❙', 'ask', 'Paused'],
  Suspended: ['❙❙', 'calm', 'Suspended'],
  Progressing: ['▶', 'busy', 'Progressing'],
  Promoting: ['▲', 'busy', 'Promoting'],
  Finalising: ['▲', 'busy', 'Finalising'],
  Waiting: ['◷', 'busy', 'Waiting'],
  WaitingPromotion: ['◷', 'busy', 'Awaiting promotion'],
  Initializing: ['◌', 'busy', 'Initializing'],
  Unseen: ['◌', 'busy', 'Unseen'],
  Initialized: ['✓', 'good', 'Initialized'],
  Succeeded: ['✓', 'good', 'Succeeded'],
  Terminating: ['◌', 'calm', 'Terminating'],
  Terminated: ['◌', 'calm', 'Terminated'],
};
const OUTCOMES = {
  Promoted: ['✓', 'good', 'promoted'],
  RolledBack: ['✗', 'bad', 'rolled back'],
  Aborted: ['✗', 'bad', 'aborted'],
  Superseded: ['»', 'calm', 'superseded'],
};
const VERDICTS = {
  Pass: ['✓', 'good', 'pass'],
  Fail: ['✗', 'bad', 'fail'],
  Inconclusive: ['…', 'calm', 'inconclusive'],
};
const GATES = {
  Waiting: ['?', 'ask', 'waits'],
  Open: ['✓', 'good', 'open'],
  Refused: ['✗', 'bad', 'refused'],
  Expired: ['✗', 'bad', 'expired'],
};
const chip = (table, key) => {
  const [sign, tone, word] = table[key] ?? ['·', 'calm', key];
  return el('span', { class: `chip ${tone}` }, el('span', { 'aria-hidden': 'true' }, sign), ' ', word);
};

