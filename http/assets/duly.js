// Progressive enhancement: live updates, keyboard shortcuts, charts, confirmation dialogs.
// Every page works without this file.

const $ = (selector, from = document) => from.querySelector(selector);
const all = (selector, from = document) => [...from.querySelectorAll(selector)];
const root = document.body.dataset.root;
const main = $('#main');

// --- times ---------------------------------------------------------------------------------------------------------

function formatSeconds(s) {
  const two = (a, u, b, v) => b ? `${a} ${u} ${b} ${v}` : `${a} ${u}`;
  if (s < 60) return `${s} s`;
  if (s < 3600) return two(Math.floor(s / 60), 'min', s % 60, 's');
  if (s < 86400) return two(Math.floor(s / 3600), 'h', Math.floor(s % 3600 / 60), 'min');
  return two(Math.floor(s / 86400), 'd', Math.floor(s % 86400 / 3600), 'h');
}

// The difference to the store's clock, which rendered the page: the clock of the browser may be wrong.
let skew = 0;
const setSkew = (doc) => {
  const renderedAt = $('#rendered-at', doc)?.dateTime;
  if (renderedAt) skew = Date.parse(renderedAt) - Date.now();
};

function updateTimes() {
  const now = Date.now() + skew;
  for (const time of all('time[datetime]:not(#rendered-at)')) {
    const elapsed = (now - Date.parse(time.dateTime)) / 1000;
    if (Number.isNaN(elapsed)) continue;
    const text = Math.abs(elapsed) < 1 ? (elapsed < 0 ? 'now' : 'just now')
      : elapsed > 0 ? `${formatSeconds(Math.floor(elapsed))} ago` : `in ${formatSeconds(Math.floor(-elapsed))}`;
    if (time.textContent !== text) time.textContent = text;
  }
}

// --- charts --------------------------------------------------------------------------------------------------------

const charts = new Map();
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const colour = (name) => css(({ pushed: '--faint', retried: '--running', buried: '--dead', cancelled: '--scheduled' })[name] ?? `--${name}`);
const millis = (v) => v < 1000 ? `${v < 10 ? +v.toFixed(1) : Math.round(v)} ms` : v < 60e3 ? `${+(v / 1000).toFixed(1)} s` : formatSeconds(Math.round(v / 1000));
// An axis has one unit per label, so that labels are short.
const SECOND = 1e3, MINUTE = 60e3, HOUR = 3600e3, DAY = 86400e3;
const TIME_STEPS = [...[1e-2, 1e-1, 1, 10, 100].flatMap((n) => [n, 2 * n, 5 * n]), ...[1, 2, 5, 10, 15, 30].map((n) => n * SECOND),
  ...[1, 2, 5, 10, 15, 30].map((n) => n * MINUTE), ...[1, 2, 3, 6, 12].map((n) => n * HOUR), ...[1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].map((n) => n * DAY)];
const axisMillis = (v) => {
  const [unit, name] = v < SECOND ? [1, 'ms'] : v < MINUTE ? [SECOND, 's'] : v < HOUR ? [MINUTE, 'min'] : v < DAY ? [HOUR, 'h'] : [DAY, 'd'];
  return v === 0 ? '0' : `${+(v / unit).toFixed(2)} ${name}`;
};
const percent = (v) => `${+v.toFixed(1)} %`;
const jobs = (v) => v.toLocaleString('en-US', { notation: v >= 1e5 ? 'compact' : 'standard', maximumFractionDigits: 1 });

function draw(box) {
  if (!window.uPlot || !box.clientWidth) return;
  const { start, step, series, partial } = JSON.parse(box.dataset.chart);
  const times = series[0].values.map((_, i) => start + i * step);
  // The line to the running interval is dashed: a series of its own after the one with all others.
  const end = times.length - 1;
  const part = (values, shown) => values.map((v, i) => (shown(i) ? v : null));
  const lines = (values) => partial ? [part(values, (i) => i < end), part(values, (i) => i >= end - 1)] : [values];
  const data = [times, ...series.flatMap((one) => lines(one.values))];
  const old = charts.get(box);
  if (old) return old.setData(data);
  const format = { ms: millis, percent }[box.dataset.unit] ?? jobs;
  const axisFormat = format === millis ? axisMillis : format;
  const steps = format === millis ? TIME_STEPS : format === jobs ? [1, 2, 5].flatMap((n) => [...Array(12).keys()].map((e) => n * 10 ** e)).sort((a, b) => a - b) : [1, 2, 5, 10, 20, 25, 50];
  const zone = document.body.dataset.zone;
  const days = times.length * step > 86400 * 2;
  const clock = { hour: '2-digit', minute: '2-digit', ...(step < 60 && { second: '2-digit' }) };
  const formatTime = (s, parts) => {
    try {
      return new Date(s * 1000).toLocaleString('en-GB', { timeZone: zone, ...parts });
    } catch { return new Date(s * 1000).toISOString().slice(5, 16).replace('T', ' '); }
  };
  const tickTime = (s) => formatTime(s, days ? { day: 'numeric', month: 'short' } : { hour: '2-digit', minute: '2-digit' });
  const pointTime = (s) => formatTime(s, days ? { day: 'numeric', month: 'short', ...clock } : clock);
  const axis = { stroke: css('--faint'), grid: { stroke: css('--line'), width: 1 }, ticks: { show: false }, font: '12px system-ui' };
  const tooltip = Object.assign(document.createElement('div'), { className: 'tooltip', hidden: true });
  const plot = new window.uPlot({
    width: box.clientWidth, height: box.clientHeight, legend: { show: false }, padding: [8, 18, 0, 0],
    cursor: { y: false, points: { size: 7 } },
    scales: { x: { time: true }, y: { range: (_, lo, hi) => [0, hi > 0 ? hi * 1.08 : 1] } },
    axes: [{ ...axis, values: (_, at) => at.map(tickTime), space: 70, incrs: days ? [1, 2, 3, 5, 7, 10].map((n) => n * 86400) : [60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 14400, 21600], size: 26, gap: 4 },
      { ...axis, values: (_, at) => at.map((v) => v === null ? '' : axisFormat(v)), size: 62, incrs: steps }],
    series: [{}, ...series.flatMap((one) => lines(one.values).map((_, i) => ({ label: one.name, stroke: colour(one.class), width: 1.75, spanGaps: true, points: { show: times.length < 8, size: 5 }, ...(i && { dash: [4, 4] }) })))],
    hooks: { setCursor: [(u) => {
      const { idx, left } = u.cursor;
      tooltip.hidden = idx === null || idx === undefined || left < 0;
      if (tooltip.hidden) return;
      const value = (i) => partial ? u.data[2 * i + 1][idx] ?? u.data[2 * i + 2][idx] : u.data[i + 1][idx];
      const soFar = partial && idx === u.data[0].length - 1 ? ' (running, projected)' : '';
      tooltip.textContent = [pointTime(u.data[0][idx]) + soFar, ...series.map((one, i) => `${one.name} ${value(i) === null ? '–' : format(value(i))}`)].join('  ·  ');
      const x = left + 70;
      tooltip.style.left = `${Math.max(0, Math.min(x, box.clientWidth - tooltip.offsetWidth))}px`;
      tooltip.style.top = '0';
    }] },
  }, data, box);
  box.append(tooltip);
  box.classList.add('drawn');
  charts.set(box, plot);
}

function redraw() {
  for (const [box, plot] of charts) {
    plot.destroy();
    $('.tooltip', box)?.remove();
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

const REFRESH_MIN_MS = 1500;
const REFRESH_MAX_MS = $('[data-tail]') ? 2000 : 10000; // some changes have no event: leases end, counts fall, lines of a log
const EVENTS = ['queue', 'nodes'];
const indicator = $('#live');
const selected = () => all('input[name=id]:checked');
let paused = sessionStorage.getItem('paused') === 'yes';
let dirty = true, busy = false, last = Date.now(), lost = false;

// The page must not change while the reader selects or types.
function isHeld() {
  const focused = document.activeElement;
  return paused || document.hidden || selected().length > 0 || $('dialog[open]') || $('details.menu[open]')
    || (focused && main.contains(focused) && !focused.closest('#copy-as') && focused.matches('input, select, textarea'));
}

function showStatus() {
  const status = lost ? 'lost' : isHeld() ? 'paused' : 'live';
  indicator.hidden = false;
  indicator.dataset.status = status;
  indicator.setAttribute('aria-pressed', String(paused));
  indicator.title = status === 'lost' ? 'The server does not respond; trying again' : paused ? 'Live updates are paused; press p' : 'Updates by itself; press p to pause';
  $('span', indicator).textContent = status === 'lost' ? 'offline' : status;
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

// Rows keep their position while the reader looks at them: existing rows change in place, new ones wait for a click.
function patchRows(old, fresh) {
  const rows = new Map(all('[data-key]', fresh).map((row) => [row.dataset.key, row]));
  const keys = all('[data-key]', old).map((row) => row.dataset.key);
  for (const row of all('[data-key]', old)) {
    const next = rows.get(row.dataset.key);
    if (next) {
      const isCurrent = row.classList.contains('current');
      patch(row, next);
      row.classList.toggle('current', isCurrent);
    }
  }
  const same = keys.length === rows.size && [...rows.keys()].every((key, i) => key === keys[i]);
  const pill = $('#changed');
  if (pill) pill.hidden = same;
}

// New lines are appended. The end stays in view if the reader is there, and the text does not move if not.
const END_PX = 8;
const isAtEnd = (box) => box.scrollHeight - box.scrollTop - box.clientHeight <= END_PX;
const showEnd = (box) => { box.scrollTop = box.scrollHeight; };
function patchLines(old, fresh) {
  const box = old.closest('.log');
  const follows = isAtEnd(box);
  const text = (row) => `${$('time', row)?.dateTime} ${row.lastElementChild.textContent}`;
  const last = old.lastElementChild && text(old.lastElementChild);
  const lines = [...fresh.children];
  const known = lines.findLastIndex((row) => text(row) === last) + 1;
  const isContinued = known > 0 && known <= old.children.length;
  if (isContinued) old.append(...lines.slice(known)); else old.replaceChildren(...lines);
  while (old.children.length > lines.length) old.firstElementChild.remove();
  if (follows) showEnd(box);
}
all('.log[data-tail]').forEach(showEnd);

async function refresh() {
  busy = true;
  last = Date.now();
  dirty = false;
  try {
    // Not the address of the page: after a rejected form, that is the action.
    const response = await fetch(document.body.dataset.url, { headers: { accept: 'text/html', 'x-live': '1' }, cache: 'no-store' });
    if (response.status === 401 || response.redirected) return location.reload();
    if (!response.ok) throw new Error(response.status);
    const doc = new DOMParser().parseFromString(await response.text(), 'text/html');
    lost = false;
    if (isHeld()) { dirty = true; return; }
    setSkew(doc);
    for (const old of all('[data-live], .chart')) {
      const fresh = old.id && doc.getElementById(old.id);
      if (fresh) ({ rows: patchRows, lines: patchLines }[old.dataset.live] ?? patch)(old, fresh);
    }
    updateTimes();
  } catch { lost = true; dirty = true; } finally { busy = false; showStatus(); }
}

let events = null;
function listen() {
  events?.close();
  events = null;
  if (document.hidden) return;
  dirty = true;
  events = new EventSource(`${root}/api/v1/events`);
  const markDirty = () => { dirty = true; };
  events.onmessage = markDirty;
  for (const name of EVENTS) events.addEventListener(name, markDirty);
}

if ($('[data-live], .chart', main)) {
  listen();
  document.addEventListener('visibilitychange', listen);
  setInterval(() => {
    updateTimes();
    showStatus();
    const since = Date.now() - last;
    if (!busy && !isHeld() && since > (lost ? 3 * REFRESH_MIN_MS : REFRESH_MIN_MS) && (dirty || since > REFRESH_MAX_MS)) refresh();
  }, 500);
  indicator.addEventListener('click', togglePause);
  showStatus();
} else {
  setInterval(updateTimes, 1000);
}

function togglePause() {
  paused = !paused;
  sessionStorage.setItem('paused', paused ? 'yes' : 'no');
  dirty = true;
  showStatus();
}

// --- selecting -----------------------------------------------------------------------------------------------------

const bulk = $('#bulk');
function showSelection() {
  if (!bulk) return;
  const n = selected().length;
  $('#selected', bulk).textContent = n ? `${n} selected` : 'Select jobs, or act on all that match';
  for (const button of all('button[data-needs-selection]', bulk)) button.disabled = n === 0;
  for (const box of all('input[name=id]')) box.closest('tr').classList.toggle('selected', box.checked);
  const selectAll = $('#select-all');
  const boxes = all('input[name=id]');
  if (selectAll) { selectAll.checked = n > 0 && n === boxes.length; selectAll.indeterminate = n > 0 && n < boxes.length; }
  showStatus();
}
if (bulk) {
  const selectAll = $('#select-all');
  if (selectAll) { selectAll.hidden = false; selectAll.addEventListener('change', () => { all('input[name=id]').forEach((box) => { box.checked = selectAll.checked; }); showSelection(); }); }
  document.addEventListener('change', (event) => { if (event.target.name === 'id') showSelection(); });
  addEventListener('pageshow', showSelection);
  showSelection();
}

// --- confirmation dialogs ----------------------------------------------------------------------------

document.addEventListener('submit', (event) => {
  const form = event.target;
  const { question, explanation, yes, no } = form.dataset;
  if (!question || form.elements.confirm) return;
  event.preventDefault();
  const dialog = $('#confirm-dialog');
  const button = event.submitter;
  $('#confirm-title').textContent = question;
  $('#confirm-text').textContent = explanation;
  $('#confirm-yes').textContent = yes;
  $('#confirm-no').textContent = no;
  dialog.onclose = () => {
    if (dialog.returnValue !== 'yes') return;
    form.append(Object.assign(document.createElement('input'), { type: 'hidden', name: 'confirm', value: 'yes' }));
    form.requestSubmit(button);
  };
  dialog.returnValue = 'no';
  dialog.showModal();
});

// --- keys ----------------------------------------------------------------------------------------------------------

const search = $('#search');
const rows = () => all('tr[data-key]', main);
function moveCursor(step) {
  const list = rows();
  if (!list.length) return;
  const at = list.findIndex((row) => row.classList.contains('current'));
  const next = at < 0 ? (step > 0 ? 0 : list.length - 1) : Math.min(list.length - 1, Math.max(0, at + step));
  list[at]?.classList.remove('current');
  list[next].classList.add('current');
  list[next].scrollIntoView({ block: 'nearest' });
  $('a', list[next])?.focus({ preventScroll: true });
}

// The keys that open a page are in the help.
const destinations = new Map(all('#help [data-keys]').map((entry) => [entry.dataset.keys, root + entry.dataset.path]));
const SECOND_KEY_MS = 1500;
let goUntil = 0;
function go(keys) {
  const path = destinations.get(keys);
  if (path) location.assign(path);
  return Boolean(path);
}

function clearSelection() {
  const boxes = selected();
  for (const box of boxes) box.checked = false;
  if (boxes.length) showSelection();
  return boxes.length > 0;
}

document.addEventListener('keydown', (event) => {
  if ((event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey && event.key.toLowerCase() === 'k') {
    event.preventDefault();
    return openPalette();
  }
  if (event.ctrlKey || event.metaKey || event.altKey || $('dialog[open]')) return;
  const typing = event.target.matches('input:not([type=checkbox]), select, textarea');
  if (event.key === 'Escape' && typing) return event.target.blur();
  if (typing) return;
  const row = $('tr.current', main);
  const isSecond = event.timeStamp < goUntil;
  goUntil = 0;
  if (isSecond && go(`g ${event.key}`)) return event.preventDefault();
  const follow = (link) => { if (!link) return false; link.click(); };
  const shortcut = {
    '/': () => { search.focus(); search.select(); },
    '?': () => $('#help').showModal(),
    g: () => { goUntil = event.timeStamp + SECOND_KEY_MS; },
    n: () => go('n'),
    j: () => moveCursor(1),
    k: () => moveCursor(-1),
    x: () => { const box = row && $('input[name=id]', row); if (box) { box.checked = !box.checked; showSelection(); } },
    a: () => { const box = $('#select-all'); if (!box) return false; box.click(); },
    Escape: clearSelection,
    '[': () => follow($('.pager a[rel=first]')),
    ']': () => follow($('.pager a[rel=next]')),
    Enter: () => { if (event.target.matches('a, button, summary')) return false; return follow(row && $('a', row)); },
    p: togglePause,
    t: nextTheme,
  }[event.key];
  if (shortcut && shortcut() !== false) event.preventDefault();
});

// --- command palette -----------------------------------------------------------------------------------------------------

// The buttons of this page are commands, too.
function pageCommands() {
  const buttons = all('.page-head .toolbar :is(button, a.button)', main).filter((button) => !button.disabled && button.offsetParent);
  const of = buttons.map((button) => ({ label: button.textContent.trim(), run: () => button.click() }));
  return [...of, { label: paused ? 'Resume live updates' : 'Pause live updates', run: togglePause }, { label: 'Change the theme', run: nextTheme },
    { label: 'Show the keys', run: () => $('#help').showModal() }];
}

async function openPalette() {
  if ($('#palette').open) return $('#palette').close();
  if ($('dialog[open]')) return;
  const { open } = await import(document.body.dataset.palette);
  open(pageCommands());
}
$('#open-palette').hidden = false;
$('#open-palette').addEventListener('click', openPalette);

// --- theme ---------------------------------------------------------------------------------------------------------

function nextTheme() {
  const order = ['auto', 'light', 'dark'];
  const now = document.documentElement.dataset.theme ?? 'auto';
  const next = order[(order.indexOf(now) + 1) % 3];
  if (next === 'auto') delete document.documentElement.dataset.theme; else document.documentElement.dataset.theme = next;
  document.cookie = `duly_theme=${next}; path=${root || '/'}; max-age=31536000; samesite=lax`;
  const button = $('#theme button');
  const label = { auto: 'like the system', light: 'light', dark: 'dark' }[next];
  button.setAttribute('aria-label', `Theme: ${label}; change it`);
  button.title = `Theme: ${label}`;
  redraw();
}
$('#theme').addEventListener('submit', (event) => { event.preventDefault(); nextTheme(); });

// --- suggestions for the filter -------------------------------------------------------------------------------------------

const list = $('#search-words');
let suggestions = JSON.parse(list.dataset.suggestions);
// Kinds and tags are read when they are first needed.
search.addEventListener('focus', async () => {
  try {
    const response = await fetch(`${root}/suggestions`, { headers: { accept: 'application/json' } });
    if (response.ok) suggestions = [...suggestions, ...(await response.json()).words];
  } catch { /* the other words are still offered */ }
}, { once: true });
search.addEventListener('input', () => {
  const cut = search.value.lastIndexOf(' ') + 1;
  const [before, word] = [search.value.slice(0, cut), search.value.slice(cut)];
  const matches = word ? suggestions.filter((w) => w.startsWith(word) && w !== word).slice(0, 12) : [];
  list.replaceChildren(...matches.map((w) => Object.assign(document.createElement('option'), { value: before + w })));
});

// --- the preview of a cron rule ------------------------------------------------------------------------------------------

const PREVIEW_DELAY_MS = 200;
const preview = $('#preview');
if (preview) {
  const { form } = $('#f-pattern');
  let timer = 0, pending = null;
  const update = async () => {
    pending?.abort();
    pending = new AbortController();
    const query = new URLSearchParams({ pattern: form.elements.pattern.value, tz: form.elements.tz.value });
    try {
      const response = await fetch(`${preview.dataset.preview}?${query}`, { headers: { accept: 'text/html', 'x-live': '1' }, signal: pending.signal });
      if (!response.ok) throw new Error(response.status);
      const fresh = new DOMParser().parseFromString(await response.text(), 'text/html').getElementById('preview');
      if (fresh && preview.innerHTML !== fresh.innerHTML) preview.replaceChildren(...fresh.childNodes);
      updateTimes();
    } catch { /* the last preview stays; the button shows a new one */ }
  };
  form.addEventListener('input', ({ target }) => {
    if (!['pattern', 'tz'].includes(target.name)) return;
    clearTimeout(timer);
    timer = setTimeout(update, PREVIEW_DELAY_MS);
  });
}

// --- copying -------------------------------------------------------------------------------------------------------------

const copyAs = $('#copy-as');
if (copyAs) {
  copyAs.hidden = false;
  copyAs.addEventListener('toggle', () => import(copyAs.dataset.script), { once: true });
}

// A link to a part of the page that is folded opens it.
const target = location.hash.length > 1 && document.getElementById(location.hash.slice(1));
if (target instanceof HTMLDetailsElement) target.open = true;

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
updateTimes();
all('.chart').forEach(draw);
