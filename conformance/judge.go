package main

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Verdict is the judgment of a trial.
type Verdict struct {
	Skip      string   // why the client cannot run the case
	Problems  []string // what the client must not do
	Delivered float64  // the share of requests that succeeded
	Executed  int      // executions of a request, at most
	Sends     int      // of all requests
	Result    string   // of the first request
	Error     string   // of the first request, as the client says
	Requests  int
}

// tolerance is for times that two processes measure.
const tolerance = 100 * time.Millisecond

// judge returns what is wrong in a trial.
func judge(t *Trial) Verdict {
	c := t.Case
	v := Verdict{
		Requests: len(t.Calls), Sends: len(t.Sends), Result: t.Calls[0].result(), Error: t.Calls[0].Error}
	for _, call := range t.Calls {
		if call.Skip != "" {
			return Verdict{Skip: call.Skip}
		}
	}
	sums := c.sums()
	delivered, sends, executed := 0, map[int][]*Send{}, map[int]int{}
	for _, send := range t.Sends {
		sends[send.Request] = append(sends[send.Request], send)
		if send.Executed {
			executed[send.Request]++
			v.Executed = max(v.Executed, executed[send.Request])
		}
	}
	for i, call := range t.Calls {
		good, known := sums[call.SHA256]
		if call.Error == "" && good && (call.Status/100 == 2 || call.Status == http.StatusSwitchingProtocols) {
			delivered++
		}
		v.add(call.problem(c, known))
		v.add(c.sendsProblem(sends[i+1], executed[i+1]))
	}
	v.Delivered = float64(delivered) / float64(len(t.Calls))
	v.add(t.problem(v))
	return v
}

// add adds a problem once. "" is none.
func (v *Verdict) add(problem string) {
	if problem != "" && !slices.Contains(v.Problems, problem) {
		v.Problems = append(v.Problems, problem)
	}
}

// sums returns the digests of all bodies that the server sends as a whole. The
// value is false for an error in a 200.
func (c *Case) sums() map[string]bool {
	steps := []Step{{Status: http.StatusServiceUnavailable}, {Status: http.StatusTooManyRequests}}
	steps = append(steps, c.Server.Sends...)
	for _, w := range c.Server.Windows {
		steps = append(steps, w.Step)
	}
	sums := map[string]bool{}
	for _, step := range steps {
		if step.Status == http.StatusSwitchingProtocols {
			step.Text = "ping"
		}
		sums[digest(step.content())] = step.Text == "" || step.Status == http.StatusSwitchingProtocols
	}
	if c.Request.Method == http.MethodHead {
		sums[digest(nil)] = true
	}
	return sums
}

func (c Call) result() string {
	switch {
	case !c.Answered:
		return "none"
	case c.Error != "":
		return "error"
	}
	return strconv.Itoa(c.Status)
}

// problem returns what is wrong with a result.
func (c Call) problem(of *Case, whole bool) string {
	switch result := c.result(); {
	case len(of.Allowed.Results) > 0 && !slices.Contains(of.Allowed.Results, result):
		return fmt.Sprintf("the result is %s", c.describe(of))
	case c.Answered && c.Error == "" && !whole:
		return "reports a body that the server did not send as a whole"
	case of.Allowed.Within > 0 && c.Took > duration(of.Allowed.Within)+tolerance:
		return fmt.Sprintf("the result comes after %.1f s", c.Took.Seconds())
	case of.Allowed.NoSecrets && leaks(of, []byte(c.Error)) == password(of):
		return "the error has the password"
	case of.Allowed.NoSecrets && strings.Count(c.Error, token(of)) > 1:
		return fmt.Sprintf("the error has the token %d times", strings.Count(c.Error, token(of)))
	}
	return ""
}

func (c Call) describe(of *Case) string {
	switch c.result() {
	case "none":
		return fmt.Sprintf("none within %g s", of.Limit)
	case "error":
		return "an error"
	}
	return c.result()
}

// sendsProblem returns what is wrong with the sends of one request.
func (c *Case) sendsProblem(sends []*Send, executed int) string {
	a := c.Allowed
	for i, send := range sends {
		switch {
		case send.Read && send.Body != c.Request.Body && send.Method == c.Request.Method:
			return fmt.Sprintf("sends %d of %d bytes", send.Body, c.Request.Body)
		case a.Method != "" && send.Method != a.Method:
			return "changes the method to " + send.Method
		case send.Stale:
			return "sends on a connection after its end was announced"
		case i == 0 && a.FirstByte > 0 && send.At > duration(a.FirstByte):
			return fmt.Sprintf("begins to send after %.1f s", send.At.Seconds())
		case i == 0:
			continue
		}
		before := sends[i-1]
		switch {
		case i <= len(a.Gaps) && send.At-before.At < duration(a.Gaps[i-1])-tolerance/10:
			return fmt.Sprintf("sends again after %.2f s", (send.At - before.At).Seconds())
		case a.Sequential && (before.Ended == 0 || before.Ended > send.At+tolerance):
			return "sends again while it waits for the response"
		}
	}
	if a.Sends > 0 && len(sends) > a.Sends && executed < 2 { // see Trial.problem
		return fmt.Sprintf("sends it %d times", len(sends))
	}
	return ""
}

// problem returns what is wrong with the trial as a whole.
func (t *Trial) problem(v Verdict) string {
	a := t.Case.Allowed
	perRequest := float64(v.Sends) / float64(v.Requests)
	switch {
	case v.Executed > 1:
		return fmt.Sprintf("executed %d times", v.Executed)
	case a.SendsPer > 0 && perRequest > a.SendsPer:
		return fmt.Sprintf("sends each request %.2f times", perRequest)
	case a.Connections > 0 && t.Connections > a.Connections:
		return fmt.Sprintf("needs %d connections", t.Connections)
	case a.NoSecrets && leaks(t.Case, t.Log) != "":
		return "its log has the " + strings.SplitN(leaks(t.Case, t.Log), "-", 2)[0]
	}
	return ""
}
