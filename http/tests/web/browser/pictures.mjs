// Pictures for the documents. Arguments: a full store, an empty one, the output directory.
import { mkdirSync } from 'node:fs';
import { launch, open } from './support.mjs';

const [full, empty, to] = process.argv.slice(2);
mkdirSync(to, { recursive: true });
const browser = await launch();

async function picture(name, url, { path = '/', width = 1280, height = 860, dark = false, ...more } = {}) {
  const page = await open(browser, url, { viewport: { width, height }, colorScheme: dark ? 'dark' : 'light', reducedMotion: 'reduce', ...more });
  await page.goto(url + path, { waitUntil: 'load' });
  // Wait until nothing on the page shows that it is loading.
  await page.waitForFunction(() => document.querySelector('#live')?.dataset.status !== 'lost');
  await page.screenshot({ path: `${to}/${name}.png` });
  console.log(`${to}/${name}.png`);
  await page.context().close();
}

const find = async (path) => {
  const page = await open(browser, full);
  await page.goto(full + path);
  const link = await page.locator('td a.kind').first().getAttribute('href');
  await page.context().close();
  return link;
};

await picture('overview', full, { height: 912 });
await picture('overview-dark', full, { height: 912, dark: true });
await picture('jobs', full, { path: '/jobs?q=state:dead+queue:billing', height: 720 });
await picture('job', full, { path: await find('/jobs?q=kind:report.build'), height: 940 });
await picture('dead-dark', full, { path: '/dead', height: 720, dark: true });
await picture('cron', full, { path: '/cron/new?name=nightly-backup&kind=backup.run&pattern=0+3+*+*+*&tz=Europe/Berlin', height: 820 });
await picture('phone', full, { width: 390, height: 800, deviceScaleFactor: 2 });
await picture('empty', empty, { height: 620 });
await browser.close();
