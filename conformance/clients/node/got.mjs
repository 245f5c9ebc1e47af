// got. Best: more attempts, a timeout for the response, and a limit for the wait that a server asks for.

import got from 'got'
import { best, body, isIdempotent, serve, Skip } from './protocol.mjs'

const methods = ['GET', 'PUT', 'HEAD', 'DELETE', 'OPTIONS', 'TRACE']
const client = got.extend({
  throwHttpErrors: false,
  http2: true,
  responseType: 'buffer',
  ...(best ? { retry: { limit: 5, backoffLimit: 4000, maxRetryAfter: 60000 }, timeout: { response: 2000 } } : {})
})

serve('got', async (request, signal) => {
  if (request.stream && request.body > 65536) throw new Skip('a stream is not sent by the promise API')
  const options = { method: request.method, headers: request.headers, body: body(request), signal }
  if (best) options.retry = { methods: isIdempotent(request) ? [...methods, request.method] : [] }
  const response = await client(request.url, options)
  return [response.statusCode, response.body]
})
