package main

import (
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Conditions that a user of the other libraries can write. A request that is
// not idempotent is sent once, and no request waits for longer than its caller.

func maySendAgain(resp *http.Response) bool {
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
