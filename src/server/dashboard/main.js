// --- The page ----------------------------------------------------------------

let page = null;

function open(next) {
  page?.close?.();
  page = next;
  $('main').replaceChildren(next.root);
}

/** The address has the page, the Canary and the filter: it can be pasted in a chat. */
function route() {
  const given = location.hash.match(/^#token=(.+)$/);
  if (given) {
    keepToken(decodeURIComponent(given[1]));
    history.replaceState(null, '', '#/');
  }
  if (location.hash === '#signed-in') {
    session = PROVIDER !== '';
    localStorage.setItem(SESSION, 'yes');
    history.replaceState(null, '', sessionStorage.getItem(RETURN) ?? '#/');
    sessionStorage.removeItem(RETURN);
  }
  if (!known()) return login();
  const [path, query = ''] = location.hash.replace(/^#/, '').split('?');
  const parameters = new URLSearchParams(query);
  const [, kind, ...rest] = path.split('/').map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  });
  for (const [id, is] of [['nav-releases', kind !== 'inventory'], ['nav-inventory', kind === 'inventory']]) {
    if (is) $(id).setAttribute('aria-current', 'page');
    else $(id).removeAttribute('aria-current');
  }
  if (kind === 'c' && rest.length >= 2) open(new ReleasePage(rest[0], rest[1], rest[2] === 'r' ? rest[3] : null));
  else if (kind === 'inventory') open(new InventoryPage(rest[0] ?? 'workloads', parameters.get('ns') ?? ''));
  else {
    open(new ListPage(parameters.get('q') ?? ''));
    if (lastOpened) {
      page.views.get(lastOpened)?.link.focus({ preventScroll: true });
      lastOpened = null;
    }
  }
  if (page instanceof ReleasePage) {
    lastOpened = `${page.namespace}/${page.name}`;
    $('main').focus({ preventScroll: true });
    scrollTo(0, 0);
  }
  stream.start();
}

/** Has the focus again when the list is back. */
let lastOpened = null;

function keepToken(text) {
  token = text.trim();
  sessionStorage.setItem(TOKEN, token);
}

/** Where to go on after the provider. */
const RETURN = 'serin-return';

function forget() {
  token = null;
  session = false;
  sessionStorage.removeItem(TOKEN);
  localStorage.removeItem(SESSION);
  rows.clear();
  stream.lastId = null;
  stream.rest();
  for (const id of ['where', 'stream']) setText($(id), '');
  $('sign-out').hidden = true;
  $('nav-inventory').hidden = true;
}

function signIn() {
  sessionStorage.setItem(RETURN, location.hash || '#/');
  location.assign('/api/v1/oidc/login');
}

async function signOut() {
  try {
    await call('/api/v1/oidc/logout', { method: 'POST' });
    login('You are signed out of this browser.');
  } catch (error) {
    toast(error.message, true);
  }
}

function login(why) {
  forget();
  const input = el('input', { type: 'password', id: 'token', autocomplete: 'off', spellcheck: 'false', 'aria-label': 'Token' });
  const enter = async () => {
    if (!input.value.trim()) return;
    keepToken(input.value);
    try {
      await hello();
      route();
    } catch (error) {
      login(error.message);
    }
  };
  input.addEventListener('keydown', (event) => {
    if (event.key === 'Enter') enter();
  });
  open({
    root: el(
      'div', { class: 'login card' },
      el('h1', {}, 'Who are you?'),
      PROVIDER ? el('p', {}, el('button', { type: 'button', class: 'strong', id: 'sign-in', onclick: signIn }, `Sign in at ${PROVIDER}`)) : null,
      el('p', {}, `${PROVIDER ? 'Or paste' : 'Paste'} a token of this cluster. What you see here is what you may see with kubectl.`),
      el('p', {}, el('code', {}, 'kubectl create token NAME --namespace NAMESPACE')),
      why ? el('p', { class: 'bad', role: 'alert' }, why) : null,
      el('p', { class: 'buttons' }, input, ' ', el('button', { type: 'button', class: PROVIDER ? null : 'strong', onclick: enter }, 'Sign in')),
      el('p', { class: 'quietly' }, 'It stays in this tab and is gone when the tab is closed. With a kubeconfig, `serin dashboard` needs none.'),
    ),
  });
  (PROVIDER ? $('sign-in') : input).focus();
}

async function hello() {
  const me = await read('/api/v1/me');
  setClock(me.now);
  setText($('where'), `${me.cluster} · ${me.user}`);
  $('where').title = `Serin ${me.version}, cluster ${me.cluster}, as ${me.user}`;
  $('nav-inventory').hidden = !me.inventory;
  $('sign-out').hidden = Boolean(token);
}

const stream = new Stream({
  state(state, why) {
    const words = { live: 'live', down: 'reconnecting…', failing: why };
    $('stream').className = `stream ${state}`;
    setText($('stream'), words[state]);
  },
  reset() {
    rows.clear();
    listComplete = false;
    page?.reset?.();
  },
  rows({ rows: changed, gone, more }) {
    for (const row of changed) rows.set(keyOf(row), row);
    for (const key of gone) rows.delete(key);
    listComplete = !more;
    page?.apply?.(changed, gone);
    if (page instanceof ReleasePage) {
      const key = `${page.namespace}/${page.name}`;
      if (gone.includes(key) || changed.some((row) => keyOf(row) === key)) page.changed();
    }
  },
  unauthenticated: (error) => login(error.message),
});

function toast(text, bad) {
  const box = $('toast');
  box.className = bad ? 'bad' : '';
  setText(box, text);
  box.classList.add('shown');
  clearTimeout(toast.timer);
  toast.timer = setTimeout(() => box.classList.remove('shown'), bad ? 15_000 : 6_000);
}

/** Asks before a command; none if the answer is no. */
function question({ title, text, yes, reason }) {
  const dialog = $('ask');
  setText($('ask-title'), title);
  setText($('ask-text'), text);
  setText($('ask-yes'), yes);
  $('ask-field').hidden = !reason;
  $('ask-reason').value = '';
  return new Promise((resolve) => {
    let answer = null;
    $('ask-yes').onclick = () => {
      answer = { reason: $('ask-reason').value };
      dialog.close();
    };
    $('ask-no').onclick = () => dialog.close();
    dialog.onclose = () => resolve(answer);
    dialog.showModal();
    (reason ? $('ask-reason') : $('ask-yes')).focus();
  });
}

document.addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector('dialog[open]')) return;
  const typing = event.target.matches?.('input, textarea');
  if (typing && event.key === 'Escape') {
    if (event.target.id === 'filter' && event.target.value) {
      event.target.value = '';
      page?.setQuery?.('');
    } else event.target.blur();
    return event.preventDefault();
  }
  if (typing) return;
  const keys = {
    '/': () => ($('filter') ? $('filter').focus() : (location.hash = '#/')),
    j: () => page?.step?.(1),
    k: () => page?.step?.(-1),
    a: () => page?.approveFirst?.(),
    '?': () => $('keys').showModal(),
    Escape: () => {
      if (page instanceof ReleasePage) location.hash = '#/';
    },
  };
  if (!keys[event.key]) return;
  event.preventDefault();
  keys[event.key]();
});

const THEME = 'serin-theme';
const setTheme = (theme) => {
  if (theme) document.documentElement.dataset.theme = theme;
};
setTheme(localStorage.getItem(THEME));
$('theme').onclick = () => {
  const dark = getComputedStyle(document.documentElement).colorScheme.startsWith('dark');
  setTheme(dark ? 'light' : 'dark');
  localStorage.setItem(THEME, dark ? 'light' : 'dark');
};
$('help').onclick = () => $('keys').showModal();
$('keys-close').onclick = () => $('keys').close();

$('sign-out').onclick = signOut;

addEventListener('hashchange', route);
route();
if (known()) {
  hello().catch((error) => (error.status === 401 ? login(error.message) : toast(error.message, true)));
}
