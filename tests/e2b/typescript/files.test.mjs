// Files, signed URLs, watching.

import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { before } from 'node:test'
import { FileNotFoundError, FilesystemEventType, FileType, InvalidArgumentError, Sandbox } from 'e2b'

import { maker, PATIENCE, test, until } from './support.mjs'

const LARGE_MIB = Number(process.env.E2B_TEST_LARGE_MIB ?? 100)
const make = maker(Sandbox)
let box

before(async () => {
  box = await make()
})

const sh = async (line) => (await box.commands.run(line, { timeoutMs: 600_000 })).stdout
const sha256 = (data) => createHash('sha256').update(data).digest('hex')
const every = Uint8Array.from({ length: 256 * 256 }, (_, index) => index % 256)

test('content comes back', async () => {
  for (const data of [new Uint8Array(), new Uint8Array([0]), every]) {
    await box.files.write('content', data.buffer)
    assert.deepEqual(await box.files.read('content', { format: 'bytes' }), data)
    assert.equal((await sh('sha256sum < content')).split(' ')[0], sha256(data))
  }
  await box.files.write('text', 'grüße ☃')
  assert.equal(await box.files.read('text'), 'grüße ☃')
  assert.equal(await (await box.files.read('text', { format: 'blob' })).text(), 'grüße ☃')
  await box.files.write('empty', '')
  assert.equal(await box.files.read('empty'), '')
})

test('a large file both ways', async () => {
  const block = Uint8Array.from({ length: 1 << 20 }, (_, index) => (index * 7919) >> 3)
  const whole = createHash('sha256')
  let left = LARGE_MIB
  const stream = new ReadableStream({
    pull(controller) {
      if (left-- <= 0) return controller.close()
      whole.update(block)
      controller.enqueue(block)
    },
  })
  const requestTimeoutMs = 900_000
  await box.files.write('large', stream, { requestTimeoutMs, useOctetStream: true })
  const wanted = whole.digest('hex')
  assert.equal((await sh('stat -c %s large')).trim(), String(LARGE_MIB << 20))
  assert.equal((await sh('sha256sum < large')).split(' ')[0], wanted)
  const back = createHash('sha256')
  for await (const piece of await box.files.read('large', { format: 'stream', requestTimeoutMs })) {
    back.update(piece)
  }
  assert.equal(back.digest('hex'), wanted)
  await box.files.remove('large')
})

test('names are any', async () => {
  for (const name of ['grüße ☃.txt', 'a b&c?#%.txt', '日本/深い/📄', '-dash']) {
    await box.files.write(`names/${name}`, name)
    assert.equal(await box.files.read(`names/${name}`), name)
    assert.equal((await box.files.getInfo(`names/${name}`)).path, `/home/user/names/${name}`)
  }
})

test('list, info, rename, remove, directories', async () => {
  const entries = [0, 1, 2].map((n) => ({ path: `tree/${n}`, data: `${n}` }))
  assert.equal((await box.files.write(entries)).length, 3)
  assert.equal(await box.files.makeDir('tree/sub'), true)
  assert.equal(await box.files.makeDir('tree/sub'), false)
  const listed = await box.files.list('tree')
  assert.deepEqual(listed.map((one) => one.name).sort(), ['0', '1', '2', 'sub'])
  assert.equal(listed.find((one) => one.name === 'sub').type, FileType.DIR)
  await sh('chmod 640 tree/0')
  const info = await box.files.getInfo('tree/0')
  assert.deepEqual([info.size, info.mode, info.permissions], [1, 0o640, '-rw-r-----'])
  assert.equal((await box.files.rename('tree/0', 'tree/new/0')).path, '/home/user/tree/new/0')
  assert.equal(await box.files.exists('tree/0'), false)
  await box.files.remove('tree')
  assert.equal(await box.files.exists('tree'), false)
  await assert.rejects(box.files.read('tree/1'), FileNotFoundError)
  await box.files.makeDir('directory')
  await assert.rejects(box.files.read('directory'), InvalidArgumentError)
})

test('signed URLs', async () => {
  await box.files.write('signed.txt', 'signed')
  for (const useSignatureExpiration of [undefined, 3_600]) {
    const url = await box.downloadUrl('signed.txt', { useSignatureExpiration })
    assert.equal(await (await fetch(url)).text(), 'signed')
    const form = new FormData()
    form.append('file', new Blob(['uploaded']), 'up.txt')
    const target = await box.uploadUrl('up.txt', { useSignatureExpiration })
    assert.equal((await fetch(target, { method: 'POST', body: form })).status, 200)
    assert.equal(await box.files.read('up.txt'), 'uploaded')
    await box.files.remove('up.txt')
  }
  const expired = await box.downloadUrl('signed.txt', { useSignatureExpiration: -120 })
  assert.equal((await fetch(expired)).status, 401)
  const wrong = new URL(await box.downloadUrl('signed.txt'))
  wrong.searchParams.set('path', '/etc/passwd')
  assert.ok((await fetch(wrong)).status >= 400)
})

test('watching', async () => {
  await box.files.makeDir('watched/sub')
  const events = []
  const options = { recursive: true, timeoutMs: 0 }
  const handle = await box.files.watchDir('watched', (event) => void events.push(event), options)
  const saw = (type, name) =>
    until(`${type} of ${name}`, () => events.some((one) => one.type === type && one.name === name), 60_000)
  await box.files.write('watched/sub/a', '1')
  await saw(FilesystemEventType.CREATE, 'sub/a')
  await saw(FilesystemEventType.WRITE, 'sub/a')
  await box.files.rename('watched/sub/a', 'watched/sub/b')
  await saw(FilesystemEventType.RENAME, 'sub/a')
  await box.files.remove('watched/sub/b')
  await saw(FilesystemEventType.REMOVE, 'sub/b')
  await handle.stop()
  const missing = box.files.watchDir('not-there', () => {}, { requestTimeoutMs: PATIENCE })
  await assert.rejects(missing, FileNotFoundError)
})
