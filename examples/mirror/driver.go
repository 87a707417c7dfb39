package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mrand "math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/staleproof/staleproof/jobtracker"
)

const (
	firstPause = 50 * time.Millisecond
	longPause  = 2 * time.Second
	shortLife  = 500 * time.Millisecond
	// longestPause is after a repair that the replica has failed.
	longestPause = time.Minute
	openFor      = 10 * time.Second // how long a handshake may take
	settleFor    = time.Second      // how long replicas that are here may take to begin, when -wait is over
)

// driver keeps one replica connected, and whatever is put in its place.
type driver struct {
	m       *mirror
	index   int
	joined  func()        // closes first; once
	first   chan struct{} // closed when the first session has made its generation durable, or will not
	strikes atomic.Int32  // how often it was lost, or has failed something, in reconciliations
	// replacements are for run, which alone has the tracker replace the replica: so nothing of the former one comes between.
	replacements chan replacement
	forget       bool // what is at its place must be blank, or made so; of run and live

	mu sync.Mutex
	// at is where the replica is. It is another one when another place is named, even if that has the same name.
	// +checklocks:mu
	at *source
	// complain is the last trouble told, so that it is told once.
	// +checklocks:mu
	complain string
	// session is the present or last one.
	// +checklocks:mu
	session *session
	// former are sessions of replaced replicas that have not come to their end.
	// +checklocks:mu
	former []*session
}

func newDriver(m *mirror, index int, s source) *driver {
	d := &driver{m: m, index: index, at: &s, first: make(chan struct{}), replacements: make(chan replacement)}
	d.joined = sync.OnceFunc(func() { close(d.first) })
	return d
}

// place is where the replica is.
func (d *driver) place() *source {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.at
}

func (d *driver) name() string { return d.place().name }

func newID() (id jobtracker.ID) {
	_, _ = rand.Read(id[:]) // never fails
	return id
}

// run keeps the replica connected until ctx ends, and then lets a session come to its end. s is the first session, nil if
// the replica could not be reached.
func (d *driver) run(ctx context.Context, s *session) {
	for ctx.Err() == nil {
		life, end := context.WithCancelCause(ctx)
		over := make(chan struct{})
		d.m.running.Go(func() {
			defer close(over)
			d.live(life, s)
		})
		d.awaitReplacement(ctx, func() {
			end(jobtracker.ErrReplaced)
			<-over
		})
		<-over
		end(nil)
		s = nil
	}
}

// live keeps one device in the replica's place connected until ctx ends.
func (d *driver) live(ctx context.Context, s *session) {
	if s == nil && !d.outlive(ctx) {
		return
	}
	for pause := firstPause; ; {
		if s != nil {
			began := time.Now()
			if !d.attend(ctx, s) {
				return
			}
			pause = pauseAfter(pause, time.Since(began), s.gaveUp())
		}
		if !d.rest(ctx, pause) {
			return
		}
		var err error
		if s, err = d.connect(ctx); err != nil {
			if pause = min(2*pause, longPause); refuses(err) || errors.Is(err, jobtracker.ErrHello) {
				pause = longPause
			}
			if ctx.Err() == nil {
				d.trouble(err)
			}
		}
	}
}

// pauseAfter is how long to wait when a session has ended that lived for a while, and last is what was waited before it. A
// replica that fails its repair late, with a disk that is full, would else be copied to all the time: it waits as long as
// that took.
func pauseAfter(last, lived time.Duration, gaveUp bool) time.Duration {
	switch {
	case gaveUp:
		return max(min(2*last, longPause), min(lived, longestPause))
	case lived > shortLife:
		return firstPause
	}
	return min(2*last, longPause)
}

// attend has a session live. False: there is to be no other. When the replica is replaced, the session is left to itself:
// what comes late on it is still to be counted, and it may never come to its end.
func (d *driver) attend(ctx context.Context, s *session) bool {
	ended := make(chan error, 1)
	d.m.running.Go(func() { ended <- s.run() })
	var err error
	select {
	case err = <-ended:
	case <-ctx.Done():
		if errors.Is(context.Cause(ctx), jobtracker.ErrReplaced) {
			d.leave(s)
			return false
		}
		err = <-ended
	}
	if err == nil || ctx.Err() != nil {
		return ctx.Err() == nil
	}
	d.tell("CUT OFF: its connection broke without an end, so what it was sent may still be executed; "+
		"replace it, or restart mirror when it cannot: %v", err)
	_ = d.m.tracker.Fault(d.index, err)
	return false
}

// rest waits before the next attempt; not all drivers at once. False: ctx has ended.
func (d *driver) rest(ctx context.Context, pause time.Duration) bool {
	t := time.NewTimer(pause/2 + mrand.N(pause))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// connect opens the replica and has the tracker connect it.
func (d *driver) connect(ctx context.Context) (*session, error) {
	if d.strikes.Load() >= maxStrikes {
		if err := d.m.stayOut(ctx, nil); err != nil {
			return nil, err
		}
	}
	l, err := d.openIn(ctx, openFor)
	if err != nil {
		return nil, err
	}
	if err := d.forgotten(ctx, l); err != nil {
		_ = l.client.Close()
		return nil, err
	}
	if l.meta == nil && !d.m.create {
		return d.admitBlank(ctx, l)
	}
	return d.admit(l)
}

// admitBlank introduces a blank replica when the activation has begun without it, or cannot: so that the device need not
// wait until all of it is copied.
func (d *driver) admitBlank(ctx context.Context, l *link) (*session, error) {
	if err := d.m.stayOut(ctx, d.m.blanks); err != nil {
		_ = l.client.Close()
		return nil, err
	}
	return d.admit(l)
}

func (d *driver) openIn(ctx context.Context, most time.Duration) (*link, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, most, errNoAnswer)
	defer cancel()
	return d.place().open(ctx)
}

// admit introduces an opened replica to the tracker.
func (d *driver) admit(l *link) (*session, error) {
	conn, err := d.introduce(l)
	if err != nil {
		_ = l.client.Close() // all that was sent on it is answered
		return nil, err
	}
	s := newSession(d, l, conn)
	d.mu.Lock()
	s.at = d.at
	d.session, d.complain = s, ""
	d.mu.Unlock()
	if conn.Plan() == jobtracker.PlanRepair && l.meta == nil {
		d.tell("it is blank")
	}
	return s, nil
}

func (d *driver) introduce(l *link) (*jobtracker.Conn[*request], error) {
	g := &d.m.geometry
	hello := jobtracker.Hello{Device: g.device, Replica: l.id}
	if err := d.m.fits(l); err != nil {
		return nil, err
	}
	switch {
	case l.meta != nil:
		hello = l.meta.hello()
	case !d.m.create || d.current() != nil:
		hello = jobtracker.Hello{} // blank, of no identity; when a device is made, each is blank once
	}
	return d.m.tracker.Connect(d.index, hello)
}

// foreignError refuses a replica of another device.
type foreignError struct{ has, want geometry }

func (e *foreignError) Error() string {
	if e.has.device != e.want.device {
		return fmt.Sprintf("it belongs to another device: %x, and this is %x; it is not touched", e.has.device, e.want.device)
	}
	return fmt.Sprintf("it was made for another layout of this device: %+v, and this is %+v", e.has, e.want)
}

// remembered is what the replica remembers, and where its next copy goes; of a blank one what it is to remember.
func (d *driver) remembered(l *link) (meta, int) {
	if l.meta != nil {
		return *l.meta, l.place
	}
	g := d.m.geometry
	return meta{geometry: g, replica: l.id, dirty: newBitmap(g.extents())}, 0
}

// awaited tells why the replica is waited for at the start.
func (d *driver) awaited(err error) {
	d.complains(err)
	d.tell("cannot be connected: %v; trying for %v", err, d.m.cfg.wait)
}

// trouble tells why the replica cannot be connected, once.
func (d *driver) trouble(err error) {
	if d.complains(err) {
		d.tell("cannot be connected: %v", err)
	}
}

// complains notes a trouble, and tells whether it is another than before.
func (d *driver) complains(err error) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	was := d.complain
	d.complain = err.Error()
	return was != d.complain
}

// gauge shows how something goes that takes long on the replica.
func (d *driver) gauge(what, unit string, total int64) *gauge {
	name := fmt.Sprintf("replica %d: %s", d.index, what)
	return d.m.cfg.screen.gauge(name, unit, total, func(text string) { d.tell("%s: %s", what, text) })
}

func (d *driver) tell(format string, args ...any) {
	d.m.log.Printf("replica %d (%s): %s", d.index, d.name(), fmt.Sprintf(format, args...))
}

// current is the present or last session, nil if there was none.
func (d *driver) current() *session {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.session
}

// cut ends the replica's connection as a timeout would.
func (d *driver) cut(cause error) {
	if s := d.current(); s != nil {
		s.conn.Close(cause)
	}
}

// abandon ends sessions that do not come to their end.
func (d *driver) abandon() {
	d.mu.Lock()
	all := append([]*session{d.session}, d.former...)
	d.mu.Unlock()
	for _, s := range all {
		if s != nil && !s.isDrained() {
			d.m.log.Printf("replica %d (%s): its server has not ended the connection; "+
				"what it was sent may still be executed, so restart it before mirror", d.index, s.at.name)
			_ = s.link.client.Close()
		}
	}
}
