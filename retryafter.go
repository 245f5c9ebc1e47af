package httpretry

import (
	"net/http"
	"time"

	"github.com/seed421102f4/httpretry/internal/retryafter"
)

// RetryAfter returns how long a server asks its client to wait, according to
// the header h of a response that arrived at now. ok reports whether it asks
// for a wait at all. The wait is at least 0 and at most 100 years. The keys of
// h must be canonical. The first of these with a valid value determines the
// wait:
//
//   - Retry-After-Ms, X-Ms-Retry-After-Ms: milliseconds.
//   - Retry-After: seconds, a date (RFC 9110 section 10.2.3) or a Unix time.
//   - RateLimit: the seconds t of a policy with r=0, such as "default";r=0;t=30
//     (draft-ietf-httpapi-ratelimit-headers), if the whole field is valid by
//     RFC 9651 and the response has no Age.
//   - RateLimit-Reset if RateLimit-Remaining is 0, X-RateLimit-Reset if
//     X-RateLimit-Remaining is 0: seconds or a Unix time.
//
// Numbers but t may have a fraction. Where a Unix time is possible, a number of
// at least 5e8 is one in seconds, and one of at least 5e11 is in milliseconds.
// If a header has several valid values, the longest wait counts. The wait until
// a time is counted from the response's Date, or from now if there is no valid
// Date or an Age shows that a cache answered. A past time means 0.
//
// RetryAfter is for 4xx and 5xx responses. It does not know the status. In a
// 3xx, Retry-After has another meaning, and a 2xx may have rate-limit headers.
func RetryAfter(h http.Header, now time.Time) (wait time.Duration, ok bool) {
	wait, _, ok = retryafter.Parse(h, func() time.Time { return now })
	return wait, ok
}
