// undici's RetryAgent. Best: more statuses and errors, a timeout, and no retry of a request that must be sent once.

import { Agent, RetryAgent, request as send } from 'undici'
import { best, body, isIdempotent, serve } from './protocol.mjs'

const timeout = best ? { headersTimeout: 2000, bodyTimeout: 2000 } : {}
const agent = new Agent({ allowH2: true, ...timeout })
const idempotent = new RetryAgent(agent, best
  ? {
      methods: ['GET', 'HEAD', 'OPTIONS', 'PUT', 'DELETE', 'TRACE', 'POST', 'PATCH'],
      statusCodes: [408, 425, 429, 500, 502, 503, 504],
      errorCodes: ['ECONNRESET', 'ECONNREFUSED', 'ENOTFOUND', 'ENETDOWN', 'ENETUNREACH', 'EHOSTDOWN', 'EHOSTUNREACH',
        'EPIPE', 'UND_ERR_SOCKET', 'UND_ERR_HEADERS_TIMEOUT', 'UND_ERR_BODY_TIMEOUT']
    }
  : undefined)

serve('undici', async (request, signal) => {
  const dispatcher = best && !isIdempotent(request) ? agent : idempotent
  const { statusCode, body: content } = await send(request.url, {
    method: request.method, headers: request.headers, body: body(request), signal, dispatcher, maxRedirections: 10
  })
  return [statusCode, await content.arrayBuffer()]
})
