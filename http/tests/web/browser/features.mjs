// The features of the scripts: command palette, keys, previews, the log of a running job, copied commands. Argument: the URL of
// a full store.
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { accessible, clean, end, launch, must, open, same, test } from './support.mjs';

const [full] = process.argv.slice(2);
const browser = await launch();
const scripted = (name, run) => test(`with scripts: ${name}`, async () => {
  const page = await open(browser, full, { bypassCSP: true });
  await run(page);
  clean(page);
  await page.context().close();
});
const option = (page, text) => page.locator('#palette [role=option]', { hasText: text }).first();
const find = async (page, words, text) => {
  // The button appears once the script of the page runs.
  await page.locator('#open-palette').waitFor();
  await page.keyboard.press('Control+k');
  await page.fill('#palette-input', words);
  await option(page, text).waitFor();
};
const post = async (page, path, data) => {
  const response = await page.request.post(`${full}/api/v1${path}`, { data });
  must(response.ok(), `${path}: ${response.status()} ${await response.text()}`);
  return response.json();
};

await scripted('the palette finds pages, queues, kinds and jobs, by keyboard', async (page) => {
  await page.goto(`${full}/settings`);
  await page.keyboard.press('Control+k');
  await option(page, 'Overview').waitFor();
  await accessible(page, 'the palette');
  const height = async () => (await page.locator('#palette').boundingBox()).height;
  const before = await height();
  await page.fill('#palette-input', 'mail.welc');
  await option(page, 'mail.welcome').waitFor();
  same(await height(), before, 'the height while the list changes');
  same(await page.getAttribute('#palette-input', 'aria-activedescendant'), 'palette-0', 'the active option');
  await page.keyboard.press('ArrowDown');
  same(await page.locator('#palette-1').getAttribute('aria-selected'), 'true', 'the next option');
  await page.keyboard.press('ArrowUp');
  await page.keyboard.press('Enter');
  await page.waitForURL(/\/jobs\?q=kind%3Amail.welcome$/);
  await find(page, 'no such thing at all', 'Jobs that match');
  await page.keyboard.press('Escape');
  must(!await page.locator('#palette').isVisible(), 'closed');
  const { id } = await post(page, '/jobs', { kind: 'palette.found', queue: 'reports' });
  await find(page, id.slice(-12), 'palette.found');
  await page.keyboard.press('Enter');
  await page.waitForURL(new RegExp(`/jobs/${id}$`));
});
await scripted('the palette pauses a queue, and asks before it removes a job', async (page) => {
  await page.goto(`${full}/`);
  await find(page, 'pause queue mail', 'Pause queue mail');
  // Enter comes before the new list.
  await page.fill('#palette-input', 'pause queue billing');
  await page.keyboard.press('Enter');
  await page.waitForURL(/\/queues\/billing$/);
  must((await page.locator('.notice').innerText()).includes('Queue billing is paused'), 'done');
  await page.click('.notice button');
  await page.waitForSelector('.notice:has-text("is resumed")');
  const { id } = await post(page, '/jobs', { kind: 'palette.removed', queue: 'reports' });
  await find(page, id, 'Remove: palette.removed');
  await option(page, 'Remove: palette.removed').click();
  await page.waitForSelector('h1:has-text("Remove job")');
  await page.click('main button.main');
  must((await page.locator('.notice').innerText()).includes('Removed 1 job'), 'removed');
});
await scripted('g and a letter open a page, and the help lists the keys', async (page) => {
  await page.goto(`${full}/`);
  for (const [keys, path] of [['gq', '/queues'], ['gd', '/dead'], ['n', '/push']]) {
    for (const key of keys) await page.keyboard.press(key);
    await page.waitForURL(full + path);
  }
  await page.goto(`${full}/jobs?q=state:dead`);
  await page.keyboard.press('a');
  must(await page.locator('input[name=id]:checked').count() > 1, 'all are selected');
  await page.keyboard.press('Escape');
  same(await page.locator('input[name=id]:checked').count(), 0, 'selected');
  await page.keyboard.press(']');
  await page.waitForURL(/cursor=/);
  await page.keyboard.press('?');
  await accessible(page, 'the help');
});
await scripted('the filter offers kinds and tags', async (page) => {
  await page.goto(`${full}/jobs`);
  await page.focus('#search');
  const offers = (word) => page.waitForFunction((wanted) => {
    document.querySelector('#search').dispatchEvent(new Event('input'));
    return [...document.querySelectorAll('#search-words option')].some((one) => one.value === wanted);
  }, word);
  await page.fill('#search', 'kind:mail.w');
  await offers('kind:mail.welcome');
  await page.fill('#search', 'tag:mon');
  await offers('tag:monthly');
});
await scripted('a rule shows its next runs while its pattern is typed', async (page) => {
  await page.goto(`${full}/cron/new`);
  await page.fill('#f-tz', 'Europe/Berlin');
  await page.fill('#f-pattern', '30 4 * * *');
  await page.waitForFunction(() => document.querySelector('#preview').textContent.includes('04:30 C'));
  same(await page.locator('#preview li').count(), 5, 'runs');
  const box = JSON.stringify(await page.locator('#f-args').boundingBox());
  await page.fill('#f-pattern', '30 25 * * *');
  await page.waitForSelector('#preview .notice.error');
  same(JSON.stringify(await page.locator('#f-args').boundingBox()), box, 'the place of the fields');
  await accessible(page, 'a pattern with an error');
});
await scripted('new lines of a log appear, and stay where the reader is', async (page) => {
  const node = await post(page, '/nodes', { queues: ['logged'], kinds: ['logged'] });
  const { id } = await post(page, '/jobs', { kind: 'logged', queue: 'logged' });
  const [{ fence }] = (await post(page, `/nodes/${node.id}/claim`, { wait_ms: 5000 })).jobs;
  const log = (from, count) => post(page, `/nodes/${node.id}/progress`, { id, fence, lines: [...Array(count).keys()].map((i) => `line ${from + i}`) });
  await page.goto(`${full}/jobs/${id}`);
  const place = async () => { const { x, y } = await page.locator('#facts').boundingBox(); return `${x} ${y}`; };
  const before = await place();
  const shows = (text) => page.waitForFunction((wanted) => document.querySelector('#log').textContent.includes(wanted), text, { timeout: 20000 });
  const distance = () => page.evaluate(() => { const box = document.querySelector('.log'); return Math.round(box.scrollHeight - box.scrollTop - box.clientHeight); });
  await log(1, 60);
  await shows('line 60');
  must(await distance() < 9, 'the end is in view');
  same(await place(), before, 'nothing else has moved');
  await page.evaluate(() => { document.querySelector('.log').scrollTop = 100; });
  await log(61, 5);
  await shows('line 65');
  same(await page.evaluate(() => document.querySelector('.log').scrollTop), 100, 'the place of a reader above the end');
  same(await page.locator('#log tr').count(), 65, 'lines');
  await accessible(page, 'a running job with a log');
  await post(page, `/nodes/${node.id}/settle`, { outcomes: [{ id, fence, outcome: 'ack' }] });
  await page.request.delete(`${full}/api/v1/nodes/${node.id}`);
});

// --- copied commands -------------------------------------------------------------------------------------------------

const words = (text) => text.split(/\s+/).filter(Boolean).join(' ');
const expected = (file) => words(readFileSync(new URL(file, import.meta.url), 'utf8'));
// Tests of the command line and of the library run these files.
const [cli, rust] = [expected('copied.sh'), expected('../pages/copied.rs')];

async function copied(page, action, environment = {}) {
  if (await page.locator('#copy-as').getAttribute('open') === null) await page.click('#copy-as summary');
  await page.locator(`#copy-action option[value="${action}"]`).waitFor({ state: 'attached' });
  await page.selectOption('#copy-action', action, { force: true });
  const text = async (language) => {
    await page.check(`input[value=${language}]`, { force: true });
    return page.locator('#copy-text').textContent();
  };
  const [curl, inShell, inRust] = [await text('curl'), await text('duly'), await text('rust')];
  if (inShell) must(cli.includes(words(inShell)), `copied.sh lacks:\n${inShell}`);
  must(rust.includes(words(inRust)), `copied.rs lacks:\n${inRust}`);
  return { curl, run: () => execFileSync('sh', ['-c', curl], { env: { ...process.env, ...environment }, encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] }) };
}
const NASTY = `it's "$HOME" \`id\` !! \\ ; rm -rf * #`;
const ID = '01890a5d-ac96-774b-bcce-b302099a8057';
const get = async (page, path) => (await page.request.get(`${full}/api/v1${path}`)).json();

await scripted('copied pushes and rules work, whatever was typed', async (page) => {
  await page.goto(`${full}/push`);
  await page.click('summary:has-text("More")');
  const args = `{"text":${JSON.stringify(NASTY)},\n"big":123456789012345678901234567890}`;
  for (const [name, value] of Object.entries({ kind: 'mail.welcome', queue: 'mail', args, after: '2h30m', unique: NASTY, tags: 'eu, night' })) await page.fill(`#f-${name}`, value);
  await page.selectOption('#f-priority', 'high');
  const { id } = JSON.parse((await copied(page, 'push')).run());
  const raw = await (await page.request.get(`${full}/api/v1/jobs/${id}`)).text();
  must(raw.includes('123456789012345678901234567890'), 'numbers stay exact');
  const job = JSON.parse(raw);
  same(`${job.args.text}|${job.unique}|${job.priority}|${job.tags}`, `${NASTY}|${NASTY}|high|eu,night`, 'the job');
  await page.fill('#f-args', '{"text":');
  same(await page.locator('#copy-hint').textContent(), 'Args must be JSON, such as {"to":"ada"}.', 'the hint');
  await accessible(page, 'the panel of commands');

  await page.goto(`${full}/cron/new`);
  const fields = { name: 'copied', kind: 'mail.welcome', pattern: '*/5 3 * * MON', tz: 'Europe/Berlin', args: '{"text":"it\'s"}', queue: 'mail', jitter: '30s', missed: 'all:3', max_attempts: '7', timeout: '90s', keep: '2d', tags: 'eu' };
  for (const [name, value] of Object.entries(fields)) await page.fill(`#f-${name}`, value);
  await page.selectOption('#f-overlap', 'skip');
  await page.selectOption('#f-priority', 'low');
  (await copied(page, 'cron.save')).run();
  const rule = await get(page, '/cron/copied');
  same(`${rule.tz} ${rule.missed} ${rule.overlap} ${rule.jitter_ms} ${rule.keep_ms} ${rule.timeout_ms} ${rule.max_attempts} ${rule.priority}`,
    'Europe/Berlin all:3 skip 30000 172800000 90000 7 low', 'the rule');
  await page.goto(`${full}/cron/rule/copied`);
  (await copied(page, 'cron.trigger')).run();
  (await copied(page, 'cron.pause')).run();
  await page.reload();
  (await copied(page, 'cron.resume')).run();
  (await copied(page, 'cron.remove')).run();
  same((await page.request.get(`${full}/api/v1/cron/copied`)).status(), 404, 'the removed rule');
});
await scripted('copied actions on jobs and queues work', async (page) => {
  await post(page, '/jobs', { kind: 'copied.job', queue: 'copied', id: ID, after_ms: 3600000, tags: ['eu'], args: { text: "it's" } });
  await page.goto(`${full}/jobs/${ID}`);
  await page.fill('#f-due', '2h30m');
  (await copied(page, 'job.reschedule')).run();
  (await copied(page, 'job.retry')).run();
  same((await get(page, `/jobs/${ID}`)).state, 'ready', 'retried');
  await page.goto(`${full}/jobs/${ID}/edit`);
  await page.fill('#args', '{"text":"it\'s new"}');
  (await copied(page, 'job.edit')).run();
  same((await get(page, `/jobs/${ID}`)).args.text, "it's new", 'edited');
  await page.goto(`${full}/jobs?q=${encodeURIComponent('-state:done kind:copied.job "it\'s"')}`);
  for (const action of ['retry-all', 'cancel-all', 'remove-all']) await copied(page, action);
  await page.check('input[name=id]');
  await copied(page, 'retry');
  (await copied(page, 'cancel')).run();
  same((await get(page, `/jobs/${ID}`)).state, 'cancelled', 'cancelled');
  await page.goto(`${full}/jobs/${ID}`);
  await copied(page, 'job.remove');
  await page.goto(`${full}/jobs?q=${encodeURIComponent('-state:done kind:copied.job "it\'s"')}`);
  (await copied(page, 'remove-all')).run();
  const deadline = Date.now() + 20000;
  while ((await page.request.get(`${full}/api/v1/jobs/${ID}`)).status() !== 404) {
    must(Date.now() < deadline, 'the job is removed');
    await page.waitForTimeout(100);
  }

  await page.goto(`${full}/queues/copied`);
  (await copied(page, 'queue.pause')).run();
  await page.fill('#f-jobs', '1,000');
  (await copied(page, 'queue.capacity')).run();
  const queue = await get(page, '/queues/copied');
  same(`${queue.paused} ${queue.capacity_jobs}`, 'true 1000', 'the queue');
  await page.goto(`${full}/queues/copied`);
  (await copied(page, 'queue.resume')).run();
  (await copied(page, 'queue.clear')).run();
  (await copied(page, 'queue.remove')).run();
});

await browser.close();
end();
