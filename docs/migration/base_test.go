package migration_test

import (
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"strings"
	"time"

	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/retrytest"
)

// status is the answer with a status, and a header as names and values in turn.
func status(code int, header ...string) contract.Step { return retrytest.Status(code, header...) }

// respond answers a request with a status and a header.
func respond(req *http.Request, code int, header ...string) (*http.Response, error) {
	return contract.Play(status(code, header...)).RoundTrip(req)
}

// firstWait returns the time between the first two requests. httpretry spreads
// clients over a quarter of the wait that is asked for.
func firstWait(base *contract.Script, asked time.Duration) string {
	waits := base.Waits()
	if len(waits) == 0 {
		return "no retry"
	}
	if most := asked + asked/4; asked < waits[0] && waits[0] <= most {
		return fmt.Sprintf("%v to %v", asked, most)
	}
	return waits[0].String()
}

// server answers with one status after another. The last one remains.
type server struct {
	*httptest.Server
	script *contract.Script
}

func newServer(statuses ...int) server {
	var steps []contract.Step
	for _, code := range statuses {
		steps = append(steps, status(code))
	}
	script := contract.Play(steps...)
	return server{httptest.NewServer(&httputil.ReverseProxy{
		Transport: script, Rewrite: func(*httputil.ProxyRequest) {}}), script}
}

// log returns the requests so far: the method, the signature and the body.
func (s server) log() string {
	var requests []string
	for _, r := range s.script.Attempts() {
		words := strings.Fields(r.Method + " " + r.Header.Get("Signature") + " " + r.Body)
		requests = append(requests, strings.Join(words, " "))
	}
	return strings.Join(requests, ", ")
}

// show prints the result of a request, and the log.
func (s server) show(resp *http.Response, err error) {
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	fmt.Println(resp.Status, "after", s.log())
}
