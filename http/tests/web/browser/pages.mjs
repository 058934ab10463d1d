// Each page and each action, on a full store and on an empty one. Arguments: their URLs, and `short` for a second run on
// another store, which skips the checks of the appearance.
import { accessible, clean, end, fits, launch, must, open, same, test } from './support.mjs';

const [full, empty, how] = process.argv.slice(2);
const short = how === 'short';
const browser = await launch();
const PAGES = ['/', '/?range=5m', '/?range=24h', '/jobs', '/jobs?q=state:dead', '/jobs?q=nothing:such', '/queues', '/queues/mail', '/scheduled', '/dead',
  '/cron', '/cron/rule/nightly-backup', '/cron/new', '/cron/new?like=cache-warm', '/nodes', '/locks', '/calls', '/audit', '/settings', '/push', '/kinds', '/kinds?range=1h', '/kinds/thumbnail.make', '/?range=30d', '/nothing'];
const EMPTY = ['/', '/jobs', '/queues', '/scheduled', '/dead', '/cron', '/nodes', '/locks', '/calls', '/audit', '/kinds'];

const first = async (page, path, find) => {
  await page.goto(full + path);
  return page.locator(find).first().getAttribute('href');
};

{
  const page = await open(browser, full, { bypassCSP: true });
  const job = await first(page, '/jobs?q=kind:report.build', 'td a.kind');
  const dead = await first(page, '/jobs?q=state:dead', 'td a.kind');
  const node = await first(page, '/nodes', 'td a.kind');
  PAGES.push(job, dead, `${dead}/edit`, node, `/push?like=${dead.split('/').pop()}`);
  await page.context().close();
}

for (const path of PAGES) {
  if (!short) await test(`${path}: no fault, accessible in light and wide, in dark and at 360 px`, async () => {
    const page = await open(browser, full, { bypassCSP: true, colorScheme: 'light' });
    await page.goto(full + path, { waitUntil: 'load' });
    same(await page.locator('h1').count(), 1, 'headings');
    await accessible(page, path);
    for (const width of [1600, 800]) {
      await page.setViewportSize({ width, height: 900 });
      await fits(page, `${path} at ${width} px`);
    }
    await page.setViewportSize({ width: 360, height: 740 });
    await page.emulateMedia({ colorScheme: 'dark' });
    await fits(page, path);
    await accessible(page, `${path} in dark and narrow`);
    clean(page);
    await page.context().close();
  });
  if (short) await test(`${path}: no fault`, async () => {
    const page = await open(browser, full);
    await page.goto(full + path, { waitUntil: 'load' });
    same(await page.locator('h1').count(), 1, 'headings');
    clean(page);
    await page.context().close();
  });
  if (!short) await test(`${path}: without scripts, the same to read`, async () => {
    const page = await open(browser, full, { javaScriptEnabled: false });
    await page.goto(full + path);
    must((await page.locator('main').innerText()).length > 40, 'there is something to read');
    clean(page);
    await page.context().close();
  });
}

for (const path of EMPTY) {
  await test(`${path}: on an empty store it says what to do next`, async () => {
    const page = await open(browser, empty, { bypassCSP: true });
    await page.goto(empty + path, { waitUntil: 'load' });
    must((await page.locator('.empty').count()) > 0, 'says that it is empty');
    if (!short) await accessible(page, path);
    clean(page);
    await page.context().close();
  });
}

// Actions, each as a plain form without scripts.
const plain = () => open(browser, full, { javaScriptEnabled: false });
const action = (name, run) => test(`without scripts: ${name}`, async () => {
  const page = await plain();
  await run(page);
  clean(page);
  await page.context().close();
});
const showsNotice = async (page, text) => must((await page.locator('.notice').innerText()).includes(text), `says "${text}", not "${await page.locator('main').innerText()}"`);

await action('push a job, which is then done', async (page) => {
  await page.goto(`${full}/push?queue=mail`);
  await page.fill('#f-kind', 'mail.welcome');
  await page.fill('#f-args', '{"to":"ada","big":123456789012345678901234567890}');
  await page.click('main button.main');
  await showsNotice(page, 'Pushed');
  must((await page.locator('pre.json').innerText()).includes('123456789012345678901234567890'), 'big numbers stay as they are');
});
await action('what is wrong with a push stays in the form', async (page) => {
  await page.goto(`${full}/push`);
  await page.fill('#f-kind', 'mail.welcome');
  await page.fill('#f-args', '{"to":');
  await page.click('button.main');
  await showsNotice(page, 'args');
  same(await page.inputValue('#f-args'), '{"to":', 'what was written');
});
await action('pause a queue, and undo it', async (page) => {
  await page.goto(`${full}/queues/billing`);
  await page.click('button:has-text("Pause")');
  await showsNotice(page, 'Queue billing is paused');
  await page.click('.notice button');
  await showsNotice(page, 'is resumed');
});
await action('set the capacity of a queue', async (page) => {
  await page.goto(`${full}/queues/billing`);
  await page.fill('#f-jobs', '1,000');
  await page.click('text=Set the capacity');
  await showsNotice(page, 'capacity of queue billing');
  same(await page.inputValue('#f-jobs'), '1000', 'the capacity');
});
await action('clearing a queue needs its name', async (page) => {
  await page.goto(`${full}/queues/reports`);
  await page.click('summary:has-text("Clear")');
  await page.fill('#f-name', 'wrong');
  await page.click('button:has-text("Clear")');
  must((await page.locator('.field-error').innerText()).includes('type the name'), 'asks for the name');
  same(await page.inputValue('#f-name'), 'wrong', 'what was typed');
});
await action('an invalid capacity or delay stays in the form', async (page) => {
  await page.goto(`${full}/queues/billing`);
  await page.fill('#f-jobs', 'many');
  await page.fill('#f-bytes', '5000');
  await page.click('text=Set the capacity');
  must((await page.locator('.field-error').innerText()).includes('whole number'), 'the error is at its field');
  same(await page.inputValue('#f-jobs') + ' ' + await page.inputValue('#f-bytes'), 'many 5000', 'the input');
  await page.goto(`${full}/jobs?q=state:dead`);
  await page.click('td a.kind >> nth=0');
  await page.fill('#f-due', 'soon');
  await page.click('button:has-text("Reschedule")');
  must((await page.locator('.field-error').innerText()).includes('must be a delay'), 'the error is at its field');
  same(await page.inputValue('#f-due'), 'soon', 'the input');
});
await action('retry a dead job', async (page) => {
  await page.goto(`${full}/jobs?q=state:dead`);
  await page.click('td a.kind >> nth=3');
  await page.click('button:has-text("Retry")');
  await showsNotice(page, 'Retried');
});
await action('reschedule, edit and remove a job', async (page) => {
  await page.goto(`${full}/jobs?q=state:dead`);
  await page.click('td a.kind >> nth=4');
  await page.fill('#f-due', '2h30m');
  await page.click('button:has-text("Reschedule")');
  await showsNotice(page, 'Rescheduled');
  await page.click('a:has-text("Edit")');
  await page.fill('#args', '{"edited":true}');
  await page.click('button.main');
  await showsNotice(page, 'Changed');
  must((await page.locator('pre.json').innerText()).includes('"edited": true'), 'the new args');
  await page.click('button:has-text("Remove")');
  must((await page.locator('h1').innerText()).startsWith('Remove job'), 'asks first');
  await page.click('button.main');
  await showsNotice(page, 'Removed 1 job');
});
await action('retry selected jobs', async (page) => {
  await page.goto(`${full}/jobs?q=state:dead`);
  await page.check('input[name=id] >> nth=0');
  await page.check('input[name=id] >> nth=1');
  await page.click('button[value=retry]');
  await showsNotice(page, 'Retried: 2 jobs');
});
await action('remove all that match: counted, typed, done', async (page) => {
  await page.goto(`${full}/jobs?q=state:dead+kind:video.encode`);
  await page.selectOption('#all', 'remove-all');
  await page.click('button[value=all]');
  const count = /Remove ([\d,]+) job/.exec(await page.locator('h1').innerText())[1];
  await page.fill('#typed', '1');
  await page.click('button.main');
  must((await page.locator('.notice').innerText()).includes('type'), 'a wrong number is refused');
  await page.fill('#typed', count);
  await page.click('button.main');
  await showsNotice(page, `Removed ${count} job`);
});
await action('retry a group of dead jobs', async (page) => {
  await page.goto(`${full}/dead`);
  await page.click('button[value=retry-all] >> nth=-1');
  must(/Retry [\d,]+ job/.test(await page.locator('h1').innerText()), 'counted first');
  await page.click('button.main');
  await showsNotice(page, 'Retried');
});
await action('a rule: preview, save, pause, trigger, remove', async (page) => {
  await page.goto(`${full}/cron/new`);
  await page.fill('#f-name', 'hourly');
  await page.fill('#f-kind', 'mail.welcome');
  await page.fill('#f-pattern', '0 25 * * *');
  await page.click('text=Show next runs');
  must((await page.locator('.notice.error').innerText()).includes('25'), 'the wrong field is named');
  await page.fill('#f-pattern', '0 * * * *');
  await page.click('text=Show next runs');
  same(await page.locator('.timeline li').count(), 5, 'next runs');
  await page.click('text=Save rule');
  await showsNotice(page, 'Rule hourly is saved');
  await page.click('button:has-text("Pause")');
  await showsNotice(page, 'Rule hourly is paused');
  await page.click('button:has-text("Trigger now")');
  await showsNotice(page, 'has pushed a job');
  await page.goto(`${full}/cron/rule/hourly`);
  await page.click('button:has-text("Remove")');
  await page.click('button.main');
  await showsNotice(page, 'Rule hourly is removed');
});
await action('quiet a node, and undo it', async (page) => {
  await page.goto(full + await first(page, '/nodes', 'tr:has(.tag:has-text("media")) a.kind'));
  await page.click('button:has-text("Quiet")');
  await showsNotice(page, 'claims no further jobs');
  await page.click('.notice button');
  await showsNotice(page, 'claims jobs again');
});
await action('cancel a running job', async (page) => {
  await page.goto(`${full}/jobs?q=state:running+kind:video.encode`);
  await page.click('td a.kind');
  await page.click('button:has-text("Cancel")');
  await page.click('button.main');
  await showsNotice(page, 'Cancelling');
});
await action('ping a node', async (page) => {
  await page.goto(`${full}/calls`);
  await page.click('button:has-text("Ping") >> nth=0');
  must((await page.locator('main').innerText()).includes('replied in'), 'it has answered');
});
await action('break a lock, asked first', async (page) => {
  await page.goto(`${full}/locks`);
  await page.click('tr:has-text("deploy") button');
  same(await page.locator('h1').innerText(), 'Break lock deploy?', 'the question');
  must((await page.locator('main').innerText()).includes('web-3'), 'names the holder');
  await page.click('button.main');
  await showsNotice(page, 'Broke the lock');
});
await action('break one slot of a lock, then all', async (page) => {
  await page.goto(`${full}/locks`);
  same(await page.locator('tr:has-text("gpu")').count(), 3, 'holds');
  await page.click('tr:has-text("slot 2") button');
  same(await page.locator('h1').innerText(), 'Break slot 2 of lock gpu?', 'the question');
  await page.click('button.main');
  await showsNotice(page, 'Broke the hold');
  same(await page.locator('tr:has-text("gpu")').count(), 2, 'the other holds');
  await page.click('button:has-text("Break all")');
  same(await page.locator('h1').innerText(), 'Break all 2 holds of lock gpu?', 'the question');
  await page.click('button.main');
  await showsNotice(page, 'Broke 2 holds');
});
await action('the audit has it all', async (page) => {
  await page.goto(`${full}/audit`);
  const text = await page.locator('main').innerText();
  for (const what of ['queues.pause', 'locks.break', 'cron.trigger']) must(text.includes(what), what);
});
await action('theme and time zone', async (page) => {
  await page.goto(`${full}/settings`);
  await page.selectOption('#theme-choice', 'dark');
  await page.fill('#zone', 'Asia/Tokyo');
  await page.click('main button.main');
  same(await page.locator('html').getAttribute('data-theme'), 'dark', 'theme');
  must((await page.locator('.side-footer').innerText()).includes('Asia/Tokyo'), 'zone');
});

// The features of the script.
const scripted = (name, run) => test(`with scripts: ${name}`, async () => {
  const page = await open(browser, full);
  await run(page);
  clean(page);
  await page.context().close();
});
await scripted('keys', async (page) => {
  await page.goto(`${full}/jobs?q=state:dead`);
  await page.keyboard.press('/');
  same(await page.evaluate(() => document.activeElement.id), 'search', 'the filter has the focus');
  await page.keyboard.press('Escape');
  await page.keyboard.press('j');
  await page.keyboard.press('j');
  await page.keyboard.press('k');
  same(await page.evaluate(() => [...document.querySelectorAll('tr[data-key]')].findIndex((row) => row.classList.contains('current'))), 0, 'row');
  await page.keyboard.press('x');
  same(await page.locator('input[name=id]:checked').count(), 1, 'selected');
  same(await page.locator('#selected').innerText(), '1 selected', 'the number of selected rows');
  same(await page.locator('#live').getAttribute('data-status'), 'paused', 'nothing moves while a row is selected');
  await page.keyboard.press('?');
  must(await page.locator('#help').isVisible(), 'help');
  await page.keyboard.press('Escape');
  await page.keyboard.press('x');
  await page.keyboard.press('Enter');
  await page.waitForURL(/\/jobs\/[0-9a-f-]{36}$/);
});
await scripted('the theme toggle goes round and is remembered', async (page) => {
  await page.goto(`${full}/`);
  for (const theme of ['light', 'dark']) {
    await page.click('#theme button');
    same(await page.locator('html').getAttribute('data-theme'), theme, 'theme');
  }
  await page.reload();
  same(await page.locator('html').getAttribute('data-theme'), 'dark', 'remembered');
});
await scripted('a page keeps itself fresh, without a jump, and pauses', async (page) => {
  await page.goto(`${full}/`);
  same(await page.locator('.chart.drawn canvas').count(), 4, 'charts are drawn');
  const tile = page.locator('#tiles .value').nth(1);
  const before = await tile.innerText();
  const at = await page.locator('#chart-throughput').boundingBox();
  const push = () => page.request.post(`${full}/api/v1/jobs`, { data: { kind: 'export.rows', queue: 'reports', args: {} } });
  same((await push()).status(), 201, 'pushed');
  await page.waitForFunction((was) => document.querySelectorAll('#tiles .value')[1].textContent !== was, before, { timeout: 20000 });
  const now = await page.locator('#chart-throughput').boundingBox();
  same(`${now.x} ${now.y} ${now.height}`, `${at.x} ${at.y} ${at.height}`, 'nothing has jumped');
  await page.keyboard.press('p');
  await page.waitForFunction(() => document.querySelector('#live').dataset.status === 'paused');
});
await scripted('a list says that it has changed, and leaves its rows where they are', async (page) => {
  await page.goto(`${full}/jobs?q=queue:reports`);
  const rows = await page.locator('tr[data-key]').count();
  const box = async () => JSON.stringify(await page.locator('tr[data-key]').first().boundingBox());
  const before = await box();
  await page.request.post(`${full}/api/v1/jobs`, { data: { kind: 'export.rows', queue: 'reports', args: {} } });
  await page.waitForFunction(() => !document.querySelector('#changed').hidden, null, { timeout: 20000 });
  same(await page.locator('tr[data-key]').count(), rows, 'rows');
  same(await box(), before, 'the first row has not moved');
  await page.click('#changed');
  await page.waitForFunction((was) => document.querySelectorAll('tr[data-key]').length === was + 1, rows);
});
await scripted('a question before a job is removed can be declined', async (page) => {
  await page.goto(`${full}/jobs?q=state:dead`);
  await page.click('td a.kind >> nth=0');
  const url = page.url();
  await page.click('main button:has-text("Remove")');
  must(await page.locator('#confirm-dialog').isVisible(), 'asks');
  must(/^Remove job \S+ …[0-9a-f]{8} from queue \S+\?$/.test(await page.locator('#confirm-title').innerText()), 'names the job');
  same(await page.locator('#confirm-yes').innerText(), 'Remove job', 'what the button does');
  same(await page.locator('#confirm-yes').getAttribute('class'), 'main danger', 'its colour');
  await page.click('#confirm-dialog button[value=no]');
  same(page.url(), url, 'still there');
  await page.click('main button:has-text("Remove")');
  await page.click('#confirm-yes');
  await page.waitForURL(/\/jobs$/);
  await showsNotice(page, 'Removed 1 job');
  await page.reload();
  same(await page.locator('.notice').count(), 0, 'messages after a reload');
});
await scripted('the filter offers words', async (page) => {
  await page.goto(`${full}/jobs`);
  await page.fill('#search', 'kind:x st');
  const offered = await page.evaluate(() => [...document.querySelectorAll('#search-words option')].map((o) => o.value));
  must(offered.includes('kind:x state:dead'), `offers ${offered}`);
});
await scripted('the first page is small', async (page) => {
  let bytes = 0;
  const cdp = await page.context().newCDPSession(page);
  await cdp.send('Network.enable');
  cdp.on('Network.loadingFinished', (event) => { bytes += event.encodedDataLength; });
  await page.goto(`${full}/`, { waitUntil: 'load' });
  console.log(`      first page: ${(bytes / 1000).toFixed(1)} kB over the wire`);
  must(bytes > 10000 && bytes < 100000, `${bytes} bytes`);
});

await browser.close();
end();
