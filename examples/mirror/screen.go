package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

const (
	redrawEvery = 200 * time.Millisecond
	statusLast  = 1 << 20 // the status line is below all bars
)

// screen is a terminal: the status line and a bar for whatever takes long are at its bottom, and what is logged goes above
// them. Only one of them writes to it at a time. A nil screen is no terminal: there are lines only.
type screen struct {
	redraw chan any
	gone   chan any // closed when the terminal has failed
	over   chan struct{}
	ended  sync.WaitGroup

	mu sync.Mutex
	// bars is nil when the screen has ended.
	// +checklocks:mu
	bars *mpb.Progress
}

// newScreen takes a terminal; end gives it back.
func newScreen(terminal io.Writer) *screen {
	redraw, gone := make(chan any), make(chan any)
	s := &screen{
		redraw: redraw, gone: gone, over: make(chan struct{}),
		bars: mpb.New(mpb.WithOutput(terminal), mpb.WithManualRefresh(redraw), mpb.WithShutdownNotifier(gone)),
	}
	s.ended.Go(func() {
		t := time.NewTicker(redrawEvery)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				s.mu.Lock()
				s.drawLocked()
				s.mu.Unlock()
			case <-s.over:
				return
			}
		}
	})
	return s
}

// drawLocked shows what there is; what was written before is shown even if the screen ends now.
//
// +checklocks:s.mu
func (s *screen) drawLocked() {
	if s.bars == nil {
		return
	}
	select {
	case s.redraw <- time.Now():
	case <-s.gone:
	}
}

// end leaves the terminal to others. It is idempotent.
func (s *screen) end() {
	if s == nil {
		return
	}
	s.mu.Lock()
	bars := s.bars
	s.bars = nil
	s.mu.Unlock()
	if bars != nil {
		close(s.over)
		bars.Shutdown()
	}
	s.ended.Wait()
}

// above is where lines are written to: above the bars if out is the same terminal, and to out itself without.
func (s *screen) above(terminal, out io.Writer) io.Writer {
	if s == nil || !sameFile(terminal, out) {
		return out
	}
	return &aboveBars{screen: s, out: out}
}

func sameFile(a, b io.Writer) bool {
	f, ok1 := a.(*os.File)
	g, ok2 := b.(*os.File)
	if !ok1 || !ok2 {
		return a == b
	}
	i, err1 := f.Stat()
	j, err2 := g.Stat()
	return err1 == nil && err2 == nil && os.SameFile(i, j)
}

// aboveBars writes lines above the bars of a screen as long as there are any.
type aboveBars struct {
	screen *screen
	out    io.Writer
}

func (w *aboveBars) Write(p []byte) (int, error) {
	s := w.screen
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bars != nil {
		if n, err := s.bars.Write(p); err == nil {
			s.drawLocked()
			return n, nil
		}
	}
	return w.out.Write(p)
}

// add adds a bar; nil without a terminal.
func (s *screen) add(total int64, style mpb.BarFillerBuilder, o ...mpb.BarOption) *mpb.Bar {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bars == nil {
		return nil
	}
	bar, err := s.bars.Add(total, style.Build(), o...)
	if err != nil {
		return nil // the terminal has failed
	}
	return bar
}

// status shows a line below all bars until it is called off. False: there is no terminal.
func (s *screen) status(line func() string) (off func(), ok bool) {
	text := decor.Any(func(decor.Statistics) string { return line() })
	bar := s.add(0, mpb.NopStyle(), mpb.BarPriority(statusLast), mpb.PrependDecorators(text))
	if bar == nil {
		return nil, false
	}
	return func() { bar.Abort(true) }, true
}

// gauge shows how something goes that takes long: a bar on a terminal, elsewhere a line now and then. All methods are safe
// for concurrent use.
type gauge struct {
	unit  string
	total int64
	tell  func(string)
	bar   *mpb.Bar // nil: no terminal

	mu sync.Mutex
	// +checklocks:mu
	told time.Time
	// more is what there is to say beside the bar.
	// +checklocks:mu
	more string
}

// gauge begins one; end must follow. tell tells people a line of what it is about.
func (s *screen) gauge(what, unit string, total int64, tell func(string)) *gauge {
	g := &gauge{unit: unit, total: total, tell: tell, told: time.Now()}
	if total <= 0 {
		return g // there is nothing to show
	}
	g.bar = s.add(total, mpb.BarStyle(), mpb.BarRemoveOnComplete(),
		mpb.PrependDecorators(decor.Name(what+" "), decor.CountersNoUnit("%d of %d "+unit)),
		mpb.AppendDecorators(decor.Any(func(decor.Statistics) string {
			g.mu.Lock()
			defer g.mu.Unlock()
			return " " + strings.TrimPrefix(g.more, ", ")
		})))
	return g
}

// set says how much is done, and something beside it.
func (g *gauge) set(done int64, more string) {
	g.mu.Lock()
	g.more = more
	due := time.Since(g.told) >= tellEvery
	if due {
		g.told = time.Now()
	}
	g.mu.Unlock()
	switch {
	case g.bar != nil:
		g.bar.SetCurrent(done)
	case due:
		g.tell(fmt.Sprintf("%d of %d %s%s", done, g.total, g.unit, more))
	}
}

// end removes the bar.
func (g *gauge) end() {
	if g.bar != nil {
		g.bar.Abort(true)
	}
}

// pace is how fast something goes, and how long it will take.
func pace(bytesPerSecond float64, left time.Duration) string {
	text := ""
	if bytesPerSecond > 0 {
		text = fmt.Sprintf(", %.1f MB/s", bytesPerSecond/1e6)
	}
	if left > 0 {
		text += fmt.Sprintf(", %v left", left.Round(time.Second))
	}
	return text
}
