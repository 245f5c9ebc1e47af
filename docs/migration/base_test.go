package migration_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"
)

// base plays a server. It gives the first answers one after the other, and then
// the last one again and again. It records when each request was sent.
type base struct {
	answers []answer
	times   []time.Time
}

type answer func(*http.Request) (*http.Response, error)

func (b *base) RoundTrip(req *http.Request) (*http.Response, error) {
	next := b.answers[min(len(b.times), len(b.answers)-1)]
	b.times = append(b.times, time.Now())
	if req.Body != nil {
		defer req.Body.Close()
		if _, err := io.Copy(io.Discard, req.Body); err != nil {
			return nil, err
		}
	}
	if err := req.Context().Err(); err != nil {
		return nil, err
	}
	return next(req)
}

// firstWait returns the time between the first two requests. httpretry spreads
// clients over a quarter of the wait that is asked for.
func (b *base) firstWait(asked time.Duration) string {
	if len(b.times) < 2 {
		return "no retry"
	}
	wait := b.times[1].Sub(b.times[0])
	if most := asked + asked/4; asked < wait && wait <= most {
		return fmt.Sprintf("%v to %v", asked, most)
	}
	return wait.String()
}

// status answers with a status, and header fields as pairs.
func status(code int, header ...string) answer {
	return func(req *http.Request) (*http.Response, error) {
		resp := &http.Response{
			StatusCode: code, Status: fmt.Sprint(code, " ", http.StatusText(code)),
			Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
			Header: http.Header{}, Body: http.NoBody, Request: req,
		}
		for i := 0; i < len(header); i += 2 {
			resp.Header.Set(header[i], header[i+1])
		}
		return resp, nil
	}
}

// dripping answers 200 with a body of ten bytes, one each second.
func dripping(req *http.Request) (*http.Response, error) {
	resp, err := status(200)(req)
	ctx, cancel := context.WithCancel(req.Context())
	resp.ContentLength, resp.Body = 10, &drip{ctx: ctx, cancel: cancel, left: 10}
	return resp, err
}

type drip struct {
	ctx    context.Context
	cancel func()
	left   int
}

func (d *drip) Read(p []byte) (int, error) {
	if d.left == 0 {
		return 0, io.EOF
	}
	select {
	case <-time.After(time.Second):
	case <-d.ctx.Done():
		return 0, errors.New("the body is closed")
	}
	d.left--
	p[0] = 'x'
	return 1, nil
}

func (d *drip) Close() error {
	d.cancel()
	return nil
}

func fails(err error) answer {
	return func(*http.Request) (*http.Response, error) { return nil, err }
}

func refused() error {
	return &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
}

func reset() error {
	return &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", syscall.ECONNRESET)}
}

func unknownHost() error {
	return &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: "no such host", Name: "a.test", IsNotFound: true}}
}
