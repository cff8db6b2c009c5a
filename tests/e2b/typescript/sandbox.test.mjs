// Sandboxes: create, list, time, pause, snapshots, metrics, keys.

import assert from 'node:assert/strict'
import { before } from 'node:test'
import { NotFoundError, Sandbox } from 'e2b'

import { all, maker, OTHER_KEY, PATIENCE, RUN, test, until } from './support.mjs'

const make = maker(Sandbox)
let box

before(async () => {
  box = await make({ metadata: { odd: 'a=b&c% ü' }, envs: { GREETING: 'hello world' } })
})

const sh = async (sandbox, line) =>
  (await sandbox.commands.run(line, { timeoutMs: PATIENCE })).stdout

const ids = async (query, options = {}) =>
  (await all(Sandbox.list({ query, ...options }))).map((one) => one.sandboxId)

test('a sandbox says what it is', async () => {
  const info = await box.getInfo()
  assert.equal(info.sandboxId, box.sandboxId)
  assert.equal(info.state, 'running')
  assert.deepEqual(info.metadata, { run: RUN, odd: 'a=b&c% ü' })
  assert.ok(info.endAt > new Date() && info.startedAt <= new Date(Date.now() + 60_000))
  assert.ok(info.cpuCount >= 1 && info.memoryMB >= 128)
  assert.ok(await box.isRunning())
  assert.equal(await sh(box, 'echo $GREETING'), 'hello world\n')
})

test('it is listed by metadata and state, page by page', async () => {
  const other = await make({ metadata: { odd: 'a=b&c% ü' } })
  const both = [box.sandboxId, other.sandboxId].sort()
  const metadata = { run: RUN, odd: 'a=b&c% ü' }
  assert.deepEqual((await ids({ metadata })).sort(), both)
  assert.deepEqual((await ids({ metadata }, { limit: 1 })).sort(), both)
  assert.deepEqual(await ids({ metadata: { run: 'another' } }), [])
  await other.pause()
  assert.deepEqual(await ids({ metadata, state: ['paused'] }), [other.sandboxId])
  assert.deepEqual(await ids({ metadata, state: ['running'] }), [box.sandboxId])
  assert.equal(await other.kill(), true)
  assert.equal(await other.kill(), false)
  await assert.rejects(Sandbox.getInfo(other.sandboxId), NotFoundError)
})

test('pause keeps memory and files', async () => {
  const sandbox = await make()
  await sandbox.files.write('kept.txt', 'kept')
  await sh(sandbox, 'echo memory > /dev/shm/kept')
  assert.equal(await sandbox.pause(), true)
  assert.equal(await sandbox.pause(), false)
  assert.equal(await sandbox.isRunning(), false)
  const again = await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 600_000 })
  assert.equal(await again.files.read('kept.txt'), 'kept')
  assert.equal(await sh(again, 'cat /dev/shm/kept'), 'memory\n')
})

test('time is set, extended, and over', async () => {
  const sandbox = await make()
  const left = async () => ((await sandbox.getInfo()).endAt - Date.now()) / 1000
  await sandbox.setTimeout(600_000)
  assert.ok((await left()) > 500 && (await left()) <= 601)
  await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 60_000 })
  assert.ok((await left()) > 500, 'connecting never shortens')
  await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 1_800_000 })
  assert.ok((await left()) > 1700)
  await sandbox.setTimeout(1000)
  await until('it has ended', async () => !(await sandbox.isRunning()), 60_000)
})

test('it is paused at its end and goes on by itself', async () => {
  const sandbox = await make({ lifecycle: { onTimeout: 'pause', autoResume: true } })
  await sh(sandbox, 'echo kept > /dev/shm/kept')
  await sandbox.setTimeout(1000)
  await until('it is paused', async () => (await sandbox.getInfo()).state === 'paused')
  assert.equal(await sh(sandbox, 'cat /dev/shm/kept'), 'kept\n')
})

test('a snapshot is a moment to begin from', async () => {
  await box.files.write('moment.txt', 'then')
  const snapshot = await box.createSnapshot()
  await box.files.write('moment.txt', 'now')
  const known = async () => (await all(Sandbox.listSnapshots())).map((one) => one.snapshotId)
  assert.ok((await known()).includes(snapshot.snapshotId))
  const copy = await make(snapshot.snapshotId)
  assert.equal(await copy.files.read('moment.txt'), 'then')
  assert.equal(await Sandbox.deleteSnapshot(snapshot.snapshotId), true)
  assert.ok(!(await known()).includes(snapshot.snapshotId))
})

test('metrics are plausible', async () => {
  const metrics = await until('there are metrics', async () => {
    const found = await box.getMetrics()
    return found.length > 0 && found
  })
  const last = metrics.at(-1)
  assert.ok(last.cpuCount >= 1 && last.memUsed > 0 && last.memUsed <= last.memTotal)
  assert.ok(last.diskUsed > 0 && last.diskUsed <= last.diskTotal)
})

test('another key sees nothing', { skip: !OTHER_KEY && 'E2B_TEST_OTHER_KEY is not set' }, async () => {
  const apiKey = OTHER_KEY
  assert.deepEqual(await ids({ metadata: { run: RUN } }, { apiKey }), [])
  await assert.rejects(Sandbox.getInfo(box.sandboxId, { apiKey }), NotFoundError)
  await assert.rejects(Sandbox.connect(box.sandboxId, { apiKey }), NotFoundError)
  assert.equal(await Sandbox.kill(box.sandboxId, { apiKey }), false)
  assert.ok(await box.isRunning())
})
