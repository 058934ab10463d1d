// "As curl, duly or Rust": the commands that do the same as the forms of a page. Loaded when the panel is first opened. The text
// follows what is typed, and has the variable DULY_TOKEN instead of a token.

const $ = (selector, from = document) => from.querySelector(selector);
const all = (selector, from = document) => [...from.querySelectorAll(selector)];
const panel = $('#copy-as');
const picker = $('#copy-action');
const output = $('#copy-text');
const api = `${location.origin}${document.body.dataset.root}/api/v1`;
const REMEMBERED = 'duly_copy_as';

// --- values in the syntax of each language -----------------------------------------------------------------------------

// Quotes a word for a POSIX shell. Words without special characters stay as they are.
const shell = (word) => /^[\w./:-][\w./:,@+=-]*$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;

// Control characters, and those that change the direction of the text, which Rust rejects in literals.
const NEEDS_ESCAPE = /[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/;
function rust(text) {
  if (/["\\\n]/.test(text) && !NEEDS_ESCAPE.test(text.replaceAll('\n', ''))) {
    const hashes = '#'.repeat(1 + Math.max(0, ...[...text.matchAll(/"(#*)/g)].map((found) => found[1].length)));
    return `r${hashes}"${text}"${hashes}`;
  }
  const escaped = [...text].map((c) => c === '"' || c === '\\' ? `\\${c}` : NEEDS_ESCAPE.test(c) ? `\\u{${c.codePointAt(0).toString(16)}}` : c);
  return `"${escaped.join('')}"`;
}

const UNITS = { ms: 1, s: 1000, m: 60e3, min: 60e3, h: 3600e3, d: 86400e3, w: 604800e3 };
function millis(text, name) {
  const parts = [...text.matchAll(/(\d+)\s*(ms|min|s|m|h|d|w)\s*/g)];
  if (text !== '0' && (!parts.length || parts.map((part) => part[0]).join('') !== text)) throw new Error(`${name}: write a duration such as 30s, 10m, 2h30m or 3d.`);
  return parts.reduce((sum, part) => sum + part[1] * UNITS[part[2]], 0);
}
const rustDuration = (ms) => `std::time::Duration::from_${ms % 1000 ? `millis(${ms})` : `secs(${ms / 1000})`}`;

// Numbers of any length stay exact: the JSON is not parsed and written again.
function json(text, name) {
  try { JSON.parse(text); } catch { throw new Error(`${name} must be JSON, such as {"to":"ada"}.`); }
  return text;
}
const object = (pairs) => `{${pairs.filter(([, value]) => value !== undefined).map(([key, value]) => `${JSON.stringify(key)}:${value}`).join(',')}}`;
const option = (name, value) => value === undefined ? [] : [`--${name}=${value}`];
const segment = encodeURIComponent;

// --- one command per action --------------------------------------------------------------------------------------------

function required(form, name, label) {
  const value = form.elements[name].value.trim();
  if (!value) throw new Error(`${label} is empty.`);
  return value;
}
const optional = (form, name) => form.elements[name]?.value.trim() || undefined;
const duration = (form, name, label) => {
  const text = optional(form, name);
  return text && { text, ms: millis(text, label) };
};
const whole = (form, name, label) => {
  const text = optional(form, name)?.replace(/[,_ ]/g, '');
  if (text !== undefined && !/^\d+$/.test(text)) throw new Error(`${label} must be a whole number.`);
  return text;
};

// The options that a push and a cron rule have in common.
function jobOptions(form) {
  const tags = (optional(form, 'tags') ?? '').split(/[\s,]+/).filter(Boolean);
  const priority = form.elements.priority.value;
  const [timeout, keep] = [duration(form, 'timeout', 'Timeout'), duration(form, 'keep', 'Kept')];
  const [queue, attempts] = [optional(form, 'queue'), whole(form, 'max_attempts', 'Attempts')];
  return {
    body: [['queue', queue && JSON.stringify(queue)], ['priority', priority === 'normal' ? undefined : JSON.stringify(priority)], ['max_attempts', attempts],
      ['timeout_ms', timeout?.ms], ['keep_ms', keep?.ms], ['tags', tags.length ? JSON.stringify(tags) : undefined]],
    words: [...option('queue', queue), ...option('priority', priority === 'normal' ? undefined : priority), ...option('max-attempts', attempts),
      ...option('timeout', timeout?.text), ...option('keep', keep?.text), ...tags.flatMap((tag) => option('tag', tag))],
    calls: [queue && `.queue(${rust(queue)})`, priority !== 'normal' && `.priority(duly::Priority::${priority[0].toUpperCase()}${priority.slice(1)})`,
      attempts && `.max_attempts(${attempts})`, timeout && `.timeout(${rustDuration(timeout.ms)})`, keep && `.keep(${rustDuration(keep.ms)})`,
      tags.length && `.tags([${tags.map(rust).join(', ')}])`].filter(Boolean),
  };
}

function push(form) {
  const [kind, args, options] = [required(form, 'kind', 'Kind'), json(form.elements.args.value.trim(), 'Args'), jobOptions(form)];
  const [after, unique] = [duration(form, 'after', 'Delay'), optional(form, 'unique')];
  return {
    method: 'POST', path: '/jobs',
    body: object([['kind', JSON.stringify(kind)], ['args', args], ...options.body, ['after_ms', after?.ms], ['unique', unique && JSON.stringify(unique)]]),
    words: ['push', kind, args, ...options.words, ...option('in', after?.text), ...option('unique', unique)],
    rust: [`duly.push(duly::Push::new(${rust(kind)}, ${rust(args)})`,
      ...[...options.calls, after && `.after(${rustDuration(after.ms)})`, unique && `.unique(${rust(unique)})`].filter(Boolean).map((call) => `    ${call}`), ').await?;'],
  };
}

function saveRule(form) {
  const [name, pattern, kind] = [required(form, 'name', 'Name'), required(form, 'pattern', 'Pattern'), required(form, 'kind', 'Kind')];
  const [args, options] = [json(form.elements.args.value.trim(), 'Args'), jobOptions(form)];
  const [tz, missed, overlap, jitter] = [optional(form, 'tz'), optional(form, 'missed') ?? 'once', form.elements.overlap.value, duration(form, 'jitter', 'Jitter')];
  const policy = /^all:(\d+)$/.exec(missed);
  const text = (value) => value && JSON.stringify(value);
  return {
    method: 'PUT', path: `/cron/${segment(name)}`,
    body: object([['pattern', text(pattern)], ['tz', text(tz)], ['kind', text(kind)], ['args', args], ...options.body, ['missed', text(missed)], ['overlap', text(overlap)], ['jitter_ms', jitter?.ms]]),
    words: ['cron', 'add', name, pattern, ...option('tz', tz), ...option('kind', kind), ...option('args', args), ...options.words, ...option('missed', missed),
      ...option('overlap', overlap), ...option('jitter', jitter?.text)],
    rust: [`let job = duly::Push::new(${rust(kind)}, ${rust(args)})${options.calls.join('')};`,
      `let rule = duly::cron::CronRule::new(${rust(name)}, ${rust(pattern)}, job)?`,
      ...[tz && `.tz(${rust(tz)})`, `.missed(duly::cron::Missed::${policy ? `All(${policy[1]})` : missed === 'skip' ? 'Skip' : 'Once'})`,
        `.overlap(duly::cron::Overlap::${overlap[0].toUpperCase()}${overlap.slice(1)})`, jitter && `.jitter(${rustDuration(jitter.ms)})`].filter(Boolean).map((call) => `    ${call}`),
      '    ;', 'duly.crons().put(rule).await?;'],
  };
}

// An action without fields on something with a name.
const simple = (name, method, path, words, call) => ({ method, path, words: [...words, name], rust: [`duly.${call}(${rust(name)}).await?;`] });
const queue = (action) => (form) => simple(form.dataset.name, 'POST', `/queues/${segment(form.dataset.name)}/${action}`, ['queues', action], `queues().${action}`);
const rule = (action) => (form) => simple(form.dataset.name, 'POST', `/cron/${segment(form.dataset.name)}/${action}`, ['cron', action], `crons().${action}`);
const id = (job) => `${rust(job)}.parse()?`;
const DUE_NOW = 'duly::job::Due::Now';

function capacity(form) {
  const { name } = form.dataset;
  const [jobs, bytes] = [whole(form, 'jobs', 'Jobs'), whole(form, 'bytes', 'Bytes')];
  const limits = jobs || bytes ? [...option('jobs', jobs), ...option('bytes', bytes)] : ['--none'];
  return {
    method: 'PATCH', path: `/queues/${segment(name)}`, body: object([['capacity_jobs', jobs ?? 'null'], ['capacity_bytes', bytes ?? 'null']]),
    words: ['queues', 'capacity', name, ...limits],
    rust: [`let capacity = duly::admin::Capacity::unlimited()${jobs ? `.jobs(Some(${jobs}))` : ''}${bytes ? `.bytes(Some(${bytes}))` : ''};`, `duly.queues().set_capacity(${rust(name)}, capacity).await?;`],
  };
}

function reschedule(form) {
  const { name } = form.dataset;
  const due = duration(form, 'due', 'Delay');
  return {
    method: 'POST', path: `/jobs/${name}/reschedule`, body: object([['after_ms', due?.ms ?? 0]]),
    words: due ? null : ['jobs', 'retry', name],
    rust: [`duly.jobs().reschedule(${id(name)}, ${due ? `duly::job::Due::After(${rustDuration(due.ms)})` : DUE_NOW}).await?;`],
  };
}

const VERBS = { retry: 'retry', cancel: 'cancel', remove: 'rm' };
const oneJob = (action, job) => action === 'retry' ? `reschedule(${job}, ${DUE_NOW})` : `${action}(${job})`;
const job = (action) => (form) => ({
  ...(action === 'remove' ? { method: 'DELETE', path: `/jobs/${form.dataset.name}` } : { method: 'POST', path: `/jobs/${form.dataset.name}/${action}` }),
  words: ['jobs', VERBS[action], form.dataset.name], rust: [`duly.jobs().${oneJob(action, id(form.dataset.name))}.await?;`],
});

function selectedJobs(action, ids) {
  if (!ids.length) throw new Error('Select at least one job.');
  return {
    loop: ids, ...(action === 'remove' ? { method: 'DELETE', path: '/jobs/$id' } : { method: 'POST', path: `/jobs/$id/${action}` }),
    words: ['jobs', VERBS[action], ...ids],
    rust: [`for id in [${ids.map((one) => `"${one}"`).join(', ')}] {`, `    duly.jobs().${oneJob(action, 'id.parse()?')}.await?;`, '}'],
  };
}

function matchingJobs(action, filter) {
  const parsed = filter ? `${rust(filter)}.parse()?` : 'duly::Filter::all()';
  const call = { retry: `reschedule_all(${parsed}, ${DUE_NOW})`, cancel: `cancel_all(${parsed})`, remove: `remove_all(${parsed})` }[action];
  return {
    method: 'POST', path: '/jobs/actions', body: object([...(filter ? [['filter', JSON.stringify(filter)]] : [['all', 'true']]), ['action', `"${action}"`]]),
    words: ['jobs', VERBS[action], ...(!filter ? ['--all'] : filter.startsWith('-') ? ['--', filter] : [filter])],
    rust: [`duly.jobs().${call}.run().await?;`],
  };
}

function edit(form) {
  const { name } = form.dataset;
  const args = json(form.elements.args.value.trim(), 'Args');
  return {
    method: 'PATCH', path: `/jobs/${name}`, body: object([['args', args]]), words: ['jobs', 'edit', name, ...option('args', args)],
    rust: [`duly.jobs().edit(${id(name)}, duly::admin::JobEdit::new().args(${rust(args)}.to_owned())).await?;`],
  };
}

const named = (form) => form.dataset.name;
const COMMANDS = {
  push, 'cron.save': saveRule, 'cron.trigger': rule('trigger'), 'cron.pause': rule('pause'), 'cron.resume': rule('resume'),
  'cron.remove': (form) => simple(named(form), 'DELETE', `/cron/${segment(named(form))}`, ['cron', 'rm'], 'crons().remove'),
  'queue.pause': queue('pause'), 'queue.resume': queue('resume'), 'queue.capacity': capacity,
  'queue.clear': (form) => ({ ...simple(named(form), 'DELETE', `/queues/${segment(named(form))}/jobs?confirm=${segment(named(form))}`, ['queues', 'clear'], ''), rust: [`duly.queues().clear(${rust(named(form))}).run().await?;`] }),
  'queue.remove': (form) => simple(named(form), 'DELETE', `/queues/${segment(named(form))}`, ['queues', 'rm'], 'queues().remove'),
  'job.retry': job('retry'), 'job.cancel': job('cancel'), 'job.remove': job('remove'), 'job.reschedule': reschedule, 'job.edit': edit,
};

// --- the panel ------------------------------------------------------------------------------------------------------------

function curl(command) {
  const words = ['curl --fail-with-body'];
  if (command.method !== 'GET') words[0] += ` -X ${command.method}`;
  if (panel.dataset.token) words.push('-H "Authorization: Bearer $DULY_TOKEN"');
  if (command.body) words.push("-H 'Content-Type: application/json'", `--data-raw ${shell(command.body)}`);
  // In a loop, the shell replaces `$id` in the address.
  words.push(command.loop ? `"${api}${command.path}"` : shell(api + command.path));
  const line = words.join(' \\\n  ');
  return command.loop ? `for id in ${command.loop.join(' ')}; do\n${line.replace(/^/gm, '  ')}\ndone` : line;
}

const LANGUAGES = {
  curl,
  duly: (command) => {
    if (!command.words) throw new Error('The command line has no such command; use curl or Rust.');
    return ['duly', ...command.words].map(shell).join(' ');
  },
  rust: (command) => command.rust.join('\n').replace(/\n {4};/, ';'),
};

const HINTS = {
  curl: panel.dataset.token ? 'Put a token into the variable DULY_TOKEN first.' : '',
  duly: 'Uses the store that DULY_STORE or duly.toml names; add --store for another one.',
  rust: 'With an open store: let duly = duly::Duly::open(...).await?;',
};

// Returns the actions that the page offers now: a live update may change them.
function actions() {
  const forms = all('form[data-command]').flatMap((form) => {
    if (form.dataset.command !== 'jobs') {
      const label = form.dataset.label ?? $('button', form).textContent.trim();
      return [{ key: form.dataset.command, label, form, make: () => COMMANDS[form.dataset.command](form) }];
    }
    const names = all('button[data-needs-selection]', form).map((button) => [button.value, button.textContent.trim()]);
    const ids = () => all('input[name=id]:checked', form).map((box) => box.value);
    return [...names.map(([action, label]) => ({ key: action, label: `${label} the selected jobs`, form, make: () => selectedJobs(action, ids()) })),
      ...names.map(([action, label]) => ({ key: `${action}-all`, label: `${label} all that match`, form, make: () => matchingJobs(action, form.elements.q.value.trim()) }))];
  });
  return forms;
}

function render() {
  if (!panel.open) return;
  const list = actions();
  const chosen = list.find((action) => action.key === picker.value) ?? list[0];
  const keys = list.map((action) => action.key).join(' ');
  if (picker.dataset.keys !== keys) {
    picker.replaceChildren(...list.map((action) => new Option(action.label, action.key, false, action === chosen)));
    picker.dataset.keys = keys;
    picker.parentElement.hidden = list.length < 2;
  }
  const language = $('input[name=copy-language]:checked').value;
  let text = '';
  let hint = chosen ? HINTS[language] : 'This page has no action now.';
  try { text = chosen ? LANGUAGES[language](chosen.make()) : ''; } catch (error) { hint = error.message; }
  output.textContent = text;
  output.hidden = !text;
  $('#copy-button').disabled = !text;
  $('#copy-hint').textContent = hint;
}

const remembered = $(`input[name=copy-language][value="${localStorage.getItem(REMEMBERED)}"]`);
if (remembered) remembered.checked = true;
panel.addEventListener('toggle', render);
panel.addEventListener('change', (event) => {
  if (event.target.name === 'copy-language') localStorage.setItem(REMEMBERED, event.target.value);
  render();
});
// The panel shows the form that is being filled in.
document.addEventListener('input', (event) => {
  const form = event.target.form;
  if (form?.dataset.command && form.dataset.command !== 'jobs') picker.value = form.dataset.command;
  render();
});
document.addEventListener('change', render);
const toolbar = $('#actions');
if (toolbar) new MutationObserver(render).observe(toolbar, { childList: true, subtree: true });
$('#copy-button').addEventListener('click', async (event) => {
  await navigator.clipboard.writeText(output.textContent);
  event.target.textContent = 'Copied';
  setTimeout(() => { event.target.textContent = 'Copy'; }, 1200);
});
render();
