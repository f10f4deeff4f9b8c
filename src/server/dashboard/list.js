// --- The list ----------------------------------------------------------------

const SECTIONS = [
  ['person', 'Needs a person', 'Nothing waits for a person.'],
  ['moving', 'Moving', 'No release is under way.'],
  ['rest', 'At rest', 'No Canary is at rest.'],
];

/** All rows, by `namespace/name`, whether they are shown or not. */
const rows = new Map();
let listComplete = false;

const keyOf = (row) => `${row.namespace}/${row.name}`;

/** Those that ask come first; then by name, so that rows keep their places. */
const RANKS = ['AwaitingApproval', 'Refused', 'Unreadable', 'Degraded', 'Failed'];
const rank = (row) => (RANKS.includes(row.state) ? RANKS.indexOf(row.state) : RANKS.length);
const before = (a, b) => rank(a) - rank(b) || (keyOf(a) < keyOf(b) ? -1 : keyOf(a) > keyOf(b) ? 1 : 0);

function matcher(query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  return (row) =>
    words.every((word) => {
      const [, field, value] = word.match(/^(ns|is|state):(.*)$/) ?? [];
      if (field === 'ns') return row.namespace === value;
      if (field === 'is') return row.attention === value;
      if (field === 'state') return row.state.toLowerCase().startsWith(value) || (STATES[row.state]?.[2] ?? '').toLowerCase().startsWith(value);
      return `${keyOf(row)} ${row.target} ${row.message} ${row.state}`.toLowerCase().includes(word);
    });
}

class RowView {
  constructor(row) {
    this.name = el('span', { class: 'name' });
    this.state = el('span', { class: 'state' });
    this.fill = el('span', { class: 'fill' });
    this.weight = el('span', { class: 'share' });
    this.step = el('span', { class: 'step' });
    this.message = el('span', { class: 'message' });
    this.when = el('span', { class: 'when' });
    this.link = el(
      'a',
      { class: 'row', href: `#/c/${encodeURIComponent(row.namespace)}/${encodeURIComponent(row.name)}` },
      this.state,
      el('span', { class: 'who' }, el('span', { class: 'namespace' }, `${row.namespace} / `), this.name),
      el('span', { class: 'traffic' }, el('span', { class: 'bar', 'aria-hidden': 'true' }, this.fill), this.weight),
      this.step,
      this.message,
      this.when,
    );
    this.item = el('li', {}, this.link);
    setText(this.name, row.name);
    this.update(row);
  }

  update(row) {
    if (this.shown !== row.state) {
      this.state.replaceChildren(chip(STATES, row.state));
      this.shown = row.state;
    }
    this.fill.style.setProperty('width', `${row.weight}%`);
    setText(this.weight, percent(row.weight));
    setText(this.step, row.step ? `step ${row.step.index + 1}/${row.step.total}` : '');
    const unnamed = (row.waiting ?? []).filter((gate) => !row.message.includes(gate));
    setText(this.message, unnamed.length ? `${unnamed.join(', ')}: ${row.message}` : row.message);
    this.row = row;
    this.tick();
  }

  tick() {
    const { row } = this;
    const at = row.next && Date.parse(row.next.at) > now() ? row.next.at : row.since;
    setText(this.when, at ? relative(at) : '');
  }
}

class ListPage {
  constructor(query) {
    this.views = new Map();
    this.sections = new Map();
    this.filter = el('input', {
      type: 'search', id: 'filter', 'aria-label': 'Filter', value: query, autocomplete: 'off', spellcheck: 'false',
      placeholder: 'Filter: name, ns:shop, is:person, state:failed', oninput: () => this.setQuery(this.filter.value),
    });
    this.total = el('span', { class: 'total', role: 'status' });
    const parts = SECTIONS.map(([key, title, nothing]) => {
      const count = el('span', { class: 'count' });
      const list = el('ul', { class: 'rows', 'aria-label': title });
      const empty = el('p', { class: 'empty', hidden: true }, nothing);
      this.sections.set(key, { list, count, empty, order: [] });
      return el('section', { class: `group ${key}` }, el('h2', {}, title, ' ', count), list, empty);
    });
    this.root = el(
      'div', { class: 'list' },
      el('h1', { class: 'unseen' }, 'Releases'),
      el('div', { class: 'tools' }, this.filter, this.total),
      ...parts,
    );
    this.matches = matcher(query);
    this.apply([...rows.values()], []);
    this.timer = setInterval(() => this.views.forEach((view) => view.tick()), 1000);
  }

  close() {
    clearInterval(this.timer);
  }

  setQuery(query) {
    this.matches = matcher(query);
    const address = query ? `#/?q=${encodeURIComponent(query)}` : '#/';
    history.replaceState(null, '', address);
    this.apply([...rows.values()], []);
  }

  reset() {
    for (const section of this.sections.values()) {
      section.list.replaceChildren();
      section.order = [];
    }
    this.views.clear();
    this.summarise();
  }

  apply(changed, gone) {
    const moved = new Set();
    for (const key of gone) this.take(key);
    for (const row of changed) {
      const key = keyOf(row);
      const view = this.views.get(key);
      if (!this.matches(row)) {
        this.take(key);
      } else if (!view) {
        const fresh = new RowView(row);
        fresh.section = row.attention;
        this.views.set(key, fresh);
        this.sections.get(row.attention).order.push(fresh);
        moved.add(row.attention);
      } else {
        const place = [view.section, rank(view.row)].join();
        view.update(row);
        if (place !== [row.attention, rank(row)].join()) {
          const { order } = this.sections.get(view.section);
          order.splice(order.indexOf(view), 1);
          view.section = row.attention;
          this.sections.get(row.attention).order.push(view);
          moved.add(row.attention);
        }
      }
    }
    for (const key of moved) {
      const { list, order } = this.sections.get(key);
      order.sort((a, b) => before(a.row, b.row));
      const focused = document.activeElement;
      order.forEach((view, at) => {
        const there = list.children[at];
        if (there !== view.item) list.insertBefore(view.item, there ?? null);
      });
      if (focused?.classList.contains('row') && document.activeElement !== focused) focused.focus({ preventScroll: true });
    }
    this.summarise();
  }

  take(key) {
    const view = this.views.get(key);
    if (!view) return;
    const { order } = this.sections.get(view.section);
    order.splice(order.indexOf(view), 1);
    view.item.remove();
    this.views.delete(key);
  }

  summarise() {
    for (const { order, count, empty } of this.sections.values()) {
      setText(count, String(order.length));
      empty.hidden = order.length > 0 || !listComplete;
    }
    const shown = this.views.size;
    const all = rows.size === 1 ? "1 Canary" : `${rows.size} Canaries`;
    let text = shown === rows.size ? all : `${shown} of ${all}`;
    if (!listComplete) text = 'Loading…';
    else if (rows.size === 0) text = 'No Canary that you may see. `kubectl auth can-i list canaries.serin.dev -A` says whether you may.';
    setText(this.total, text);
    const waits = [...rows.values()].filter((row) => row.attention === 'person').length;
    document.title = waits ? `(${waits}) Serin` : 'Serin';
  }

  /** j and k: from row to row, over all sections. */
  step(by) {
    const links = [...this.root.querySelectorAll('a.row')];
    const at = links.indexOf(document.activeElement);
    const next = links[at < 0 ? (by > 0 ? 0 : links.length - 1) : Math.min(links.length - 1, Math.max(0, at + by))];
    next?.focus();
    next?.scrollIntoView({ block: 'nearest' });
  }
}

