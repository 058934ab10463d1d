// Signing in and out, and the pages of each role. Arguments: the URL, a viewer's token, an admin's token.
import { execFileSync } from 'node:child_process';
import { accessible, clean, end, launch, must, open, same, test } from './support.mjs';

const [url, viewer, admin] = process.argv.slice(2);
const browser = await launch();

const signIn = async (page, token) => {
  await page.goto(`${url}/queues`);
  await page.fill('#token', token);
  await page.click('button.main');
};

await test('an unknown client is asked for a token', async () => {
  const page = await open(browser, url, { bypassCSP: true });
  const answer = await page.goto(`${url}/queues`);
  same(answer.status(), 401, 'status');
  await accessible(page, 'sign in');
  await page.fill('#token', 'duly_wrong');
  await page.click('button.main');
  must((await page.locator('.notice.error').innerText()).includes('token'), 'says what is wrong');
  clean(page);
  await page.context().close();
});
await test('a viewer sees queues, no args and no buttons', async () => {
  const page = await open(browser, url, { javaScriptEnabled: false });
  await signIn(page, viewer);
  same(await page.locator('h1').innerText(), 'Queues', 'where they wanted to go');
  same(await page.locator('main button, main .button').count(), 0, 'buttons');
  await page.goto(`${url}/jobs?q=kind:report.build`);
  must(!(await page.content()).includes('monthly&quot;'), 'no args in lists');
  await page.click('td a.kind');
  must((await page.locator('main').innerText()).includes('cannot see args'), 'no args');
  clean(page);
  await page.context().close();
});
await test('the commands of a viewer change nothing, and a copied command has no token in it', async () => {
  const open_as = (token) => open(browser, url, { extraHTTPHeaders: { authorization: `Bearer ${token}` } });
  const [page, admins] = [await open_as(viewer), await open_as(admin)];
  const items = async (from) => (await (await from.request.get(`${url}/palette?q=mail`)).json()).items;
  must((await items(page)).length > 0 && (await items(page)).every((item) => !item.is_post && item.group !== 'Actions'), 'no actions');
  must((await items(admins)).some((item) => item.is_post && item.label === 'Pause queue mail'), 'actions of an admin');
  await admins.goto(`${url}/push`);
  await admins.fill('#f-kind', 'mail.welcome');
  await admins.click('#copy-as summary');
  const text = await admins.locator('#copy-text:has-text("curl")').textContent();
  must(text.includes('-H "Authorization: Bearer $DULY_TOKEN"') && !(await admins.content()).includes(admin), text);
  const pushed = execFileSync('sh', ['-c', text], { env: { ...process.env, DULY_TOKEN: admin }, encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] });
  must(JSON.parse(pushed).id, 'the command works with the variable');
  clean(admins);
  for (const one of [page, admins]) await one.context().close();
});
await test('signing in leads to the requested address with its query', async () => {
  const page = await open(browser, url, { javaScriptEnabled: false });
  await page.goto(`${url}/jobs?q=state:dead+queue:billing`);
  await page.fill('#token', viewer);
  await page.click('button.main');
  same(page.url(), `${url}/jobs?q=state:dead+queue:billing`, 'the address');
  same(await page.inputValue('#search'), 'state:dead queue:billing', 'the filter');
  clean(page);
  await page.context().close();
});
await test('an admin sees and does everything, and signs out', async () => {
  const page = await open(browser, url);
  await signIn(page, admin);
  await page.click('main button:has-text("Pause") >> nth=0');
  must((await page.locator('.notice').innerText()).includes('is paused'), 'done');
  await page.goto(`${url}/settings`);
  await page.click('text=Sign out');
  await page.goto(`${url}/queues`);
  must(await page.locator('#token').isVisible(), 'has to sign in again');
  clean(page);
  await page.context().close();
});

await browser.close();
end();
