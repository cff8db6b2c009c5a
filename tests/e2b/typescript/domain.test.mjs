// Names instead of one address: every sandbox and port has a host name, over TLS.

import assert from 'node:assert/strict'
import { before, describe } from 'node:test'

import { DOMAIN, maker, PATIENCE, serveDirectory, test } from './support.mjs'

if (DOMAIN) {
  for (const name of ['E2B_API_URL', 'E2B_SANDBOX_URL', 'E2B_VOLUME_API_URL']) delete process.env[name]
  process.env.E2B_DOMAIN = DOMAIN
}

describe('by name', { skip: !DOMAIN && 'E2B_TEST_DOMAIN is not set' }, async () => {
  const { Sandbox } = await import('@e2b/code-interpreter')
  const make = maker(Sandbox)
  let named

  before(async () => {
    named = await make()
  })

  test('commands, files and code', async () => {
    assert.equal((await named.commands.run('echo over TLS', { timeoutMs: PATIENCE })).stdout, 'over TLS\n')
    await named.files.write('a', 'b')
    assert.equal(await named.files.read('a'), 'b')
    assert.equal((await named.runCode('6 * 7', { timeoutMs: 300_000 })).text, '42')
  })

  test('a port of a sandbox', async () => {
    assert.equal(named.getHost(3000), `3000-${named.sandboxId}.${DOMAIN}`)
    await named.files.write('site/page.html', 'by name')
    await serveDirectory(named, 3000, '/home/user/site')
    const response = await fetch(`https://${named.getHost(3000)}/page.html`)
    assert.deepEqual([response.status, await response.text()], [200, 'by name'])
    const closed = await fetch(`https://${named.getHost(3999)}/`)
    assert.equal(closed.status, 502)
    assert.match(await closed.text(), /port is not open/)
  })

  test('a signed URL names its sandbox', async () => {
    await named.files.write('signed.txt', 'signed')
    const url = await named.downloadUrl('signed.txt', { useSignatureExpiration: 600 })
    assert.ok(url.includes(named.sandboxId))
    assert.equal(await (await fetch(url)).text(), 'signed')
  })
})
