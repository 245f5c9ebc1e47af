// Package budgets makes the retry budgets of a fleet's processes: the
// library's own, and those of other clients for comparison.
package budgets

import (
	"context"
	"fmt"
	"strconv"
	"sync"

	"github.com/seed421102f4/httpretry"
)

// Names are the budgets that Of makes.
const Names = "default, strict, unlimited, shared, aws, grpc"

// hostsPerTable is how many hosts a HostBudget remembers. Each process of a
// fleet is a host of a HostBudget that it shares with others, because budgets
// of different hosts are independent, and the tables of a million HostBudgets
// would take 8 GB.
const hostsPerTable = 1024

// Of returns the budget of each process by the name of its kind, and the origin
// of the AttemptResults to call it with. The kinds default, strict and shared have the fields of h.
//
//	default    h
//	strict     h with Strict, so that it is of all retries
//	unlimited  httpretry.Unlimited
//	shared     one h for all processes
//	aws        the retry quota of AWS SDKs: 500 tokens, of which a retry takes
//	           5, or 10 after a timeout; it returns 5 if it succeeds, and
//	           each success returns 1
//	grpc       the retry throttling of gRPC: 10 tokens, of which each failure
//	           takes 1 and each success returns 0.1; retries need more than 5
func Of(kind string, processes int, h *httpretry.HostBudget) (func(process int) (httpretry.Budget, string), error) {
	switch kind {
	case "default":
		return perProcess(processes, h), nil
	case "strict":
		return perProcess(processes, &httpretry.HostBudget{Ratio: h.Ratio, Burst: h.Burst, Window: h.Window, Strict: true}), nil
	case "shared":
		one := &httpretry.HostBudget{Ratio: h.Ratio, Burst: h.Burst, Window: h.Window, Strict: h.Strict}
		return func(int) (httpretry.Budget, string) { return one, "" }, nil
	case "unlimited":
		return func(int) (httpretry.Budget, string) { return httpretry.Unlimited{}, "" }, nil
	case "aws":
		return perTokens(processes, func() *tokens {
			return &tokens{left: 500, most: 500, retry: 5, timeout: 10, success: 1, refund: 5}
		}), nil
	case "grpc":
		return perTokens(processes, func() *tokens {
			return &tokens{left: 10, most: 10, retry: 1, timeout: 1, success: 0.1, least: 5}
		}), nil
	}
	return nil, fmt.Errorf("budget %q: want one of %s", kind, Names)
}

func perProcess(processes int, h *httpretry.HostBudget) func(int) (httpretry.Budget, string) {
	tables := make([]httpretry.HostBudget, processes/hostsPerTable+1)
	for i := range tables {
		t := &tables[i]
		t.Ratio, t.Burst, t.Window, t.Strict = h.Ratio, h.Burst, h.Window, h.Strict
	}
	hosts := make([]string, hostsPerTable)
	for i := range hosts {
		hosts[i] = strconv.Itoa(i)
	}
	return func(p int) (httpretry.Budget, string) { return &tables[p/hostsPerTable], hosts[p%hostsPerTable] }
}

func perTokens(processes int, full func() *tokens) func(int) (httpretry.Budget, string) {
	all := make([]*tokens, processes)
	for i := range all {
		all[i] = full()
	}
	return func(p int) (httpretry.Budget, string) { return all[p], "" }
}

// tokens is a bucket that time does not fill.
type tokens struct {
	mu sync.Mutex

	left, most      float64
	retry, timeout  float64 // taken by one retry, and by one after a timeout
	success, refund float64 // returned by one success and one refund
	least           float64 // retries need more than this, after they were charged
}

// Withdraw implements httpretry.Budget.
func (t *tokens) Withdraw(_ context.Context, last httpretry.AttemptResult) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	cost := t.retry
	if last.Timeout {
		cost = t.timeout
	}
	// gRPC also counts failures whose retries it does not allow.
	if t.least > 0 {
		t.left = max(t.left-cost, 0)
		return t.left > t.least
	}
	if t.left < cost {
		return false
	}
	t.left -= cost
	return true
}

// Refund implements httpretry.Budget. gRPC refunds nothing.
func (t *tokens) Refund(httpretry.AttemptResult) { t.add(t.refund) }

func (t *tokens) add(n float64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.left = min(t.left+n, t.most)
}

// Record implements httpretry.Budget. A failure is counted by Withdraw, which
// follows it, so the last failure of a request takes no token.
func (t *tokens) Record(ended, charged httpretry.AttemptResult) {
	if !ended.Succeeded() {
		return
	}
	t.add(t.success)
	if charged.Number > 0 {
		t.Refund(charged)
	}
}
