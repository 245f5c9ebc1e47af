package main

import (
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Conditions that a user of the other libraries can write.

// maySendAgain reports whether a response is to be retried: its status is that
// of a passing failure, its request is idempotent, and its caller has the time
// that the server asks for.
func maySendAgain(resp *http.Response) bool {
	switch resp.StatusCode {
	case 408, 425, 429, 500, 502, 503, 504:
	default:
		return false
	}
	req, wait := resp.Request, asked(resp)
	deadline, ok := req.Context().Deadline()
	return isIdempotent(req) && wait <= time.Minute && (!ok || time.Until(deadline) > wait)
}

func isIdempotent(req *http.Request) bool {
	switch req.Method {
	case http.MethodPost, http.MethodPatch:
		return req.Header.Get("Idempotency-Key") != ""
	}
	return true
}

// isPost reports whether an error of an http.Client, which does not have the
// request, is that of a method that is not idempotent.
func isPost(err error) bool {
	failed, ok := errors.AsType[*url.Error](err)
	return ok && (failed.Op == "Post" || failed.Op == "Patch")
}

// asked returns the wait that a response asks for.
func asked(resp *http.Response) time.Duration {
	if resp == nil {
		return 0
	}
	value := resp.Header.Get("Retry-After")
	if n, err := strconv.Atoi(value); err == nil {
		return time.Duration(min(n, 1e9)) * time.Second
	}
	if at, err := http.ParseTime(value); err == nil {
		if date, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
			return at.Sub(date)
		}
		return time.Until(at)
	}
	return 0
}
