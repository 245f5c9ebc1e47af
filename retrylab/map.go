package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/seed421102f4/httpretry/retrylab/internal/chart"
	"github.com/seed421102f4/httpretry/retrylab/internal/outage"
	"github.com/seed421102f4/httpretry/retrylab/internal/report"
)

type mapFlags struct {
	outageFlags
	loads, cuts string
	processes   int

	trigger, after time.Duration
}

func mapRecoveries(l lab, o *options) (report.Report, error) {
	var f mapFlags
	s := &f.scenario
	o.StringVar(&f.loads, "loads", "50,60,70,80,90,95", "`loads` of the server before the trigger, in percent, separated by commas")
	o.StringVar(&f.cuts, "cuts", "20,30,40,50,60,70,80,90", "`parts` of its capacity that it loses, in percent, separated by commas")
	o.DurationVar(&f.trigger, "trigger", 10*time.Second, "how long it has lost them")
	o.StringVar(&f.budgets, "budgets", "none,unlimited,proxy,aws2026,grpc,default", "`budgets`, separated by commas; none makes no retries")
	o.IntVar(&f.processes, "processes", 100, "processes that make the load")
	o.IntVar(&f.attempts, "attempts", defaultAttempts, "MaxAttempts")
	o.DurationVar(&f.timeout, "timeout", 2*time.Second, "AttemptTimeout")
	o.Float64Var(&s.Capacity, "capacity", 100, "requests per second that the server can answer")
	o.DurationVar(&f.after, "after", 5*time.Minute, "time that is simulated after the trigger")
	if err := o.parse(); err != nil {
		return report.Report{}, err
	}
	loads, err1 := parseCounts("loads", f.loads, 100)
	cuts, err2 := parseCounts("cuts", f.cuts, 100)
	kinds, err3 := split("budgets", f.budgets, fleetBudgets)
	if err := cmp.Or(
		err1, err2, err3, within("processes", f.processes, 1, maxProcesses),
		within("attempts", f.attempts, 1, 100), within("capacity", s.Capacity, 0.001, 10_000),
		within("trigger", f.trigger, outage.Bucket, time.Hour), within("after", f.after, outage.Bucket, time.Hour),
		within("timeout", f.timeout, outage.Bucket, time.Hour), o.durations(outage.Bucket, "trigger", "after", "timeout"),
	); err != nil {
		return report.Report{}, err
	}
	s.Fault, s.Seed, s.From = "slow", o.seed, 20*time.Second
	s.To = s.From + f.trigger
	s.Length = s.To + f.after
	back, err := l.recoveries(f, kinds, loads, cuts)
	if err != nil {
		return report.Report{}, err
	}
	return f.report(kinds, loads, cuts, back), nil
}

// recoveries returns the seconds until each kind of fleet is back, by the cut and
// the load. NaN means never.
func (l lab) recoveries(f mapFlags, kinds []string, loads, cuts []int) ([][][]float64, error) {
	cells := make([]float64, len(kinds)*len(cuts)*len(loads))
	err := l.parallel(len(cells), func(i int) error {
		k, r, c := i/len(loads)/len(cuts), i/len(loads)%len(cuts), i%len(loads)
		s := f.scenario
		s.Rate, s.Left = s.Capacity*float64(loads[c])/100, 1-float64(cuts[r])/100
		// The waits of httpretry's default are longer while a host fails.
		waits := "DecorrelatedV2"
		if kinds[k] == "default" {
			waits = ownWaits
		}
		v, err := f.variant("send", waits, kinds[k], f.processes, s.Seed)
		if err == nil {
			v.result, err = s.Run(v.client)
		}
		if err != nil {
			return err
		}
		after, ok := v.result.Recovered()
		cells[i] = after.Seconds()
		if !ok {
			cells[i] = math.NaN()
		}
		return nil
	})
	var back [][][]float64
	for rows := range slices.Chunk(slices.Collect(slices.Chunk(cells, len(loads))), len(cuts)) {
		back = append(back, rows)
	}
	return back, err
}

func (f *mapFlags) report(kinds []string, loads, cuts []int, back [][][]float64) report.Report {
	s := f.scenario
	heat := &chart.Heat{Title: "Seconds until the fleet is back, by the load and the capacity that is lost", X: "load", Y: "lost", Most: 1}
	r := report.Report{
		Title: "Which fleets come back",
		About: fmt.Sprintf("%d processes make a load on a server that can answer %s requests a second. For %v, the server has less of its capacity. Each request has up to %d attempts with a timeout of %v, and the server goes on with those whose clients have given up. The waits of the budget \"default\" are those of a RetryTransport by default, and all others are those of DecorrelatedV2.",
			f.processes, report.Show(s.Capacity), f.trigger, f.attempts, f.timeout),
		Figures: []chart.Figure{heat}, Notes: mapNotes(kinds, back),
	}
	names := map[string]string{
		"none": "no retries", "unlimited": "no budget", "proxy": "20 % of 10 s, in a proxy",
		"aws2026": "AWS SDKs, 2026", "grpc": "gRPC's throttle", "default": "httpretry's default",
	}
	columns := []string{"lost"}
	for _, load := range loads {
		heat.Cols = append(heat.Cols, fmt.Sprintf("%d %%", load))
		columns = append(columns, fmt.Sprintf("%d%%", load))
	}
	for k, kind := range kinds {
		name := cmp.Or(names[kind], kind)
		t := report.Table{Title: "Time until the fleet is back, by the load: " + name, Columns: columns}
		for i, cut := range cuts {
			row := []any{fmt.Sprintf("%d%%", cut)}
			for _, seconds := range back[k][i] {
				d := report.Never
				if !math.IsNaN(seconds) {
					d, heat.Most = time.Duration(seconds*float64(time.Second)), max(heat.Most, seconds)
				}
				row = append(row, d)
			}
			t.Rows = append(t.Rows, row)
		}
		r.Tables = append(r.Tables, t)
		heat.Panels = append(heat.Panels, chart.Panel{Name: name, Cells: back[k]})
	}
	for _, cut := range cuts {
		heat.Rows = append(heat.Rows, fmt.Sprintf("%d %%", cut))
	}
	return r
}

// mapNotes says how many cells each fleet does not come back from where one
// without retries does.
func mapNotes(kinds []string, back [][][]float64) []string {
	none := slices.Index(kinds, "none")
	if none < 0 {
		return nil
	}
	var notes []string
	for k, kind := range kinds {
		stuck, of := 0, 0
		for r, row := range back[k] {
			for c, seconds := range row {
				if !math.IsNaN(back[none][r][c]) {
					of++
					if math.IsNaN(seconds) {
						stuck++
					}
				}
			}
		}
		switch {
		case k == none:
		case stuck == 0:
			notes = append(notes, kind+": comes back wherever a fleet without retries does.")
		default:
			notes = append(notes, fmt.Sprintf("%s: does not come back in %d of the %d cells in which a fleet without retries does.", kind, stuck, of))
		}
	}
	return notes
}
