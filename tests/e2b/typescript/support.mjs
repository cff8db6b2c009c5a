// What the flows share: sandboxes that are killed at the end, waiting, ports of a sandbox.

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, test as plain } from 'node:test'

// In the metadata of every sandbox of this run.
export const RUN = `run-${randomUUID().slice(0, 12)}`
// Guests may be emulated: a command that takes a moment elsewhere takes a while there.
/** How many times as slow as usual this machine is. */
const SLOW = Number(process.env.RAMET_TEST_PATIENCE ?? 1)
export const PATIENCE = 180_000 * SLOW
/** Longest time of a test. */
const TEST_MAX = 600_000 * SLOW
// Sandboxes end by themselves if a run is broken off.
const TIMEOUT = 900_000
// The runner needs a moment to report.
const EXIT = 5000

export const DOMAIN = process.env.E2B_TEST_DOMAIN ?? ''
export const OTHER_KEY = process.env.E2B_TEST_OTHER_KEY ?? ''

/** A test with a limit: who hangs fails, and the next one begins. */
export function test(name, ...rest) {
  const work = rest.pop()
  return plain(name, { timeout: TEST_MAX, ...rest[0] }, work)
}

/** Makes sandboxes of a class; they are killed when the file's flows are over. */
export function maker(kind) {
  const made = []
  after(async () => {
    for (const sandbox of made) await sandbox.kill()
    // What a flow that failed has left open keeps nobody waiting.
    setTimeout(() => process.exit(), EXIT).unref()
  })
  const make = async (template, options = {}) => {
    if (typeof template === 'object') [template, options] = [undefined, template]
    const { metadata, ...others } = options
    const wish = { timeoutMs: TIMEOUT, metadata: { run: RUN, ...metadata }, ...others }
    return make.keep(await (template ? kind.create(template, wish) : kind.create(wish)))
  }
  make.keep = (sandbox) => {
    made.push(sandbox)
    return sandbox
  }
  return make
}

/** Asks until the answer is true, and gives it. */
export async function until(what, check, milliseconds = PATIENCE) {
  const end = Date.now() + milliseconds
  for (;;) {
    const answer = await check()
    if (answer) return answer
    assert.ok(Date.now() < end, `not within ${milliseconds} ms: ${what}`)
    await new Promise((done) => setTimeout(done, 300))
  }
}

/** All items of all pages. */
export async function all(pages) {
  const found = []
  while (pages.hasNext) found.push(...(await pages.nextItems()))
  return found
}

/** Asks a server in a sandbox through the node, by headers, as on a single port. */
export async function portOf(sandbox, port, path = '/') {
  const headers = { 'E2b-Sandbox-Id': sandbox.sandboxId, 'E2b-Sandbox-Port': String(port) }
  const response = await fetch(new URL(path, process.env.E2B_API_URL), { headers })
  return [response.status, await response.text()]
}

/** Starts an HTTP server in a sandbox, and waits until it answers there. */
export async function serveDirectory(sandbox, port, directory) {
  const line = `python3 -m http.server ${port} --directory ${directory}`
  await sandbox.commands.run(line, { background: true, timeoutMs: 0 })
  const wait = `until curl -sf -o /dev/null http://127.0.0.1:${port}/; do sleep 0.3; done`
  await sandbox.commands.run(wait, { timeoutMs: PATIENCE })
}
