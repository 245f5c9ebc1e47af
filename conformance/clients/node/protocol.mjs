// The loop of a conformance client in Node.js. See PROTOCOL.md.

import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { createInterface } from 'node:readline'
import { Readable } from 'node:stream'
import { setTimeout as sleep } from 'node:timers/promises'

export const best = process.argv.includes('-best')
export class Skip extends Error {}

async function * parts (request) {
  for (let i = 0; i < 10; i++) {
    await sleep(request.pace * 100)
    yield Buffer.alloc(request.body / 10, 'x')
  }
}

// body returns what the library gets as the body.
export function body (request) {
  if (request.stream) return Readable.from(parts(request))
  return request.body ? Buffer.alloc(request.body, 'x') : undefined
}

// signal returns a signal for the deadline and for the caller's cancel.
function signal (request) {
  const limit = request.deadline || request.cancel
  return limit ? AbortSignal.timeout(limit * 1000) : undefined
}

// isIdempotent reports whether a request may be sent twice.
export function isIdempotent (request) {
  return !['POST', 'PATCH'].includes(request.method) || 'Idempotency-Key' in request.headers
}

// serve calls send for each request. It resolves to the status and the body.
export function serve (name, send) {
  const { version } = JSON.parse(readFileSync(new URL(`node_modules/${name}/package.json`, import.meta.url)))
  console.log(JSON.stringify({ client: `${name} ${version}` }))
  process.on('uncaughtException', error => console.error(error))
  createInterface({ input: process.stdin }).on('line', async line => {
    const request = JSON.parse(line)
    const result = { id: request.id }
    try {
      if (request.upgrade) throw new Skip('no upgrade')
      const [status, content] = await send(request, signal(request))
      result.status = status
      result.sha256 = createHash('sha256').update(Buffer.from(content)).digest('hex')
    } catch (error) {
      result[error instanceof Skip ? 'skip' : 'error'] = `${error.name}: ${error.message} ${error.cause ?? ''}`
    }
    console.log(JSON.stringify(result))
  }).on('close', () => process.exit())
}
