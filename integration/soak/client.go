package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed421102f4/httpretry"
)

// attemptTimeout is that of the policies. A server that stalls does so longer.
const (
	attemptTimeout = 400 * time.Millisecond
	stall          = time.Second
)

// Situations that the program counts, besides the faults and events.
const (
	sent     = "requests"
	complete = "whole 200, after 1 attempt"
	repeated = "whole 200, after several attempts"
	refused  = "another status"
	broken   = "200 that broke off"
	failed   = "error"
	canceled = "error after the client left"
)

// A fault is what the server does to the first attempts of a request.
type fault string

const (
	none        fault = "none"
	early       fault = "503 before the body is read"
	unavailable fault = "503"
	cool        fault = "429 with Retry-After"
	reset       fault = "reset before an answer"
	lost        fault = "reset after the whole request"
	cut         fault = "body that breaks off"
	stalled     fault = "stall"
	closing     fault = "end of the connection"
)

func faults() []fault {
	return []fault{none, early, unavailable, cool, reset, lost, cut, stalled, closing}
}

// situations must all occur.
func situations() []string {
	all := []string{
		sent, complete, repeated, refused, broken, failed, canceled, "kill of Redis",
		"decision of the budget (by Redis: true)", "decision of the budget (by Redis: false)",
		"policy file read (wrong: true)", "policy file read (wrong: false)",
	}
	for _, fault := range faults() {
		all = append(all, "fault: "+string(fault))
	}
	for _, reason := range []httpretry.Reason{
		httpretry.ReasonNone, httpretry.ReasonSuccess, httpretry.ReasonCanceled, httpretry.ReasonAttempts,
		httpretry.ReasonNotIdempotent, httpretry.ReasonBudget,
	} {
		all = append(all, "event: "+reason.String())
	}
	return all
}

// An exchange is a request and what its server does.
type exchange struct {
	method   string
	keyed    bool
	body     []byte
	answer   []byte
	fault    fault
	failing  int32 // so many attempts meet the fault
	attempts atomic.Int32
	executed atomic.Int32 // whole requests that the server has got
}

// The exchanges that have begun, by the number in their header.
const header = "Exchange"

var (
	exchanges sync.Map // string to *exchange
	numbers   atomic.Uint64
)

// send is a client. It sends one request after another until the run is over.
func (s *soak) send(over <-chan struct{}, rnd *rand.Rand) {
	for {
		select {
		case <-over:
			return
		case <-time.After(time.Duration(rnd.ExpFloat64() * float64(60*time.Millisecond))):
			s.exchange(rnd)
		}
	}
}

func (s *soak) exchange(rnd *rand.Rand) {
	all := faults()
	x := &exchange{
		method:  []string{http.MethodGet, http.MethodPut, http.MethodPost, http.MethodPost}[rnd.IntN(4)],
		keyed:   rnd.IntN(2) == 0,
		answer:  letters(rnd, rnd.IntN(64<<10)),
		fault:   all[rnd.IntN(len(all))],
		failing: []int32{1, 1, 2, 100}[rnd.IntN(4)],
	}
	if x.method != http.MethodGet {
		x.body = letters(rnd, rnd.IntN(128<<10))
	}
	protocol, host := rnd.IntN(protocols), rnd.IntN(3)
	group := "fault"
	switch {
	case rnd.IntN(4) == 0:
		x.method, x.body, x.fault, group = http.MethodGet, nil, none, "steady"
	case x.fault == cool:
		group = "cool" // so that a cool-down delays no others
	}
	number := strconv.FormatUint(numbers.Add(1), 10)
	exchanges.Store(number, x)
	defer exchanges.Delete(number)

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if group != "steady" && rnd.IntN(20) == 0 {
		defer time.AfterFunc(time.Duration(rnd.IntN(int(20*time.Millisecond))), cancel).Stop()
	}
	scheme := "https"
	if protocol == http1 {
		scheme = "http"
	}
	url := fmt.Sprintf("%s://%d.%d.%s.test/", scheme, protocol, host, group)
	req, err := http.NewRequestWithContext(ctx, x.method, url, x.reader(rnd))
	if err != nil {
		s.problem("%v", err)
		return
	}
	req.Header.Set(header, number)
	if x.keyed {
		req.Header.Set("Idempotency-Key", number)
	}
	s.count(sent)
	s.count("fault: " + string(x.fault))
	begin := time.Now()
	resp, err := s.fleet.transports[protocol/overQUIC].RoundTrip(req)
	s.judge(ctx, x, resp, err)
	if group == "steady" && err == nil {
		s.mu.Lock()
		s.steady = append(s.steady, time.Since(begin))
		s.mu.Unlock()
	}
}

// reader returns the body, with GetBody or without.
func (x *exchange) reader(rnd *rand.Rand) io.Reader {
	switch {
	case x.body == nil:
		return nil
	case rnd.IntN(2) == 0:
		return bytes.NewReader(x.body)
	}
	return io.MultiReader(bytes.NewReader(x.body)) // a type that net/http does not know
}

func letters(rnd *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = 'a' + byte(rnd.Uint32()%26)
	}
	return b
}

// judge reads the response, and checks it and what the server has executed.
func (s *soak) judge(ctx context.Context, x *exchange, resp *http.Response, err error) {
	if err == nil {
		err = s.read(x, resp)
	}
	switch {
	case err == nil:
	case ctx.Err() != nil:
		s.count(canceled)
	case resp != nil:
		s.count(broken)
	default:
		s.count(failed)
	}
	if executed := x.executed.Load(); executed > 1 && x.method == http.MethodPost && !x.keyed {
		s.problem("a POST without a key was executed %d times (%s)", executed, x.fault)
	}
}

func (s *soak) read(x *exchange, resp *http.Response) error {
	body, err := io.ReadAll(resp.Body)
	err = errors.Join(err, resp.Body.Close())
	switch {
	case resp.StatusCode != http.StatusOK:
		s.count(refused)
		return nil
	case !bytes.HasPrefix(x.answer, body) || err == nil && len(body) != len(x.answer):
		s.problem("%d wrong bytes of %d (%s)", len(body), len(x.answer), x.fault)
	case err == nil && httpretry.ResultOf(resp).Attempts > 1:
		s.count(repeated)
	case err == nil:
		s.count(complete)
	}
	return err
}

// serve is the handler of all servers.
func (s *soak) serve(w http.ResponseWriter, r *http.Request) {
	found, ok := exchanges.Load(r.Header.Get(header))
	if !ok { // the client has left
		panic(http.ErrAbortHandler)
	}
	x := found.(*exchange)
	fault := x.fault
	if x.attempts.Add(1) > x.failing {
		fault = none
	}
	switch fault {
	case early:
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	case reset:
		panic(http.ErrAbortHandler)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil { // the client has left, or its attempt is over
		panic(http.ErrAbortHandler)
	}
	if !bytes.Equal(body, x.body) {
		s.problem("a body of %d bytes arrived as %d others", len(x.body), len(body))
	}
	x.executed.Add(1)
	switch fault {
	case unavailable:
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	case cool:
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusTooManyRequests)
		return
	case lost:
		panic(http.ErrAbortHandler)
	case stalled:
		select {
		case <-r.Context().Done():
		case <-time.After(stall):
		}
		return
	case closing:
		if r.ProtoMajor < 3 { // HTTP/3 has no such header
			w.Header().Set("Connection", "close")
		}
	}
	w.Header().Set("ETag", `"`+r.Header.Get(header)+`"`)
	if fault == cut {
		w.Header().Set("Content-Length", strconv.Itoa(len(x.answer)))
		_, _ = w.Write(x.answer[:len(x.answer)/2]) // the client may have left
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(x.answer))
}
