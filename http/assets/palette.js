// The command palette: finds pages, queues, kinds, rules, nodes and jobs, and starts their actions. Loaded when it is first
// opened. The list follows the pattern of the ARIA combobox: the focus stays in the field.

const $ = (selector, from = document) => from.querySelector(selector);
const root = document.body.dataset.root;
const dialog = $('#palette');
const input = $('#palette-input');
const list = $('#palette-list');
const status = $('#palette-status');
const DELAY_MS = 60;

let local = [];
let items = [];
// The text that `items` were found for; null before the first search.
let listed = null;
let current = 0;
let pending = null;
let timer = 0;

// Opens the palette. `commands` are the commands of this page: { label, run }.
export function open(commands) {
  local = commands.map((command) => ({ group: 'This page', detail: '', ...command }));
  input.value = '';
  show([], null);
  dialog.showModal();
  search();
}

const matches = (item, text) => text.toLowerCase().split(/\s+/).every((word) => `${item.group} ${item.label}`.toLowerCase().includes(word));

// Returns true if the server's list is shown.
async function search() {
  const text = input.value.trim();
  clearTimeout(timer);
  pending?.abort();
  pending = new AbortController();
  const own = local.filter((item) => matches(item, text));
  try {
    const response = await fetch(`${root}/palette?q=${encodeURIComponent(text)}`, { headers: { accept: 'application/json' }, cache: 'no-store', signal: pending.signal });
    if (response.status === 401) return location.reload();
    if (!response.ok) throw new Error(response.status);
    const found = (await response.json()).items;
    show(text ? [...found, ...own] : [...own, ...found], text);
    return true;
  } catch (error) {
    if (error.name === 'AbortError') return;
    show(own, text);
    status.textContent = 'The server does not respond: only the commands of this page are listed.';
  }
}

function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function show(next, text) {
  items = next;
  listed = text;
  const groups = new Map();
  items.forEach((item, i) => {
    const option = element('div', { id: `palette-${i}`, role: 'option', class: 'option' }, element('span', {}, item.label));
    if (item.detail) option.append(' ', element('span', { class: 'faint' }, item.detail));
    option.addEventListener('click', (event) => start(item, event));
    option.addEventListener('pointermove', () => select(i));
    if (!groups.has(item.group)) groups.set(item.group, []);
    groups.get(item.group).push(option);
  });
  list.replaceChildren(...[...groups].map(([name, options]) =>
    element('div', { role: 'group', 'aria-label': name }, element('div', { class: 'group', 'aria-hidden': 'true' }, name), ...options)));
  const count = items.length === 1 ? '1 command' : `${items.length} commands`;
  status.textContent = items.length ? count : input.value.trim() ? 'Nothing matches.' : '';
  list.scrollTop = 0;
  select(0);
}

function select(index) {
  current = index;
  for (const option of list.querySelectorAll('[role=option]')) option.setAttribute('aria-selected', String(option.id === `palette-${index}`));
  if (items[index]) input.setAttribute('aria-activedescendant', `palette-${index}`); else input.removeAttribute('aria-activedescendant');
}

function move(step) {
  if (!items.length) return;
  select((current + step + items.length) % items.length);
  $(`#palette-${current}`).scrollIntoView({ block: 'nearest' });
}

function start(item, event) {
  if (!item) return;
  if (!item.run && !item.is_post && (event.ctrlKey || event.metaKey)) return window.open(root + item.path, '_blank', 'noopener');
  dialog.close();
  if (item.run) return item.run();
  if (!item.is_post) return location.assign(root + item.path);
  const form = element('form', { method: 'post', action: root + item.path, hidden: '' });
  document.body.append(form);
  form.submit();
}

// Enter may come before the list of the typed text: it waits for that list, and starts nothing of an older one.
async function startCurrent(event) {
  if (input.value.trim() !== listed && !await search()) return;
  if (input.value.trim() === listed && dialog.open) start(items[current], event);
}

input.addEventListener('input', () => {
  clearTimeout(timer);
  timer = setTimeout(search, DELAY_MS);
});
input.addEventListener('keydown', (event) => {
  const key = {
    ArrowDown: () => move(1), ArrowUp: () => move(-1), PageDown: () => move(Math.min(8, items.length - 1 - current)), PageUp: () => move(-Math.min(8, current)),
    Enter: () => startCurrent(event),
  }[event.key];
  if (!key || event.isComposing) return;
  event.preventDefault();
  key();
});
// A click beside the dialog closes it.
dialog.addEventListener('click', (event) => { if (event.target === dialog) dialog.close(); });
