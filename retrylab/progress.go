package main

import (
	"io"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// progress is a bar for the share of the work that is done. It shows nothing
// if its writer is not a terminal. A goroutine draws it, because the clock of
// those that report is virtual.
type progress struct {
	parts []atomic.Uint64 // bits of the share that is done of each part
	stop  chan struct{}
	drawn sync.WaitGroup
}

// steps is the number of steps of the bar for each part.
const steps = 1000

func newProgress(w io.Writer, parts int) *progress {
	p := &progress{parts: make([]atomic.Uint64, parts), stop: make(chan struct{})}
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		bar := progressbar.NewOptions(parts*steps, progressbar.OptionSetWriter(w), progressbar.OptionClearOnFinish(),
			progressbar.OptionSetWidth(40), progressbar.OptionSetPredictTime(false))
		p.drawn.Go(func() { p.draw(bar) })
	}
	return p
}

// set sets the share of a part that is done.
func (p *progress) set(part int, share float64) { p.parts[part].Store(math.Float64bits(share)) }

func (p *progress) draw(bar *progressbar.ProgressBar) {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-p.stop:
			// A bar that cannot be shown changes no result.
			_ = bar.Finish()
			return
		}
		done := 0.0
		for i := range p.parts {
			done += math.Float64frombits(p.parts[i].Load())
		}
		_ = bar.Set(int(done * steps))
	}
}

func (p *progress) finish() {
	close(p.stop)
	p.drawn.Wait()
}
