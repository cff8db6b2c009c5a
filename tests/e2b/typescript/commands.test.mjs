// Commands and terminals.

import assert from 'node:assert/strict'
import { before } from 'node:test'
import { CommandExitError, NotFoundError, Sandbox, TimeoutError } from 'e2b'

import { maker, PATIENCE, test, until } from './support.mjs'

const make = maker(Sandbox)
let box

before(async () => {
  box = await make()
})

const run = (line, options = {}) => box.commands.run(line, { timeoutMs: PATIENCE, ...options })
const alive = async (marker) => {
  const pattern = `[${marker[0]}]${marker.slice(1)}`
  return (await run(`pgrep -f '${pattern}' >/dev/null && echo yes || echo no`)).stdout === 'yes\n'
}

test('output, error and exit code', async () => {
  const done = await run('echo out; echo err >&2')
  assert.deepEqual([done.stdout, done.stderr, done.exitCode], ['out\n', 'err\n', 0])
  await assert.rejects(run('echo out; exit 7'), (error) => {
    assert.ok(error instanceof CommandExitError)
    assert.deepEqual([error.exitCode, error.stdout], [7, 'out\n'])
    return true
  })
})

test('user, directory, environment', async () => {
  const done = await run('id -un; pwd; echo $A', { user: 'root', cwd: '/tmp', envs: { A: 'ü 1' } })
  assert.equal(done.stdout, 'root\n/tmp\nü 1\n')
})

test('output is whole', async () => {
  const done = await run("python3 -c \"print('äü€😀' * 50000, end='')\"")
  assert.equal(done.stdout, 'äü€😀'.repeat(50_000))
})

test('output comes while it runs', async () => {
  const seen = []
  const line = 'rm -f /tmp/go; echo one; until [ -e /tmp/go ]; do sleep 0.2; done; echo two'
  const onStdout = async (text) => {
    seen.push(text)
    if (text.includes('one')) await box.files.write('/tmp/go', '')
  }
  const done = await run(line, { onStdout })
  assert.equal(seen.join(''), 'one\ntwo\n')
  assert.equal(done.stdout, 'one\ntwo\n')
})

test('the background: list, disconnect, connect, end', async () => {
  const line = 'until [ -e /tmp/heard ]; do sleep 0.2; done; echo heard; exit 4'
  const started = await run(line, { background: true })
  const listed = (await box.commands.list()).find((one) => one.pid === started.pid)
  assert.ok(listed.args.some((word) => word.includes('/tmp/heard')))
  await started.disconnect()
  const elsewhere = await Sandbox.connect(box.sandboxId)
  const other = await elsewhere.commands.connect(started.pid, { timeoutMs: PATIENCE })
  await box.files.write('/tmp/heard', '')
  await assert.rejects(other.wait(), (error) => {
    assert.deepEqual([error.exitCode, error.stdout], [4, 'heard\n'])
    return true
  })
  await assert.rejects(box.commands.connect(999_999), NotFoundError)
})

test('input is passed on', async () => {
  const cat = await run('cat; echo over', { background: true, stdin: true })
  await cat.sendStdin('hello ')
  await box.commands.sendStdin(cat.pid, new TextEncoder().encode('wörld\n'))
  await cat.closeStdin()
  assert.equal((await cat.wait()).stdout, 'hello wörld\nover\n')
})

test('kill, and the end of its time', async () => {
  const sleeper = await run('sleep 4711', { background: true })
  assert.equal(await sleeper.kill(), true)
  await assert.rejects(sleeper.wait(), CommandExitError)
  await until('it is gone', async () => !(await alive('sleep 4711')))
  assert.equal(await box.commands.kill(sleeper.pid), false)
  await assert.rejects(run('sleep 4712', { timeoutMs: 3000 }), TimeoutError)
  await until('it is gone', async () => !(await alive('sleep 4712')))
})

test('a terminal talks and is resized', async () => {
  let text = ''
  const steps = [
    ['24 80', async () => {
      await box.pty.resize(terminal.pid, { cols: 123, rows: 40 })
      await type('stty size\n')
    }],
    ['40 123', () => type('echo $MARK; exit 5\n')],
  ]
  const onData = async (data) => {
    text += new TextDecoder().decode(data)
    if (steps.length > 0 && text.includes(steps[0][0])) await steps.shift()[1]()
  }
  const envs = { MARK: 'm4rk' }
  const terminal = await box.pty.create({ cols: 80, rows: 24, onData, envs, timeoutMs: PATIENCE })
  const type = (line) => box.pty.sendInput(terminal.pid, new TextEncoder().encode(line))
  await type('stty size\n')
  await assert.rejects(terminal.wait(), (error) => error.exitCode === 5)
  assert.equal(steps.length, 0, text)
  assert.ok(text.includes('m4rk'))
})
