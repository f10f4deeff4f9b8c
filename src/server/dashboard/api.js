// --- The API -----------------------------------------------------------------

const TOKEN = 'serin-token';
/** In this tab only, and gone with it. */
let token = sessionStorage.getItem(TOKEN);

/** Name of the provider to sign in at; empty if there is none. */
const PROVIDER = document.body.dataset.provider;
const SESSION = 'serin-session';
/** Whether this browser has a session's cookie, which no script can see. */
let session = PROVIDER !== '' && localStorage.getItem(SESSION) !== null;
const known = () => Boolean(token || session);

class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function call(path, options = {}) {
  let response;
  try {
    response = await fetch(path, {
      ...options,
      // By cookie only with a header that no other site can send.
      headers: { ...(token ? { authorization: `Bearer ${token}` } : { 'x-serin-session': '1' }), ...options.headers },
      cache: 'no-store',
      credentials: token ? 'omit' : 'same-origin',
      redirect: 'error',
    });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new ApiError(0, 'Serin does not respond. Is the port-forward, or `serin dashboard`, still running?');
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => ({}));
  throw new ApiError(response.status, body.error ?? `${response.status} ${response.statusText}`);
}

const read = async (path, signal) => (await call(path, { signal })).json();

const canaryPath = (namespace, name) =>
  `/api/v1/namespaces/${encodeURIComponent(namespace)}/canaries/${encodeURIComponent(name)}`;

const command = async (namespace, name, verb, body) =>
  (
    await call(`${canaryPath(namespace, name)}/${verb}`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify(body ?? {}),
    })
  ).json();

/**
 * Server-sent events by fetch, since an EventSource cannot send the token. Resumes after the
 * last event, and rests while the tab is hidden.
 */
class Stream {
  constructor(on) {
    this.on = on;
    this.lastId = null;
    this.failures = 0;
    this.aborter = null;
    this.stopped = true;
    document.addEventListener('visibilitychange', () => (document.hidden ? this.rest() : this.start()));
  }

  start() {
    if (!this.stopped || !known() || document.hidden) return;
    this.stopped = false;
    this.run();
  }

  rest() {
    this.stopped = true;
    this.aborter?.abort();
  }

  async run() {
    while (!this.stopped) {
      const aborter = (this.aborter = new AbortController());
      // The server sends a comment every 15 s; without one the connection is dead.
      let watchdog;
      const alive = () => {
        clearTimeout(watchdog);
        watchdog = setTimeout(() => aborter.abort(), 40_000);
      };
      try {
        alive();
        const headers = this.lastId ? { 'last-event-id': this.lastId } : {};
        const response = await call('/api/v1/stream', { headers, signal: aborter.signal });
        this.on.state('live');
        const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
        let buffer = '';
        for (;;) {
          const { value, done } = await reader.read();
          if (done) break;
          this.failures = 0;
          alive();
          buffer += value;
          const events = buffer.split('\n\n');
          buffer = events.pop();
          for (const event of events) this.take(event);
        }
      } catch (error) {
        if (error.status === 401) {
          this.stopped = true;
          this.on.unauthenticated(error);
        } else if (error.status) {
          this.on.state('failing', error.message);
        }
        this.failures += 1;
      } finally {
        clearTimeout(watchdog);
      }
      if (this.stopped) break;
      // A connection that ends after a minute, as they do, is no trouble.
      if (this.failures > 1) this.on.state('down');
      const pause = Math.min(10_000, 250 * 2 ** Math.min(this.failures, 6));
      await new Promise((resume) => setTimeout(resume, pause * (0.5 + Math.random())));
    }
  }

  take(event) {
    let [kind, data, id] = ['message', '', null];
    for (const line of event.split('\n')) {
      if (line.startsWith('event: ')) kind = line.slice(7);
      else if (line.startsWith('data: ')) data += line.slice(6);
      else if (line.startsWith('id: ')) id = line.slice(4);
    }
    if (!data) return;
    if (kind === 'reset') {
      this.lastId = null;
      this.on.reset();
    } else if (kind === 'rows') {
      this.on.rows(JSON.parse(data));
    }
    if (id) this.lastId = id;
  }
}

