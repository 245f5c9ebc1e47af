package main

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

// files holds the cases. cases/schema.json describes their format.
//
//go:embed cases/*.json
var files embed.FS

// Case is what one client may do in one situation. All times are in seconds.
type Case struct {
	ID      string  `json:"id"`
	Title   string  `json:"title"`
	Level   string  `json:"level"`  // a key of levels
	Clause  string  `json:"clause"` // where it is said
	Request Request `json:"request"`
	Server  Server  `json:"server"`
	Allowed Allowed `json:"allowed"`
	Limit   float64 `json:"limit"`  // for a result; 0 means 20
	Linger  float64 `json:"linger"` // until late sends are counted; 0 means 0.3

	group string // the name of its file
}

// Levels: "delivers" is what no clause demands, and what a user hopes for.
const (
	levelMust     = "MUST"
	levelShould   = "SHOULD"
	levelDelivers = "delivers"
)

// Request is what the client is asked to send.
type Request struct {
	Method   string  `json:"method"` // "" means GET
	Body     int     `json:"body"`   // bytes
	Stream   bool    `json:"stream"` // the body can be read only once
	Pace     float64 `json:"pace"`   // the time in which a stream has all its bytes
	Key      bool    `json:"key"`    // with an Idempotency-Key
	Upgrade  bool    `json:"upgrade"`
	Secrets  bool    `json:"secrets"`  // in the URL
	Deadline float64 `json:"deadline"` // of the caller; 0 means none
	Cancel   float64 `json:"cancel"`   // when the caller cancels; 0 means never
	HTTP2    bool    `json:"http2"`    // over TLS
	Warm     string  `json:"warm"`     // "keep" or "close": the connection has served a request

	Count   int     `json:"count"`   // of requests; 0 means 1
	Every   float64 `json:"every"`   // the time between two of them
	Workers int     `json:"workers"` // that send all of them; 0 means one for each
}

// Server is the script of the server.
type Server struct {
	Sends     []Step   `json:"sends"`     // of one request; the last one remains
	Windows   []Window `json:"windows"`   // count instead while they last
	FailEvery int      `json:"failEvery"` // every send with this number gets a 503

	// ResetEvery resets every connection with this number when it is accepted,
	// the first one included.
	ResetEvery int `json:"resetEvery"`

	NoTLS bool `json:"noTLS"` // no answer to a handshake

	// PerSecond limits the sends, in bursts of up to ten. Others get a 429 with
	// Retry-After: 1.
	PerSecond float64 `json:"perSecond"`
}

// Window is what the server does for some time after the first request.
type Window struct {
	From    float64 `json:"from"`
	To      float64 `json:"to"`
	Replica int     `json:"replica"` // 1 or 2: connections with an odd or an even number; 0: all
	Step    Step    `json:"step"`
}

// Step is the answer to one send.
type Step struct {
	Status        int               `json:"status"`
	Header        map[string]string `json:"header"` // {date+2} is a date in two seconds
	Body          int               `json:"body"`   // bytes; 0 means 64
	Text          string            `json:"text"`   // the body
	Version       int               `json:"version"`
	Chunked       bool              `json:"chunked"`
	Ranges        bool              `json:"ranges"`        // a Range gets a 206
	Early         bool              `json:"early"`         // before the request's body is read
	Informational []int             `json:"informational"` // statuses before
	Delay         float64           `json:"delay"`
	Executes      bool              `json:"executes"` // though it is not a 2xx
	Cut           string            `json:"cut"`      // ends the body in its middle
	Fault         string            `json:"fault"`    // instead of a response
	After         string            `json:"after"`    // the response
}

var (
	levels = []string{levelMust, levelShould, levelDelivers}
	cuts   = []string{"", "close", "reset", "stall", "drip", "short"}
	faults = []string{
		"", "close", "reset", "stall", "half-header", "refuse",
		"goaway", "goaway-unprocessed", "refused-stream", "internal-error", "cancel",
	}
	afters = []string{"", "close", "goaway", "no-error"}
	warms  = []string{"", "keep", "close"}
)

// Allowed is what the client may do. A zero field allows everything. Always
// forbidden are a request's body that is not whole, a send on a connection after
// its announced end, a part of a response that is reported as whole, and a
// second execution.
type Allowed struct {
	Sends       int       `json:"sends"`       // of a request, at most
	SendsPer    float64   `json:"sendsPer"`    // of a request, at most, on average
	Gaps        []float64 `json:"gaps"`        // between two sends, at least
	Results     []string  `json:"results"`     // statuses, or "error"
	Within      float64   `json:"within"`      // the time until a result
	Delivered   float64   `json:"delivered"`   // the share of requests, at least; 0 means all
	Connections int       `json:"connections"` // at most
	Sequential  bool      `json:"sequential"`  // one send after another
	Method      string    `json:"method"`      // of all sends
	FirstByte   float64   `json:"firstByte"`   // the latest time of the first send
	NoSecrets   bool      `json:"noSecrets"`   // in errors and on the standard error
}

// delivers reports whether the server can succeed at all.
func (c *Case) delivers() bool {
	return slices.ContainsFunc(c.Server.Sends, func(s Step) bool {
		return s.Fault == "" && (s.Status/100 == 2 || s.Status == 101)
	})
}

// load returns all cases in the order of their files.
func load() ([]*Case, error) {
	names, err := fs.Glob(files, "cases/*.json")
	if err != nil {
		return nil, err
	}
	var all []*Case
	var errs []error
	for _, name := range names {
		if name == "cases/schema.json" {
			continue
		}
		data, err := files.ReadFile(name)
		if err != nil {
			return nil, err
		}
		var cases []*Case
		decoder := json.NewDecoder(bytes.NewReader(data))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&cases); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
		for _, c := range cases {
			c.group = strings.TrimSuffix(strings.TrimPrefix(name, "cases/"), ".json")
			if slices.ContainsFunc(all, func(other *Case) bool { return other.ID == c.ID }) {
				errs = append(errs, fmt.Errorf("%s: %s: there are two cases with this id", name, c.ID))
			}
			if err := c.check(); err != nil {
				errs = append(errs, fmt.Errorf("%s: %s: %w", name, c.ID, err))
			}
			all = append(all, c)
		}
	}
	return all, errors.Join(errs...)
}

// check fills in the defaults and returns an error for each value that is not
// valid.
func (c *Case) check() error {
	var errs []error
	oneOf := func(field, value string, allowed []string) {
		if !slices.Contains(allowed, value) {
			errs = append(errs, fmt.Errorf("%s: %q: want one of %q", field, value, allowed))
		}
	}
	setDefault(&c.Request.Method, "GET")
	setDefault(&c.Request.Count, 1)
	setDefault(&c.Limit, 20)
	setDefault(&c.Linger, 0.3)
	setDefault(&c.Allowed.Delivered, 1)
	oneOf("level", c.Level, levels)
	oneOf("request.warm", c.Request.Warm, warms)
	steps := slices.Clone(c.Server.Sends)
	for _, w := range c.Server.Windows {
		steps = append(steps, w.Step)
	}
	for i, s := range steps {
		oneOf(fmt.Sprintf("step %d: cut", i), s.Cut, cuts)
		oneOf(fmt.Sprintf("step %d: fault", i), s.Fault, faults)
		oneOf(fmt.Sprintf("step %d: after", i), s.After, afters)
		if (s.Status == 0) == (s.Fault == "") {
			errs = append(errs, fmt.Errorf("step %d: want a status or a fault", i))
		}
	}
	for field, text := range map[string]string{"id": c.ID, "title": c.Title, "clause": c.Clause} {
		if text == "" {
			errs = append(errs, fmt.Errorf("%s: want a text", field))
		}
	}
	if len(c.Server.Sends) == 0 {
		errs = append(errs, errors.New("server.sends: want a step"))
	}
	return errors.Join(errs...)
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}
