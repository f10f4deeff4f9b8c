// --- The inventory -----------------------------------------------------------

const shortKey = (key) => `${key.namespace ? `${key.namespace}/` : ''}${key.name}`;
const outcomeWord = (outcome) => (typeof outcome === 'string' ? outcome : Object.keys(outcome)[0]);
const outcomeWhy = (outcome) => {
  if (typeof outcome === 'string') return '';
  const inner = Object.values(outcome)[0];
  return typeof inner === 'string' ? inner : inner?.why ?? inner?.reason ?? (inner?.by ? shortKey(inner.by) : '');
};

/** Headers of each table, and the cells of one item. */
const TABLES = {
  workloads: {
    headers: ['Workload', 'Mesh', 'Pods', 'Releasable'],
    cells: (item) => {
      const best = item.releasable.find((way) => way.yes) ?? item.releasable[0];
      const ways = item.releasable.filter((way) => way.yes).map((way) => way.provider);
      return [
        [el('strong', {}, shortKey(item.key)), el('span', { class: 'quietly' }, ` ${item.key.kind}`)],
        [item.meshes.map((member) => meshName(member.mesh)).join(', ') || '–'],
        [`${item.ready}/${item.desired}`],
        ways.length
          ? [el('span', { class: 'chip good' }, '✓ yes'), ` by ${ways.join(', ')}`]
          : [el('span', { class: 'chip calm' }, '✗ no'), best?.why ? ` ${best.why}` : ''],
      ];
    },
  },
  services: {
    headers: ['Service', 'Ports', 'Workloads', 'Routes, the first one that wins first'],
    cells: (item) => [
      [el('strong', {}, shortKey(item.key))],
      [item.ports.map((port) => port.port).join(', ') || '–'],
      [item.workloads.map((key) => key.name).join(', ') || '–'],
      item.routes.length
        ? item.routes.map((standing) =>
            el('div', {}, el('span', { class: `chip ${outcomeWord(standing.outcome) === 'wins' ? 'good' : 'calm'}` }, outcomeWord(standing.outcome)), ` ${standing.route.kind} ${shortKey(standing.route)} `, el('span', { class: 'quietly' }, outcomeWhy(standing.outcome))),
          )
        : ['–'],
    ],
  },
  meshes: {
    headers: ['Mesh', 'Control plane', 'Workloads', 'mTLS', 'Namespaces'],
    cells: (item) => [
      [el('strong', {}, item.name)],
      [item.controlPlane ? `${shortKey(item.controlPlane.workload)} ${item.controlPlane.version ?? ''} ${item.controlPlane.ready}/${item.controlPlane.desired}` : '–'],
      [String(item.workloads)],
      [item.mtls ?? '–'],
      [item.namespaces.slice(0, 12).join(', ') + (item.namespaces.length > 12 ? `, ${item.namespaces.length - 12} more` : '') || '–'],
    ],
  },
};
const meshName = (mesh) => (typeof mesh === 'string' ? mesh : Object.values(mesh)[0]);

class InventoryPage {
  constructor(what, namespace) {
    this.what = TABLES[what] ? what : 'workloads';
    this.namespace = namespace;
    this.aborter = new AbortController();
    const tabs = Object.keys(TABLES).map((key) => el('a', { href: this.address(key, namespace), 'aria-current': key === this.what ? 'page' : null }, key));
    this.filter = el('input', {
      type: 'search', id: 'filter', 'aria-label': 'Namespace', value: namespace, placeholder: 'Namespace', autocomplete: 'off', spellcheck: 'false',
      onchange: () => { location.hash = this.address(this.what, this.filter.value.trim()); },
    });
    this.message = el('p', { class: 'pad', role: 'status' }, 'Loading…');
    this.body = el('tbody', {});
    this.more = el('p', { class: 'buttons' });
    this.root = el(
      'div', { class: 'inventory' },
      el('h1', {}, 'Inventory'),
      el('div', { class: 'tools' }, el('nav', { class: 'tabs', 'aria-label': 'Kinds' }, tabs), this.filter),
      this.message,
      el('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': this.what },
        el('table', {}, el('thead', {}, el('tr', {}, TABLES[this.what].headers.map((header) => el('th', { scope: 'col' }, header)))), this.body)),
      this.more,
    );
    this.load();
  }

  address(what, namespace) {
    return `#/inventory/${what}${namespace ? `?ns=${encodeURIComponent(namespace)}` : ''}`;
  }

  close() {
    this.aborter.abort();
  }

  async load(after) {
    const query = new URLSearchParams({ limit: '200' });
    if (this.namespace) query.set('namespace', this.namespace);
    if (after) query.set('continue', after);
    try {
      const page = await read(`/api/v1/inventory/${this.what}?${query}`, this.aborter.signal);
      const { cells } = TABLES[this.what];
      this.body.append(...page.items.map((item) => el('tr', {}, cells(item).map((cell) => el('td', {}, cell)))));
      const unread = page.unread?.length ? ` Not readable: ${page.unread.map((one) => one.kind ?? one.resource ?? one.what ?? '').join(', ')}.` : '';
      setText(this.message, `${this.body.children.length} of ${page.count}.${unread}`);
      const next = page.continue;
      this.more.replaceChildren(...(next ? [el('button', { type: 'button', onclick: () => this.load(next) }, 'More')] : []));
    } catch (error) {
      if (error.name === 'AbortError') return;
      if (error.status === 401) login(error.message);
      else setText(this.message, error.message);
    }
  }

  step() {}
}

