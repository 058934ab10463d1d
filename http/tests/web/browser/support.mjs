// Shared by the browser tests: a browser, a page that collects faults, and assertions.
import { createRequire } from 'node:module';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';

const modules = process.env.DULY_BROWSER_MODULES;
const require = createRequire(join(modules, 'x.js'));
export const { chromium } = require('playwright-core');
const axe = readFileSync(join(modules, 'axe-core/axe.min.js'), 'utf8');

export const launch = () => chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: ['--no-sandbox'] });

let done = 0;
const bad = [];
// ONLY=text runs only the tests whose names contain the text.
export async function test(name, run) {
  if (process.env.ONLY && !name.includes(process.env.ONLY)) return;
  try {
    await run();
    done += 1;
    console.log(`ok    ${name}`);
  } catch (error) {
    bad.push(name);
    console.log(`FAIL  ${name}\n      ${String(error.stack ?? error).split('\n').slice(0, 4).join('\n      ')}`);
  }
}
export function end() {
  console.log(`${done} passed, ${bad.length} failed`);
  process.exit(bad.length ? 1 : 0);
}

export function must(so, what) {
  if (!so) throw new Error(what);
}
export function same(is, wanted, what) {
  if (is !== wanted) throw new Error(`${what}: ${JSON.stringify(is)}, not ${JSON.stringify(wanted)}`);
}

// Opens a page in its own context. `page.faults` collects faults: errors and warnings on the console, exceptions,
// requests to another host, and responses with a status of 500 or more.
export async function open(browser, url, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, ...options });
  const page = await context.newPage();
  const host = new URL(url).host;
  page.faults = [];
  page.on('console', (message) => {
    const expected = /status of (401|404|409|422)/.test(message.text());
    if (['error', 'warning'].includes(message.type()) && !expected) page.faults.push(`console: ${message.text()}`);
  });
  page.on('pageerror', (error) => page.faults.push(`script: ${error.message}`));
  page.on('request', (request) => { if (new URL(request.url()).host !== host) page.faults.push(`another host: ${request.url()}`); });
  page.on('response', (answer) => { if (answer.status() >= 500) page.faults.push(`${answer.status()}: ${answer.url()}`); });
  return page;
}

export function clean(page) {
  same(page.faults.join('; '), '', 'faults');
}

// Asserts that axe finds no violation of WCAG 2 A and AA. The context must bypass the CSP of the page.
export async function accessible(page, what) {
  await page.evaluate(axe);
  const found = await page.evaluate(() => window.axe.run(document, { runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'best-practice'] }));
  const violations = found.violations.map((v) => `${v.id}: ${v.nodes.slice(0, 3).map((n) => n.html.slice(0, 140)).join(' | ')}`);
  same(violations.join('\n'), '', `${what} has faults`);
}

// Asserts that the page is not wider than the screen.
export async function fits(page, what) {
  const out = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  must(out <= 0, `${what} is ${out} px wider than the screen`);
}
