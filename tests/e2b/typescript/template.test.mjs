// Templates: built by steps, started, found again.

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { mkdtemp, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Sandbox, Template, waitForFile } from 'e2b'

import { maker, PATIENCE, test } from './support.mjs'

const make = maker(Sandbox)

test('a template is built and started', async () => {
  const name = `flow-${randomUUID().slice(0, 8)}`
  const context = await mkdtemp(join(tmpdir(), 'context-'))
  await writeFile(join(context, 'data.txt'), 'copied')
  const template = Template({ fileContextPath: context })
    .fromTemplate('base')
    .setEnvs({ FLAVOUR: 'vanilla' })
    .copy('data.txt', '/srv/data.txt')
    .setWorkdir('/srv/work')
    .runCmd('pwd > /tmp/where; echo $FLAVOUR > /tmp/flavour')
    .setStartCmd('echo started > /tmp/started; sleep 100000', waitForFile('/tmp/started'))
  const logs = []
  const built = await Template.build(template, name, { onBuildLogs: (entry) => logs.push(entry) })
  assert.ok(built.templateId)
  assert.ok(logs.length > 0)
  assert.equal(await Template.exists(name), true)
  const sandbox = await make(name)
  const line = 'cat /srv/data.txt /tmp/where /tmp/flavour /tmp/started; pgrep -fc "[s]leep 100000" >/dev/null && echo runs'
  const done = await sandbox.commands.run(line, { timeoutMs: PATIENCE })
  assert.equal(done.stdout, 'copied/srv/work\nvanilla\nstarted\nruns\n')
})
