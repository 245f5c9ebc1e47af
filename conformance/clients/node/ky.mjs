// ky, above the fetch of Node.js. Best: more attempts with a timeout for each, and all idempotent requests.

import ky, { HTTPError } from 'ky'
import { best, body, isIdempotent, serve, Skip } from './protocol.mjs'

const methods = ['get', 'put', 'head', 'delete', 'options', 'trace']

serve('ky', async (request, signal) => {
  if (request.url.startsWith('https:')) throw new Skip('no HTTP/2')
  const options = { method: request.method, headers: request.headers, body: body(request), signal }
  if (request.stream) options.duplex = 'half'
  if (best) {
    const all = isIdempotent(request) ? [...methods, request.method.toLowerCase()] : []
    options.retry = { limit: 5, methods: all, statusCodes: [408, 413, 425, 429, 500, 502, 503, 504], maxRetryAfter: 60000 }
    options.timeout = 2000
  }
  // Without throwHttpErrors, a status is not retried.
  const response = await ky(request.url, options).catch(error => {
    if (error instanceof HTTPError) return error.response
    throw error
  })
  return [response.status, await response.arrayBuffer()]
})
