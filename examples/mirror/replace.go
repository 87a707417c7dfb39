package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/staleproof/staleproof/examples/internal/nbd"
	"github.com/staleproof/staleproof/jobtracker"
)

// Another device in a replica's place, while the device goes on.

// fieldError says what is wrong with what was asked for, and with which part of it. Nothing has changed.
type fieldError struct {
	field    string
	conflict bool // it could be right at another time, or for another device
	why      error
}

func (e *fieldError) Error() string { return fmt.Sprintf("%s: %v", e.field, e.why) }
func (e *fieldError) Unwrap() error { return e.why }

var errEnding = errors.New("the device is ending")

// replacement is a device to be put in a replica's place.
type replacement struct {
	at   *source // nil: it is at the same place
	done chan error
}

// replace puts another device in a replica's place: the blank one at a URI, or, without one, whatever answers at the same
// place from now on; of replicas in this process that is a blank file. The old connection ends, what comes late on it is an
// orphan, and the new device is repaired as a whole, whatever it holds. On error nothing has changed: *fieldError, or that the
// device or ctx has ended.
func (m *mirror) replace(ctx context.Context, replica int, uri string) error {
	if replica < 0 || replica >= len(m.drivers) {
		return &fieldError{field: "replica", why: fmt.Errorf("%d is not in 0 to %d", replica, len(m.drivers)-1)}
	}
	d := m.drivers[replica]
	r := replacement{done: make(chan error, 1)}
	if uri != "" {
		at, err := m.elsewhere(ctx, d, uri)
		if err != nil {
			return err
		}
		r.at = at
	}
	select {
	case d.replacements <- r:
		return <-r.done
	case <-m.over:
		return errEnding
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// elsewhere is the place that a URI names, if what is there can be a replica of this device.
func (m *mirror) elsewhere(ctx context.Context, d *driver, uri string) (*source, error) {
	bad := func(conflict bool, why error) error { return &fieldError{field: "uri", conflict: conflict, why: why} }
	if d.place().renew != nil {
		return nil, bad(false, errors.New("this replica is a file of mirror's own, which puts a blank one in its place"))
	}
	u, err := nbd.ParseURI(uri)
	if err != nil {
		return nil, bad(false, err)
	}
	for _, other := range m.drivers {
		at, err := nbd.ParseURI(other.name())
		switch {
		case err != nil || at != u:
		case other == d:
			return nil, nil // it is the same place, and what was sent there may still be executed
		default:
			return nil, bad(true, fmt.Errorf("it names replica %d", other.index))
		}
	}
	s, err := remote(uri)
	if err == nil {
		err = m.examine(ctx, s)
	}
	if err != nil {
		return nil, bad(true, err)
	}
	return &s, nil
}

// examine looks whether a device can be put in a replica's place. It is read, and nothing else. It must be blank: what was a
// replica before says that it has what was flushed, and would be believed after a crash (R26).
func (m *mirror) examine(ctx context.Context, s source) error {
	ctx, cancel := context.WithTimeoutCause(ctx, min(openFor, m.cfg.replyTimeout), errNoAnswer)
	defer cancel()
	l, err := s.open(ctx)
	if err != nil {
		return fmt.Errorf("it cannot be connected: %w", err)
	}
	defer func() { _ = l.client.Close() }()
	if err = m.fits(l); err == nil && l.meta != nil {
		err = errors.New("it is or was a replica of this device; if it is none any more, write zeros over its last MiB")
	}
	return err
}

// fits tells whether a replica is of this device, or blank and large enough.
func (m *mirror) fits(l *link) error {
	switch {
	case l.meta != nil && l.meta.geometry != m.geometry:
		return &foreignError{has: l.meta.geometry, want: m.geometry}
	case l.meta == nil && l.room() < m.geometry.size:
		return &unfitError{fmt.Sprintf("it has room for %d bytes, and the device has %d", l.room(), m.geometry.size)}
	}
	return nil
}

// awaitReplacement waits for a device that is put in the replica's place; false: ctx has ended. The former one's life is ended
// when it is certain that there is one.
func (d *driver) awaitReplacement(ctx context.Context, end func()) {
	for {
		select {
		case r := <-d.replacements:
			at, err := d.renewed(r)
			if err == nil {
				end()
				err = d.replaced(at)
				r.done <- err
				return
			}
			r.done <- err
		case <-ctx.Done():
			return
		}
	}
}

// renewed is the place of the new device. It makes a blank one where that is mirror's to do.
func (d *driver) renewed(r replacement) (*source, error) {
	if err := d.spare(); err != nil {
		return nil, err
	}
	at := d.place()
	switch {
	case r.at != nil:
		return r.at, nil
	case at.renew == nil:
		return at, nil
	}
	s, err := at.renew(d.m.geometry.size + metaSpace)
	if err != nil {
		return nil, fmt.Errorf("a blank file cannot be put in its place: %w", err)
	}
	return &s, nil
}

// spare tells whether the device can go on without the replica.
func (d *driver) spare() error {
	others, all := 0, d.m.tracker.Stats().Replicas
	for i, r := range all {
		if i != d.index && r.State.Phase == jobtracker.Voting {
			others++
		}
	}
	is := all[d.index].State
	votes := is.Phase == jobtracker.Voting || is.Home == jobtracker.HomeOffline && !is.Connected()
	if votes && others < d.m.geometry.quorum {
		return &fieldError{field: "replica", conflict: true, why: fmt.Errorf(
			"%d of the others are active, and a write needs %d; wait for their repair", others, d.m.geometry.quorum)}
	}
	return nil
}

// replaced has the tracker replace the replica. From here on nothing of the former one counts.
func (d *driver) replaced(at *source) error {
	if err := d.m.tracker.Replace(d.index); err != nil {
		return err
	}
	was := d.name()
	d.mu.Lock()
	d.at, d.complain = at, ""
	d.mu.Unlock()
	d.forget = true
	d.m.log.Printf("replica %d (%s): it is replaced by what is at %s, which gets everything", d.index, was, at.name)
	return nil
}

// forgotten has a device that was put at the place of another, and was a replica before, forget that, durably: nobody knows
// what it lacks, and after a crash it would be believed (R26).
func (d *driver) forgotten(ctx context.Context, l *link) error {
	if !d.forget {
		return nil
	}
	if l.meta != nil {
		if err := d.m.fits(l); err != nil {
			return err
		}
		err := d.ask(ctx, l, nbd.CmdWriteZeroes, l.metaAt, metaSpace, nil)
		if err == nil {
			err = d.ask(ctx, l, nbd.CmdFlush, 0, 0, nil)
		}
		if err != nil {
			return fmt.Errorf("zeroing its metadata: %w", err)
		}
		l.meta, l.place = nil, 0
	}
	d.forget = false
	return nil
}

// leave lets a session of a device that was replaced come to its end by itself.
func (d *driver) leave(s *session) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.former = append(d.former, s)
}

// outlive waits for the end of former connections to the same place: a server that was stopped still executes what it was
// sent. False: ctx has ended. It forgets those that have ended.
func (d *driver) outlive(ctx context.Context) bool {
	d.mu.Lock()
	at, former := d.at, d.former[:0]
	var same []*session
	for _, s := range d.former {
		if s.isDrained() {
			continue
		}
		if former = append(former, s); s.at == at {
			same = append(same, s)
		}
	}
	d.former = former
	d.mu.Unlock()
	slow := time.AfterFunc(d.m.cfg.replyTimeout, func() {
		d.tell("the former connection to this place has not ended, so its server may still execute what it was sent; " +
			"restart it, or replace it by another place")
	})
	defer slow.Stop()
	for _, s := range same {
		select {
		case <-s.drained:
		case <-ctx.Done():
			return false
		}
	}
	return true
}
