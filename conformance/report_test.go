package main

import (
	"errors"
	"strings"
	"testing"
)

// The command fails if httpretry is wrong, or delivers less than it can. The
// table and the page show that, and which clients deliver more.
func TestReport(t *testing.T) {
	good := []Step{{Status: 200}}
	cases := []*Case{
		{ID: "a", Title: "A", Level: levelMust, Server: Server{Sends: good}},
		{ID: "b", Title: "B", Level: levelDelivers, Server: Server{Sends: good}},
		{ID: outage, Title: "C", Level: levelShould, Server: Server{Sends: good}},
	}
	for _, c := range cases {
		c.Allowed.Delivered = 1
	}
	whole := Verdict{Result: "200", Delivered: 1, Sends: 1, Requests: 1}
	less := Verdict{Result: "error", Error: "refused", Sends: 3, Requests: 1}
	bad := Verdict{Result: "200", Delivered: 1, Sends: 2, Requests: 1, Problems: []string{"bad"}, Executed: 2}
	results := []Result{
		{Spec: Spec{Name: "httpretry"}, Verdicts: []Verdict{whole, less, bad}},
		{Spec: Spec{Name: "httpretry, best", Best: true}, Verdicts: []Verdict{bad, less, bad}},
		{Spec: Spec{Name: "peer"}, Verdicts: []Verdict{bad, whole, {Skip: "cannot"}}},
		{Spec: Spec{Name: "wrong peer"}, Verdicts: []Verdict{bad, bad, whole}},
		{Spec: Spec{Name: "absent"}, Skipped: errors.New("not installed")},
	}
	want := "httpretry: b (delivers): ○ error, 3×: refused\nhttpretry: outage (SHOULD): ✗ 200, 2×: bad\n" +
		"httpretry, best: a (MUST): ✗ 200, 2×: bad\nhttpretry, best: b (delivers): ○ error, 3×: refused"
	if err := failures(results, cases); err == nil || err.Error() != want {
		t.Errorf("failures returns %v: want %q", err, want)
	}
	var table strings.Builder
	markdown(&table, results, cases)
	page, err := html(results, cases)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| peer |  | 1 | 0 | 1 | 1 of 1 | 1 |", "| absent | not installed |", "- b: peer\n",
		"| a: A | MUST |  | 200, 1× | ✗ 200, 2×: bad | ✗ 200, 2×: bad | ✗ 200, 2×: bad |",
		"| b: B | delivers |  | ○ error, 3× | ○ error, 3× | 200, 1× | ✗ 200, 2×: bad |",
	} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("the table is %s: want %q", &table, want)
		}
	}
	for _, want := range []string{
		`<td class="must" title="bad. ">✗ 200, 2×`, `<td class="less" title="refused">error, 3×`,
		`<td class="skip" title="cannot">–`, "go run . -clients &#39;^peer$&#39; -run &#39;^a$&#39;",
	} {
		if !strings.Contains(string(page), want) {
			t.Errorf("the page is %s: want %q", page, want)
		}
	}
}
