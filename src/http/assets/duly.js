// What the pages do beyond plain HTML: keep themselves fresh, keys, charts, questions before something is done.
// Every page works without this file.

const $ = (find, from = document) => from.querySelector(find);
const all = (find, from = document) => [...from.querySelectorAll(find)];
const root = document.body.dataset.root;
const main = $('#main');

// --- times ---------------------------------------------------------------------------------------------------------

function coarse(s) {
  const two = (a, u, b, v) => b ? `${a} ${u} ${b} ${v}` : `${a} ${u}`;
  if (s < 60) return `${s} s`;
  if (s < 3600) return two(Math.floor(s / 60), 'min', s % 60, 's');
  if (s < 86400) return two(Math.floor(s / 3600), 'h', Math.floor(s % 3600 / 60), 'min');
  return two(Math.floor(s / 86400), 'd', Math.floor(s % 86400 / 3600), 'h');
}

// The store's clock, as the page was made by it: the reader's own may be wrong.
let skew = 0;
const setSkew = (doc) => {
  const made = $('#made', doc)?.dateTime;
  if (made) skew = Date.parse(made) - Date.now();
};

function tick() {
  const now = Date.now() + skew;
  for (const time of all('time[datetime]:not(#made)')) {
    const gone = (now - Date.parse(time.dateTime)) / 1000;
    if (Number.isNaN(gone)) continue;
    const text = Math.abs(gone) < 1 ? (gone < 0 ? 'now' : 'just now')
      : gone > 0 ? `${coarse(Math.floor(gone))} ago` : `in ${coarse(Math.floor(-gone))}`;
    if (time.textContent !== text) time.textContent = text;
  }
}

// --- charts --------------------------------------------------------------------------------------------------------

const charts = new Map();
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const colour = (name) => css(({ pushed: '--faint', retried: '--running', buried: '--dead' })[name] ?? `--${name}`);
const millis = (v) => v < 1000 ? `${v < 10 ? +v.toFixed(1) : Math.round(v)} ms` : v < 60e3 ? `${+(v / 1000).toFixed(1)} s` : coarse(Math.round(v / 1000));
const jobs = (v) => v.toLocaleString('en-US', { notation: v >= 1e5 ? 'compact' : 'standard', maximumFractionDigits: 1 });

function draw(box) {
  if (!window.uPlot || !box.clientWidth) return;
  const { times, lines } = JSON.parse(box.dataset.chart);
  const data = [times, ...lines.map((line) => line.values)];
  const old = charts.get(box);
  if (old) return old.setData(data);
  const show = box.dataset.unit === 'ms' ? millis : jobs;
  const zone = document.body.dataset.zone;
  const clock = (s, more) => {
    try {
      return new Date(s * 1000).toLocaleTimeString('en-GB', { timeZone: zone, hour: '2-digit', minute: '2-digit', ...more });
    } catch { return new Date(s * 1000).toISOString().slice(11, 16); }
  };
  const axis = { stroke: css('--faint'), grid: { stroke: css('--line'), width: 1 }, ticks: { show: false }, font: '12px system-ui' };
  const tip = Object.assign(document.createElement('div'), { className: 'tip', hidden: true });
  const plot = new window.uPlot({
    width: box.clientWidth, height: box.clientHeight, legend: { show: false }, padding: [8, 18, 0, 0],
    cursor: { y: false, points: { size: 7 } },
    scales: { x: { time: true }, y: { range: (_, lo, hi) => [0, hi > 0 ? hi * 1.08 : 1] } },
    axes: [{ ...axis, values: (_, at) => at.map((s) => clock(s)), space: 70, size: 26, gap: 4 },
      { ...axis, values: (_, at) => at.map((v) => v === null ? '' : show(v)), size: 62, ...(show === jobs && { incrs: [1, 2, 5].flatMap((n) => [...Array(12).keys()].map((e) => n * 10 ** e)).sort((a, b) => a - b) }) }],
    series: [{}, ...lines.map((line) => ({ label: line.name, stroke: colour(line.class), width: 1.75, spanGaps: true, points: { show: times.length < 8, size: 5 } }))],
    hooks: { setCursor: [(u) => {
      const { idx, left } = u.cursor;
      tip.hidden = idx === null || idx === undefined || left < 0;
      if (tip.hidden) return;
      tip.textContent = [clock(u.data[0][idx]), ...lines.map((line, i) => `${line.name} ${u.data[i + 1][idx] === null ? '–' : show(u.data[i + 1][idx])}`)].join('  ·  ');
      const x = left + 70;
      tip.style.left = `${Math.max(0, Math.min(x, box.clientWidth - tip.offsetWidth))}px`;
      tip.style.top = '0';
    }] },
  }, data, box);
  box.append(tip);
  box.classList.add('drawn');
  charts.set(box, plot);
}

function redraw() {
  for (const [box, plot] of charts) {
    plot.destroy();
    $('.tip', box)?.remove();
    box.classList.remove('drawn');
  }
  charts.clear();
  all('.chart').forEach(draw);
}

let width = innerWidth;
addEventListener('resize', () => {
  if (innerWidth === width) return;
  width = innerWidth;
  for (const [box, plot] of charts) plot.setSize({ width: box.clientWidth, height: box.clientHeight });
});
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redraw);

// --- live ----------------------------------------------------------------------------------------------------------

const EVERY_MS = 1500;   // most often
const AT_LEAST_MS = 10000; // what no event tells of: counts fall, leases end
const EVENTS = ['queue', 'nodes'];
const light = $('#live');
const picked = () => all('input[name=id]:checked');
let paused = sessionStorage.getItem('paused') === 'yes';
let dirty = true, busy = false, last = Date.now(), lost = false;

// Nothing moves under a reader's hands.
function held() {
  const at = document.activeElement;
  return paused || document.hidden || picked().length > 0 || $('dialog[open]') || $('details.menu[open]')
    || (at && main.contains(at) && at.matches('input, select, textarea'));
}

function tell() {
  const is = lost ? 'lost' : held() ? 'paused' : 'live';
  light.hidden = false;
  light.dataset.is = is;
  light.setAttribute('aria-pressed', String(paused));
  light.title = is === 'lost' ? 'No answer from the server; trying again' : paused ? 'Live updates are paused; press p' : 'Updates as things happen; press p to pause';
  $('span', light).textContent = is === 'lost' ? 'no answer' : is;
}

function patch(old, fresh) {
  if (old.isEqualNode(fresh)) return;
  if (old.matches('.chart')) {
    old.dataset.chart = fresh.dataset.chart;
    old.setAttribute('aria-label', fresh.getAttribute('aria-label'));
    return draw(old);
  }
  if (old.contains(document.activeElement)) return;
  old.replaceChildren(...fresh.childNodes);
  for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
}

// Rows stay where they are while somebody reads them: known ones change in place, others wait for a click.
function patchRows(old, fresh) {
  const rows = new Map(all('[data-key]', fresh).map((row) => [row.dataset.key, row]));
  const keys = all('[data-key]', old).map((row) => row.dataset.key);
  for (const row of all('[data-key]', old)) {
    const next = rows.get(row.dataset.key);
    if (next) {
      const at = row.classList.contains('at');
      patch(row, next);
      row.classList.toggle('at', at);
    }
  }
  const same = keys.length === rows.size && [...rows.keys()].every((key, i) => key === keys[i]);
  const pill = $('#changed');
  if (pill) pill.hidden = same;
}

async function refresh() {
  busy = true;
  last = Date.now();
  dirty = false;
  try {
    const answer = await fetch(location.href, { headers: { accept: 'text/html', 'x-live': '1' }, cache: 'no-store' });
    if (answer.status === 401 || answer.redirected) return location.reload();
    if (!answer.ok) throw new Error(answer.status);
    const doc = new DOMParser().parseFromString(await answer.text(), 'text/html');
    lost = false;
    if (held()) { dirty = true; return; }
    setSkew(doc);
    for (const old of all('[data-live], .chart')) {
      const fresh = old.id && doc.getElementById(old.id);
      if (fresh) old.dataset.live === 'rows' ? patchRows(old, fresh) : patch(old, fresh);
    }
    tick();
  } catch { lost = true; dirty = true; } finally { busy = false; tell(); }
}

let events = null;
function listen() {
  events?.close();
  events = null;
  if (document.hidden) return;
  dirty = true;
  events = new EventSource(`${root}/api/v1/events`);
  const seen = () => { dirty = true; };
  events.onmessage = seen;
  for (const name of EVENTS) events.addEventListener(name, seen);
}

if ($('[data-live], .chart', main)) {
  listen();
  document.addEventListener('visibilitychange', listen);
  setInterval(() => {
    tick();
    tell();
    const since = Date.now() - last;
    if (!busy && !held() && since > (lost ? 3 * EVERY_MS : EVERY_MS) && (dirty || since > AT_LEAST_MS)) refresh();
  }, 500);
  light.addEventListener('click', pause);
  tell();
} else {
  setInterval(tick, 1000);
}

function pause() {
  paused = !paused;
  sessionStorage.setItem('paused', paused ? 'yes' : 'no');
  dirty = true;
  tell();
}

// --- selecting -----------------------------------------------------------------------------------------------------

const bulk = $('#bulk');
function count() {
  if (!bulk) return;
  const n = picked().length;
  $('#picked', bulk).textContent = n ? `${n} selected` : 'Select jobs, or act on all that match';
  for (const button of all('button[data-picked]', bulk)) button.disabled = n === 0;
  for (const box of all('input[name=id]')) box.closest('tr').classList.toggle('picked', box.checked);
  const every = $('#every');
  const boxes = all('input[name=id]');
  if (every) { every.checked = n > 0 && n === boxes.length; every.indeterminate = n > 0 && n < boxes.length; }
  tell();
}
if (bulk) {
  const every = $('#every');
  if (every) { every.hidden = false; every.addEventListener('change', () => { all('input[name=id]').forEach((box) => { box.checked = every.checked; }); count(); }); }
  document.addEventListener('change', (event) => { if (event.target.name === 'id') count(); });
  addEventListener('pageshow', count);
  count();
}

// --- questions before something is done ----------------------------------------------------------------------------

document.addEventListener('submit', (event) => {
  const form = event.target;
  const text = event.submitter?.dataset.ask ?? form.dataset.ask;
  if (!text || form.elements.sure) return;
  event.preventDefault();
  const ask = $('#ask');
  const from = event.submitter;
  $('#ask-text').textContent = text;
  $('#ask-yes').textContent = from?.textContent.trim() || 'Yes';
  ask.onclose = () => {
    if (ask.returnValue !== 'yes') return;
    form.append(Object.assign(document.createElement('input'), { type: 'hidden', name: 'sure', value: 'yes' }));
    form.requestSubmit(from);
  };
  ask.returnValue = 'no';
  ask.showModal();
});

// --- keys ----------------------------------------------------------------------------------------------------------

const find = $('#find');
const rows = () => all('tr[data-key]', main);
function go(step) {
  const list = rows();
  if (!list.length) return;
  const at = list.findIndex((row) => row.classList.contains('at'));
  const next = at < 0 ? (step > 0 ? 0 : list.length - 1) : Math.min(list.length - 1, Math.max(0, at + step));
  list[at]?.classList.remove('at');
  list[next].classList.add('at');
  list[next].scrollIntoView({ block: 'nearest' });
  $('a', list[next])?.focus({ preventScroll: true });
}

document.addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || $('dialog[open]')) return;
  const typing = event.target.matches('input:not([type=checkbox]), select, textarea');
  if (event.key === 'Escape' && typing) return event.target.blur();
  if (typing) return;
  const row = $('tr.at', main);
  const act = {
    '/': () => { find.focus(); find.select(); },
    '?': () => $('#help').showModal(),
    j: () => go(1),
    k: () => go(-1),
    x: () => { const box = row && $('input[name=id]', row); if (box) { box.checked = !box.checked; count(); } },
    Enter: () => { if (event.target.matches('a, button, summary')) return false; const link = row && $('a', row); if (!link) return false; link.click(); },
    p: pause,
    t: theme,
  }[event.key];
  if (act && act() !== false) event.preventDefault();
});

// --- theme ---------------------------------------------------------------------------------------------------------

function theme() {
  const order = ['auto', 'light', 'dark'];
  const now = document.documentElement.dataset.theme ?? 'auto';
  const next = order[(order.indexOf(now) + 1) % 3];
  if (next === 'auto') delete document.documentElement.dataset.theme; else document.documentElement.dataset.theme = next;
  document.cookie = `duly_theme=${next}; path=${root || '/'}; max-age=31536000; samesite=lax`;
  const button = $('#theme button');
  const words = { auto: 'as the system says', light: 'light', dark: 'dark' }[next];
  button.setAttribute('aria-label', `Theme: ${words}; change it`);
  button.title = `Theme: ${words}`;
  redraw();
}
$('#theme').addEventListener('submit', (event) => { event.preventDefault(); theme(); });

// --- words of the filter -------------------------------------------------------------------------------------------

const list = $('#find-words');
const words = JSON.parse(list.dataset.words);
find.addEventListener('input', () => {
  const cut = find.value.lastIndexOf(' ') + 1;
  const [before, word] = [find.value.slice(0, cut), find.value.slice(cut)];
  const fits = word ? words.filter((w) => w.startsWith(word) && w !== word).slice(0, 12) : [];
  list.replaceChildren(...fits.map((w) => Object.assign(document.createElement('option'), { value: before + w })));
});

for (const button of all('[data-copy]')) {
  button.hidden = false;
  button.addEventListener('click', async () => {
    await navigator.clipboard.writeText(button.dataset.copy);
    const text = button.textContent;
    button.textContent = 'copied';
    setTimeout(() => { button.textContent = text; }, 1200);
  });
}

setSkew(document);
tick();
all('.chart').forEach(draw);
