// --- One Canary --------------------------------------------------------------

const active = (detail) => detail.release !== undefined;

/** A part of the page that is rebuilt only when what it shows changed. */
class Part {
  constructor(title, extra) {
    this.body = el('div', { class: 'body' });
    this.root = el('section', { class: `card ${extra ?? ''}`, hidden: true }, title ? el('h2', {}, title) : null, this.body);
  }

  show(facts, build) {
    const text = JSON.stringify(facts);
    if (text === this.text) return;
    this.text = text;
    const focus = document.activeElement?.dataset?.focus;
    const open = [...this.body.querySelectorAll('details[open] > summary')].map((summary) => summary.textContent);
    const children = [build()].flat().filter(Boolean);
    this.root.hidden = children.length === 0;
    this.body.replaceChildren(...children);
    for (const summary of this.body.querySelectorAll('summary')) {
      if (open.includes(summary.textContent)) summary.parentElement.open = true;
    }
    if (focus) this.body.querySelector(`[data-focus="${CSS.escape(focus)}"]`)?.focus();
  }
}

class ReleasePage {
  constructor(namespace, name, started) {
    [this.namespace, this.name, this.started] = [namespace, name, started];
    this.path = canaryPath(namespace, name);
    this.parts = {
      banner: new Part(null, 'banner'),
      steps: new Part('Steps', 'wide'),
      gates: new Part('Gates'),
      split: new Part('Traffic to the canary'),
      metrics: new Part('Metrics', 'wide'),
      pods: new Part('Pods in trouble'),
      images: new Part('What changed'),
      events: new Part('Events'),
      history: new Part('Releases'),
      conditions: new Part('Conditions'),
    };
    this.message = el('p', { class: 'pad', role: 'status' }, 'Loading…');
    this.title = el('h1', {}, el('span', { class: 'namespace' }, `${namespace} / `), name);
    this.facts = el('p', { class: 'facts' });
    this.root = el(
      'div', { class: 'release' },
      el('p', { class: 'back' }, el('a', { href: '#/' }, '← Releases')),
      el('div', { class: 'head' }, this.title, this.facts),
      this.message,
      el('div', { class: 'cards' }, Object.values(this.parts).map((part) => part.root)),
    );
    this.aborter = new AbortController();
    this.timer = setInterval(() => this.tick(), 1000);
    this.ticks = 0;
    this.onResize = () => this.draw();
    addEventListener('resize', this.onResize);
    this.refresh();
  }

  close() {
    clearInterval(this.timer);
    removeEventListener('resize', this.onResize);
    this.aborter.abort();
  }

  tick() {
    refreshTimes(this.root);
    this.ticks += 1;
    if (document.hidden) return;
    const pace = this.detail && active(this.detail) ? 3 : 15;
    if (this.stale || this.ticks % pace === 0) this.refresh();
  }

  /** The stream has another version of it. */
  changed() {
    this.stale = true;
  }

  async refresh() {
    if (this.loading) return;
    [this.loading, this.stale] = [true, false];
    try {
      const { signal } = this.aborter;
      [this.detail, this.course] = await Promise.all([read(this.path, signal), read(`${this.path}/course`, signal)]);
      setClock(this.detail.now);
      this.message.hidden = true;
      this.draw();
      this.around = await read(`${this.path}/surroundings`, signal);
      this.draw();
    } catch (error) {
      if (error.name === 'AbortError') return;
      if (error.status === 401) return login(error.message);
      this.message.hidden = false;
      setText(this.message, error.message);
      if (error.status === 404 || error.status === 403) Object.values(this.parts).forEach((part) => (part.root.hidden = true));
    } finally {
      this.loading = false;
    }
  }

  draw() {
    const { detail, course, parts } = this;
    if (!detail || this.aborter.signal.aborted) return;
    document.title = `${this.name} – Serin`;
    const facts = [detail.target, detail.provider, detail.release?.name].filter(Boolean);
    this.facts.replaceChildren(chip(STATES, detail.state), ...facts.map((fact) => el('span', {}, fact)));
    parts.banner.show([detail.state, detail.message, detail.next, detail.mayAct, detail.commands, detail.lastCommand, this.started, detail.weight], () => this.banner());
    parts.steps.show([detail.steps, course.steps], () => this.steps());
    parts.gates.show([detail.gates, detail.mayAct], () => this.gates());
    const width = Math.max(260, Math.min(620, this.root.clientWidth - 40));
    const to = this.endOf(course);
    parts.split.show([course.splits, width, Math.round(to / 2000)], () => this.split(width, to));
    parts.metrics.show([detail.metrics, course.metrics, course.steps, width, Math.round(to / 5000)], () => this.metrics(width, to));
    parts.history.show([detail.history, this.started, active(detail)], () => this.history());
    parts.conditions.show(detail.conditions, () => this.conditions());
    if (this.around) {
      parts.pods.show(this.around.pods ?? 'hidden', () => this.pods());
      parts.images.show(this.around.images ?? 'hidden', () => this.images());
      parts.events.show(this.around.events ?? 'hidden', () => this.events());
    }
  }

  /** Charts go on until now while it moves, and end with the release. */
  endOf(course) {
    if (active(this.detail)) return Math.max(now(), Date.parse(course.since ?? course.now));
    const ends = [
      ...course.splits, ...course.phases, ...course.metrics.flatMap((metric) => [...metric.measured, ...metric.verdicts]),
    ].map((point) => Date.parse(point.at));
    return ends.length ? Math.max(...ends) + 1000 : now();
  }

  startOf(course) {
    const started = this.detail.release?.startedAt ?? course.since ?? course.now;
    const points = [...course.splits, ...course.metrics.flatMap((metric) => metric.measured)].map((point) => Date.parse(point.at));
    return Math.min(Date.parse(started), ...points, this.endOf(course) - 10_000);
  }

  banner() {
    const { detail } = this;
    const last = detail.history[0];
    const parts = [];
    const failed = detail.state === 'Failed' && last && last.outcome !== 'Promoted';
    if (failed) {
      const [, , word] = OUTCOMES[last.outcome] ?? [null, null, last.outcome];
      parts.push(el('p', { class: 'why bad' }, el('strong', {}, `Revision ${last.name} was ${word} `), timeElement(last.finishedAt), `, at most ${percent(last.highestWeight)} of the traffic: ${last.reason}`));
    }
    if (!failed || !detail.message.includes(last.reason)) parts.push(el('p', { class: 'message' }, detail.message));
    if (detail.next && Date.parse(detail.next.at) > now() - 60_000) {
      parts.push(el('p', { class: 'next' }, el('strong', {}, 'Next '), timeElement(detail.next.at), ` (${clockTime(detail.next.at)}): ${detail.next.reason}`));
    }
    if (detail.lastCommand && Date.now() + clockAhead - Date.parse(detail.lastCommand.at) < 3600_000) {
      const { verb, accepted, message, at } = detail.lastCommand;
      parts.push(el('p', { class: accepted ? 'last' : 'last bad' }, `${verb}, `, timeElement(at), `${accepted ? '' : ', refused'}: ${message}`));
    }
    if (detail.mayAct && detail.commands.length) {
      const buttons = detail.commands.map((verb) => el('button', { type: 'button', 'data-focus': `command-${verb}`, onclick: () => this.act(verb) }, verb));
      parts.push(el('p', { class: 'buttons' }, buttons));
    }
    return parts;
  }

  steps() {
    const { detail, course } = this;
    if (!detail.steps.length) return [];
    const started = new Map(course.steps.map((step) => [step.index, step.at]));
    const items = detail.steps.map((step, index) => {
      const at = step.startedAt ?? started.get(index);
      const word = { done: 'done', current: 'now', toCome: 'to come' }[step.state];
      const sign = { done: '✓', current: '●', toCome: '○' }[step.state];
      const took = started.has(index) && started.has(index + 1) ? length(Date.parse(started.get(index + 1)) - Date.parse(started.get(index))) : null;
      return el(
        'li', { class: `step ${step.state}`, 'aria-current': step.state === 'current' ? 'step' : null },
        el('span', { class: 'mark' }, el('span', { 'aria-hidden': 'true' }, sign), el('span', { class: 'unseen' }, word)),
        el('strong', {}, step.label),
        step.label.includes('%') ? null : el('span', { class: 'quietly' }, percent(step.weight)),
        at && step.state !== 'toCome' ? el('span', { class: 'quietly' }, clockTime(at), took ? `, ${took}` : '') : null,
        step.state === 'current' && step.until ? el('span', { class: 'quietly' }, `until ${step.until}`) : null,
      );
    });
    const promoted = ['Promoting', 'Finalising'].includes(detail.state);
    items.push(el('li', { class: `step ${promoted ? 'current' : 'toCome'}` }, el('span', { class: 'mark', 'aria-hidden': 'true' }, promoted ? '●' : '○'), el('strong', {}, 'promote')));
    return el('ol', { class: 'track' }, items);
  }

  gates() {
    const { detail } = this;
    return detail.gates.map((gate) => {
      const buttons = [];
      if (detail.mayAct && gate.approvable) {
        buttons.push(el('button', { type: 'button', class: 'strong', 'data-focus': `approve-${gate.name}`, 'data-approve': gate.name, onclick: () => this.act('approve', gate.name) }, 'Approve'));
        if (gate.rejectable) buttons.push(' ', el('button', { type: 'button', 'data-focus': `reject-${gate.name}`, onclick: () => this.act('reject', gate.name) }, 'Reject'));
      }
      const notes = [
        gate.since ? el('span', { class: 'quietly' }, 'since ', timeElement(gate.since)) : null,
        gate.by ? el('span', { class: 'quietly' }, `by ${gate.by}`) : null,
        gate.expiresAt && gate.state === 'Waiting' ? el('span', { class: 'quietly' }, 'expires ', timeElement(gate.expiresAt)) : null,
        gate.webhook ? el('span', { class: 'quietly' }, 'answered by a webhook') : null,
      ];
      return el(
        'div', { class: 'gate' },
        el('p', {}, chip(GATES, gate.state), ' ', el('strong', {}, gate.name), ...notes.filter(Boolean).flatMap((note) => [' · ', note])),
        gate.message ? el('p', { class: 'quietly' }, gate.message) : null,
        buttons.length ? el('p', { class: 'buttons' }, buttons) : null,
        gate.command ? el('p', {}, el('code', {}, gate.command)) : null,
        gate.approvable && !detail.mayAct ? el('p', { class: 'quietly' }, `You may not approve it: that takes the right to update canaries/approve in the namespace ${this.namespace}.`) : null,
      );
    });
  }

  split(width, to) {
    const { course } = this;
    if (!course.splits.length) return [];
    const points = course.splits.map((split) => [Date.parse(split.at), split.weight]);
    const from = this.startOf(course);
    const title = `The canary's share of the traffic: ${course.splits.map((split) => `${percent(split.weight)} at ${clockTime(split.at)}`).join(', ')}`;
    const recorded = course.since && Date.parse(course.since) > from + 2000 ? el('p', { class: 'quietly' }, `Recorded here since ${clockTime(course.since)}.`) : null;
    return [
      chart({ title, width, from, to, lines: [{ points, kind: 'canary', stepped: true, filled: true }], unit: '%', zero: true, max: 100 }),
      recorded,
    ];
  }

  metrics(width, to) {
    const { detail, course } = this;
    const from = this.startOf(course);
    const marks = course.steps.map((step) => Date.parse(step.at));
    return detail.metrics.map((metric) => {
      const points = course.metrics.find((one) => one.name === metric.name) ?? { measured: [], verdicts: [] };
      const unit = unitOf(metric, points);
      const charts = [];
      if (points.measured.some((point) => point.canary.quantiles || point.primary.quantiles)) charts.push(...this.latency(metric, points, { width, from, to, marks }));
      else if (points.measured.length || points.verdicts.length > 1) charts.push(...this.values(metric, points, unit, { width, from, to, marks }));
      if (points.verdicts.some((verdict) => verdict.evidence !== undefined)) charts.push(...this.evidence(metric, points, { width, from, to, marks }));
      const numbers = [
        el('span', {}, 'canary ', el('strong', {}, number(metric.canary, unit))),
        el('span', {}, 'primary ', el('strong', {}, number(metric.primary, unit))),
        metric.canaryCount !== undefined ? el('span', { class: 'quietly' }, `${Math.round(metric.canaryCount)} and ${Math.round(metric.primaryCount ?? 0)} requests`) : null,
        metric.at ? el('span', { class: 'quietly' }, timeElement(metric.at)) : null,
      ];
      return el(
        'article', { class: 'metric' },
        el('h3', {}, chip(VERDICTS, metric.verdict), ' ', metric.name),
        el('p', { class: 'numbers-line' }, numbers),
        el('p', {}, metric.reason),
        metric.evidence !== undefined ? evidenceMeter(metric) : null,
        el('div', { class: 'charts' }, charts),
      );
    });
  }

  values(metric, points, unit, { width, from, to, marks }) {
    const source = points.measured.length ? points.measured.map((point) => [Date.parse(point.at), point.canary.value ?? null, point.primary.value ?? null]) : points.verdicts.map((point) => [Date.parse(point.at), point.canary ?? null, point.primary ?? null]);
    const bands = ['primary', 'canary'].map((arm) => ({
      kind: arm,
      points: points.measured.filter((point) => point[arm].interval && hasData(point)).map((point) => [Date.parse(point.at), ...point[arm].interval]),
    }));
    const limits = [['min', 'at least'], ['max', 'at most']].filter(([field]) => metric[field] !== undefined).map(([field, word]) => ({ value: metric[field], label: `${word} ${number(metric[field], unit)}` }));
    const gaps = points.measured.length ? silences(points.measured, to) : [];
    const lines = [{ kind: 'primary', points: source.map(([at, , primary]) => [at, primary]) }, { kind: 'canary', points: source.map(([at, canary]) => [at, canary]) }];
    const title = `${metric.name} over time: canary ${number(metric.canary, unit)}, primary ${number(metric.primary, unit)}${gaps.length ? `; ${gaps.at(-1).label}` : ''}`;
    const hasBands = bands.some((band) => band.points.length > 1);
    return [
      el(
        'figure', {},
        chart({ title, width, from, to, lines, bands, limits, gaps, marks, unit }),
        el('figcaption', {}, legend(['canary', 'canary'], ['primary', 'primary'], ...(hasBands ? [['band', '95 % of all that fits the release so far']] : []))),
        asTable('Numbers', ['Time', 'Canary', 'Primary'], source.slice(-12).reverse().map(([at, canary, primary]) => [clockTime(at), number(canary, unit), number(primary, unit)])),
      ),
    ];
  }

  latency(metric, points, { width, from, to, marks }) {
    const names = ['p50', 'p90', 'p99'];
    const lines = names.flatMap((name, index) =>
      ['primary', 'canary'].map((arm) => ({ kind: `${arm} ${name}`, points: points.measured.map((point) => [Date.parse(point.at), point[arm].quantiles?.[index] ?? null]) })),
    );
    const last = points.measured.findLast((point) => point.canary.quantiles);
    const text = last ? names.map((name, index) => `${name} ${number(last.canary.quantiles[index], 'ms')}`).join(', ') : 'no data';
    const gaps = silences(points.measured, to);
    const limits = metric.max === undefined ? [] : [{ value: metric.max, label: `p99 at most ${number(metric.max, 'ms')}` }];
    return [
      el(
        'figure', {},
        chart({ title: `${metric.name} over time: canary ${text}`, width, from, to, lines, gaps, limits, marks, unit: 'ms', zero: true }),
        el('figcaption', {}, legend(['canary', 'canary p50, p90, p99'], ['primary', 'primary p50, p90, p99'])),
        asTable('Numbers', ['Time', ...names.map((name) => `Canary ${name}`), ...names.map((name) => `Primary ${name}`)], points.measured.slice(-12).reverse().map((point) => [clockTime(point.at), ...['canary', 'primary'].flatMap((arm) => names.map((_, index) => number(point[arm].quantiles?.[index], 'ms')))])),
      ),
    ];
  }

  evidence(metric, points, { width, from, to, marks }) {
    const line = { kind: 'evidence', points: points.verdicts.map((verdict) => [Date.parse(verdict.at), verdict.evidence ?? null]) };
    const limits = metric.evidenceLimit ? [{ value: metric.evidenceLimit, label: `rolls back at ${number(metric.evidenceLimit)}` }] : [];
    const title = `Evidence against the canary: ${number(metric.evidence)}, rolls back at ${number(metric.evidenceLimit)}`;
    return [el('figure', {}, chart({ title, width, from, to, lines: [line], limits, marks, log: true }), el('figcaption', {}, legend(['evidence', 'evidence against the canary; 1 is none']))) ];
  }

  pods() {
    const { pods } = this.around;
    if (!pods) return el('p', { class: 'quietly' }, 'You may not list pods here.');
    return pods.length ? el('ul', { class: 'plain' }, pods.map((pod) => el('li', { class: 'bad' }, el('span', { 'aria-hidden': 'true' }, '✗ '), pod))) : [];
  }

  images() {
    const { images } = this.around;
    if (!images) return [];
    const arms = [['primary', images.primary], ['canary', images.canary]].filter(([, image]) => image);
    return [
      el('dl', { class: 'pairs' }, arms.map(([arm, image]) => el('div', {}, el('dt', {}, arm), el('dd', {}, el('code', {}, image))))),
      images.changes.length ? el('ul', { class: 'plain' }, images.changes.map((change) => el('li', {}, change))) : el('p', { class: 'quietly' }, 'Both arms run the same.'),
    ];
  }

  events() {
    const { events } = this.around;
    if (!events) return el('p', { class: 'quietly' }, 'You may not list events here.');
    if (!events.length) return [];
    const items = events.map((event) => el('li', { class: event.warning ? 'bad' : null }, event.at ? timeElement(event.at) : null, ' ', el('strong', {}, `${event.warning ? '! ' : ''}${event.reason}`), ' ', event.message));
    return el('ul', { class: 'plain events', tabindex: '0', 'aria-label': 'Events' }, items);
  }

  history() {
    const { detail } = this;
    if (!detail.history.length) return el('p', { class: 'quietly' }, 'No release has ended yet.');
    const base = `#/c/${encodeURIComponent(this.namespace)}/${encodeURIComponent(this.name)}`;
    const items = detail.history.map((past) => {
      const chosen = past.startedAt === this.started;
      return el(
        'li', { class: chosen ? 'past chosen' : 'past', 'aria-current': chosen ? 'true' : null },
        chip(OUTCOMES, past.outcome), ' ',
        el('a', { href: `${base}/r/${encodeURIComponent(past.startedAt)}` }, past.name), ' ',
        el('span', { class: 'quietly' }, timeElement(past.finishedAt), `, took ${length(Date.parse(past.finishedAt) - Date.parse(past.startedAt))}, at most ${percent(past.highestWeight)}`),
        el('p', {}, past.reason),
      );
    });
    return el('ol', { class: 'plain' }, items);
  }

  conditions() {
    const { conditions } = this.detail;
    if (!conditions.length) return [];
    return el('ul', { class: 'plain' }, conditions.map((condition) => el('li', {}, el('strong', {}, `${condition.type}: ${condition.status ? 'yes' : 'no'}`), ` (${condition.reason}) `, condition.message)));
  }

  /** Sends a command after a question, and shows what came of it. */
  async act(verb, gate) {
    const what = gate ? `${verb} ${gate}` : verb;
    const effects = {
      approve: `The release of ${this.name} goes on.`,
      reject: `The release of ${this.name} is rolled back.`,
      promote: `The remaining steps of ${this.name} are skipped.`,
      abort: `The release of ${this.name} ends and is rolled back.`,
      pause: `The release of ${this.name} stays at its step; checks go on.`,
      resume: 'The pause ends.',
      retry: 'The revision that was rolled back is released again.',
      rollback: 'The promoted revision is rolled back at once.',
    };
    const answer = await question({ title: `${what}?`, text: effects[verb], yes: verb, reason: verb === 'reject' });
    if (!answer) return;
    const body = gate ? { gate, ...(verb === 'reject' ? { reason: answer.reason } : {}) } : {};
    try {
      await command(this.namespace, this.name, verb, body);
      toast(`${what}: accepted. The controller processes it.`);
    } catch (error) {
      toast(`${what}: ${error.message}`, true);
    }
    this.changed();
  }

  approveFirst() {
    this.root.querySelector('button[data-approve]')?.click();
  }
}

const unitOf = (metric, points) => {
  if (metric.name === 'request-duration' || points.measured.some((point) => point.canary.quantiles)) return 'ms';
  return metric.name.includes('rate') || points.measured.some((point) => point.canary.interval) ? '%' : '';
};

/** Logarithmic, as evidence grows. */
function evidenceMeter(metric) {
  const limit = metric.evidenceLimit ?? 100;
  const share = Math.min(1, Math.max(0, Math.log(Math.max(1, metric.evidence)) / Math.log(limit)));
  const fill = el('span', { class: share >= 1 ? 'fill bad' : share > 0.5 ? 'fill ask' : 'fill' });
  fill.style.setProperty('width', `${100 * share}%`);
  const text = `evidence against the canary ${number(metric.evidence)} of ${number(limit)}, where it is rolled back`;
  return el('p', { class: 'meter' }, el('span', { class: 'bar', 'aria-hidden': 'true' }, fill), ' ', el('span', { class: 'quietly' }, text));
}

