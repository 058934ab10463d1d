// A real ActionHero node, controlled by lines of JSON on stdin; replies to each with a line on stdout.
//
//   node actionhero.js DIRECTORY   the directory in which `npm install actionhero` was run
//
// Environment: REDIS_HOST, REDIS_PORT, SERVER_TOKEN, NODE_NAME. Exits at the end of stdin.
// Errors that ActionHero does not catch are not caught here either: they must crash this node like a real one.
'use strict'
const path = require('path')
const readline = require('readline')
const root = path.join(path.resolve(process.argv[2]), 'node_modules', 'actionhero')
process.chdir(root)
process.env.PROJECT_ROOT = root
const reply = (value) => process.stdout.write(JSON.stringify(value) + '\n')
console.log = console.info = (...words) => console.error(...words)
const generation = parseInt(require(path.join(root, 'package.json')).version, 10)

// The operations of the tests in the API of each generation; every function returns a promise.
const old = (api) => ({
  lock: (key, ms) => new Promise((done, failed) => api.cache.lock(key, ms, (e, ok) => (e ? failed(e) : done(ok)))),
  unlock: (key) => new Promise((done, failed) => api.cache.unlock(key, (e, ok) => (e ? failed(e) : done(ok)))),
  checkLock: (key) => new Promise((done, failed) => api.cache.checkLock(key, null, (e, ok) => (e ? failed(e) : done(ok)), Date.now())),
  call: (method, args, connection) => new Promise((done) => api.redis.doCluster(method, args, connection || null, (...all) => done(all.map((one) => (one instanceof Error ? { error: one.message } : one))))),
  methods: (methods) => { api.test = methods }
})
const recent = (ah) => ({
  lock: (key, ms) => ah.cache.lock(key, ms),
  unlock: (key) => ah.cache.unlock(key),
  checkLock: (key) => ah.cache.checkLock(key, null),
  call: (method, args, connection) => ah.redis.doCluster(method, args, connection, true).then((one) => [one], (e) => [{ error: e.message }]),
  methods: (methods) => { ah.api.test = methods }
})

async function boot () {
  if (generation < 14) {
    const Prototype = require(root).actionheroPrototype
    const node = new Prototype()
    const configChanges = {
      general: { id: process.env.NODE_NAME, serverToken: process.env.SERVER_TOKEN, developmentMode: false },
      logger: { transports: [] },
      redis: { pkg: 'ioredis', host: process.env.REDIS_HOST, port: process.env.REDIS_PORT, options: {} }
    }
    const api = await new Promise((done, failed) => node.initialize({ configChanges }, (e, api) => (e ? failed(e) : done(api))))
    api.cache.lockName = process.env.NODE_NAME
    return [api, old(api)]
  }
  process.env.ACTIONHERO_TYPESCRIPT_MODE = 'false'
  process.env.ACTIONHERO_CONFIG_OVERRIDES = JSON.stringify({ general: { serverToken: process.env.SERVER_TOKEN }, routes: {} })
  const ah = require(root)
  const node = new ah.Process()
  await node.initialize()
  ah.cache.overrideLockName(process.env.NODE_NAME)
  return [ah.api, recent(ah)]
}

async function race (node, keys, ms, locked) {
  // Random delays make the requests of both sides overlap.
  const delay = () => new Promise((done) => setTimeout(done, Math.random() * 30))
  await Promise.all(keys.map(async (key) => { await delay(); if ((await node.lock(key, ms)) === true) locked.push(key) }))
  return locked
}

boot().then(([api, node]) => {
  const ran = []
  const popCallback = (args) => (typeof args[args.length - 1] === 'function' ? args.pop() : null)
  node.methods({
    // Responds with its first argument, in the style of its generation.
    echo: (...args) => { const next = popCallback(args); ran.push(args); if (next) { next(args[0]) } else { return args[0] } },
    // Must exist, since ActionHero 12 also runs its own calls; never responds.
    silent: () => {},
    ran: (...args) => { const next = popCallback(args); if (next) { next(ran.length) } else { return ran.length } }
  })
  const commands = {
    lock: ({ key, ms }) => node.lock(key, ms),
    unlock: ({ key }) => node.unlock(key),
    checkLock: ({ key }) => node.checkLock(key),
    race: ({ keys, ms }) => race(node, keys, ms, []),
    call: ({ method, args, connection }) => node.call(method, args, connection),
    ran: async () => ran,
    connect: async ({ connection }) => { api.connections.connections[connection] = { id: connection } }
  }
  readline.createInterface({ input: process.stdin }).on('line', (line) => {
    const request = JSON.parse(line)
    commands[request.do](request).then((value) => reply({ id: request.id, value: value === undefined ? null : value }), (e) => reply({ id: request.id, error: String(e.message || e) }))
  }).on('close', () => process.exit(0))
  reply({ ready: generation })
}, (e) => { console.error(e); process.exit(1) })
