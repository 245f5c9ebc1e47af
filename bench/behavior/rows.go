package main

// rows returns the rows in the order of the table. The functions' comments say
// what is done, and why the behavior in the second column is right.
func rows() []row {
	var all []row
	for _, group := range [][]row{safetyRows(), responseRows(), retryAfterRows(), loadRows(), waitRows(), bodyRows()} {
		all = append(all, group...)
	}
	return all
}

func safetyRows() []row {
	return []row{
		{name: "POST without a key: 503", right: "sent once", run: postUnavailable, options: options{
			"go-retryablehttp": retryablehttpCheck, "rehttp": rehttpMethods,
			"failsafehttp": failsafeAbort, "resty v2": restyV2Condition,
		}},
		{name: "POST without a key: reset after it was read", right: "sent once", run: postReset, options: options{
			"go-retryablehttp": retryablehttpCheck, "failsafehttp": failsafeRequest, "resty v2": restyV2Condition,
		}},
		{name: "POST without a key: GOAWAY after it was read", right: "sent once", run: postGoAway, options: options{
			"go-retryablehttp": retryablehttpCheck, "failsafehttp": failsafeRequest, "resty v2": restyV2Condition,
		}},
		{name: "POST without a key: GOAWAY, not processed", right: "200", run: postUnprocessed},
		{name: "POST with an `Idempotency-Key`: 503, then 200", right: "200", run: postWithKey, options: options{
			"resty v3": restyV3Key,
		}},
		{name: "GET: reset, then 200", right: "200", run: getReset, options: options{
			"rehttp": rehttpErrors, "resty v3": restyV3Errors,
		}},
	}
}

func responseRows() []row {
	return []row{
		{name: "503 on every attempt", right: "503, body readable", run: lastResponse, options: options{
			"go-retryablehttp": retryablehttpPassthrough, "failsafehttp": failsafeLast,
		}},
		{name: "bodies of discarded responses", right: "closed, 1 connection", run: discardedBodies, options: options{
			"failsafehttp": failsafeClose,
		}},
		{name: "503 whose body drips: retried", right: "within 1 s", run: drippingBody, options: options{
			"go-retryablehttp": retryablehttpTimeout, "rehttp": rehttpTimeout,
			"resty v2": restyV2Timeout, "resty v3": restyV3Timeout,
		}},
	}
}

// tooLong are the options that do not retry after a wait that is too long.
func tooLong() options {
	return options{
		"go-retryablehttp": retryablehttpCheck, "rehttp": rehttpRetry, "failsafehttp": failsafeAbort,
		"resty v2": restyV2Condition, "resty v3": restyV3Condition,
	}
}

func retryAfterRows() []row {
	dates := options{
		"go-retryablehttp": retryablehttpDates, "rehttp": rehttpDelay,
		"failsafehttp": failsafeDates, "resty v2": restyV2Dates,
	}
	return []row{
		{name: "Retry-After: 86400, a day", right: "503 at once", run: retryAfterDay, options: tooLong()},
		{name: "Retry-After: 9223372037", right: "503 at once", run: retryAfterOverflow, options: tooLong()},
		{name: "Retry-After: date in 2 s, clock 1 h ahead", right: "retried after 2 to 4 s", varies: true, run: clockAhead, options: dates},
		{name: "Retry-After: date in 2 s, clock 1 h behind", right: "retried after 2 to 4 s", varies: true, run: clockBehind, options: dates},
	}
}

func loadRows() []row {
	return []row{
		{name: "200 jobs at once, 10/s API: success, requests per job", right: "100 %", slow: true, busy: true, varies: true, run: jobsAtOnce, options: options{
			"go-retryablehttp": retryablehttpJitter, "failsafehttp": failsafeJitter, "resty v2": restyV2Waits,
		}},
		{name: "20 % of attempts fail: success, sends", right: "≥ 98 %, ≤ 1.3", busy: true, varies: true, run: randomFailures},
		{name: "first 100 requests, in turn, 20 % failing", right: "≥ 97 %, ≤ 1.3", busy: true, varies: true, run: firstRequests},
		{name: "first 100 requests, ten at a time, 20 % failing", right: "not judged", busy: true, varies: true, run: firstRequestsAtOnce, options: options{
			"httpretry": httpretryBurst,
		}},
		{name: "outage, 1,000 requests: sends per request", right: "≤ 1.1", busy: true, run: outage, options: options{
			"failsafehttp": failsafeBreaker, "resty v3": restyV3Breaker,
		}},
		{name: "outage of 1 s, 20 requests: success, sends", right: "not judged", busy: true, varies: true, run: shortOutage, options: options{
			"httpretry": httpretryOutlasts,
		}},
	}
}

func waitRows() []row {
	return []row{
		{name: "canceled while it waits", right: "`context.Canceled` at once", run: cancelWait},
		{name: "deadline before the end of the wait", right: "503 at once", run: deadlineWait, options: tooLong()},
	}
}

func bodyRows() []row {
	return []row{
		{name: "download that breaks off, with an ETag", right: "not judged", run: brokenDownload, options: options{
			"httpretry": httpretryResume, "resty v3": restyV3Unparsed,
		}},
		{name: "101 Switching Protocols", right: "101, echoes", run: switchingProtocols, options: options{
			"resty v2": restyV2Unparsed, "resty v3": restyV3Unparsed,
		}},
		{name: "64 MB streamed upload: memory", right: "whole, ≤ 8 MB", serial: true, run: streamedUpload, options: options{
			"go-retryablehttp": retryablehttpStream, "rehttp": rehttpPrevent,
		}},
		{name: "1 MB streamed upload: 503, then 200", right: "not judged", run: failedUpload, options: options{
			"httpretry": httpretryReplay, "resty v2": restyV2Length,
		}},
		{name: "POST with a body, digest authentication below", right: "200, body whole", run: digestBelow},
		{name: "password and query token: in its log", right: "neither", run: secretsInLog},
		{name: "query token: in its error", right: "1 ×, as http.Client", run: secretsInError, options: options{
			"go-retryablehttp": retryablehttpPassthrough,
		}},
	}
}
