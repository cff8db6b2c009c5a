// The code interpreter, and a fork that carries it.

import assert from 'node:assert/strict'
import { before } from 'node:test'
import { Sandbox } from '@e2b/code-interpreter'

import { maker, portOf, serveDirectory, test } from './support.mjs'

const COUNT = 8
const make = maker(Sandbox)
let code

before(async () => {
  code = await make()
})

const run = async (sandbox, text, options = {}) => {
  const done = await sandbox.runCode(text, { timeoutMs: 300_000, ...options })
  assert.equal(done.error, undefined, done.error?.traceback)
  return done
}

test('results, output and state', async () => {
  const seen = []
  const options = { onStdout: (message) => void seen.push(message.line) }
  const done = await run(code, "import sys\nx = 6\nprint('out')\nprint('err', file=sys.stderr)\nx * 7", options)
  assert.equal(done.text, '42')
  assert.equal(seen.join(''), 'out\n')
  assert.equal(done.logs.stderr.join(''), 'err\n')
  assert.equal((await run(code, 'x')).text, '6')
})

test('every kind of result', async () => {
  const kinds = {
    html: '<b>1</b>', markdown: '# 1', svg: '<svg></svg>', latex: '$1$', javascript: '1',
    json: { a: [1, null, 'ü'] },
  }
  for (const [kind, value] of Object.entries(kinds)) {
    const literal = kind === 'json' ? "{'a': [1, None, 'ü']}" : JSON.stringify(value)
    const shown = `class Shown:\n  def _repr_${kind}_(self): return ${literal}\nShown()`
    assert.deepEqual((await run(code, shown)).results[0][kind], value)
  }
  for (const kind of ['png', 'jpeg', 'pdf']) {
    const shown = `class Shown:\n  def _repr_${kind}_(self): return bytes(range(256))\nShown()`
    const [result] = (await run(code, shown)).results
    assert.equal(Buffer.from(result[kind], 'base64').length, 256)
  }
})

test('a chart and its picture', async () => {
  const text = [
    'import matplotlib.pyplot as plt', "plt.bar(['a', 'b'], [3, 7])", "plt.title('Bars')", 'plt.show()',
  ].join('\n')
  const done = await run(code, text, { timeoutMs: 600_000 })
  const result = done.results.find((one) => one.png)
  assert.ok(Buffer.from(result.png, 'base64').subarray(1, 4).equals(Buffer.from('PNG')))
  assert.deepEqual([result.chart.type, result.chart.title], ['bar', 'Bars'])
  assert.deepEqual(result.chart.elements.map((one) => [one.label, Number(one.value)]), [['a', 3], ['b', 7]])
})

test('errors', async () => {
  const done = await code.runCode('1 / 0', { timeoutMs: 300_000 })
  assert.equal(done.error.name, 'ZeroDivisionError')
  assert.equal(done.error.value, 'division by zero')
  assert.ok(done.error.traceback.replace(/\x1b\[[0-9;]*m/g, '').includes('1 / 0'))
})

test('contexts are apart, restarted and removed', async () => {
  const context = await code.createCodeContext({ cwd: '/tmp' })
  await run(code, "x = 'own'", { context })
  await run(code, "x = 'usual'")
  assert.equal((await run(code, 'x', { context })).text, 'own')
  assert.equal((await run(code, 'import os; os.getcwd()', { context })).text, '/tmp')
  await code.restartCodeContext(context)
  assert.equal((await code.runCode('x', { context })).error.name, 'NameError')
  const known = async () => (await code.listCodeContexts()).map((one) => one.id)
  assert.ok((await known()).includes(context.id))
  await code.removeCodeContext(context)
  assert.ok(!(await known()).includes(context.id))
})

test('environment of one execution', async () => {
  const ask = "import os\nos.environ.get('OF_ONE')"
  assert.equal((await run(code, ask, { envs: { OF_ONE: 'one' } })).text, 'one')
  assert.equal((await run(code, ask)).text, undefined)
})

test('eight children have the variable and the server', async () => {
  const source = await make()
  await run(source, 'x = list(range(42))')
  await source.files.write('site/index.html', 'from the source')
  await serveDirectory(source, 8000, '/home/user/site')
  const children = await source.fork({ count: COUNT, timeoutMs: 600_000 })
  assert.equal(children.length, COUNT)
  for (const child of children) {
    assert.ok(!(child instanceof Error), String(child))
    make.keep(child)
  }
  assert.equal(new Set(children.map((child) => child.sandboxId)).size, COUNT)
  for (const [number, child] of children.entries()) {
    assert.equal((await run(child, `x.append(${number}); (len(x), x[-1])`)).text, `(43, ${number})`)
    assert.deepEqual(await portOf(child, 8000, '/index.html'), [200, 'from the source'])
    await child.files.write('site/index.html', `from child ${number}`)
  }
  assert.deepEqual(await portOf(children[3], 8000, '/index.html'), [200, 'from child 3'])
  assert.deepEqual(await portOf(source, 8000, '/index.html'), [200, 'from the source'])
  assert.equal((await run(source, 'len(x)')).text, '42')
})
