package main

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/staleproof/staleproof/examples/internal/nbd"
	"github.com/staleproof/staleproof/jobtracker"
)

// source is where a replica is.
type source struct {
	name string // for people
	dial func(context.Context) (nc net.Conn, export string, err error)
	// renew puts a blank device of that size in its place, and leaves what was there to itself. Nil: that is not mirror's to do.
	renew func(size int64) (source, error)
}

// remote is a replica on somebody else's server.
func remote(uri string) (source, error) {
	u, err := nbd.ParseURI(uri)
	if err != nil {
		return source{}, err
	}
	dial := func(ctx context.Context) (net.Conn, string, error) {
		var d net.Dialer
		nc, err := d.DialContext(ctx, u.Network, u.Address)
		return nc, u.Export, err
	}
	return source{name: uri, dial: dial}, nil
}

// link is a connection to a replica whose metadata has been read. Nothing on it is unanswered.
type link struct {
	nc     net.Conn // for reading to the end what the client does not understand
	client *nbd.Client
	metaAt int64         // where the metadata begins
	meta   *meta         // nil: the replica is blank
	place  int           // where the next copy goes
	id     jobtracker.ID // what a blank one is to be called
}

// open connects to a replica and reads its metadata; ctx bounds that. What an earlier connection has sent must not be able
// to be executed any more.
func (s source) open(ctx context.Context) (*link, error) {
	nc, export, err := s.dial(ctx)
	if err != nil {
		return nil, err
	}
	client, err := nbd.NewClient(ctx, nc, export)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = client.Close() }) // only a read is on its way
	l := &link{nc: nc, client: client, id: newID()}
	err = l.fitting(client.Info())
	if err == nil {
		err = l.readMeta()
	}
	if !stop() {
		err = errors.Join(context.Cause(ctx), err)
	}
	if err != nil {
		_ = client.Close()
		return nil, err
	}
	return l, nil
}

// unfitError says why an export cannot hold a replica.
type unfitError struct{ why string }

func (e *unfitError) Error() string { return "it cannot hold a replica: " + e.why }

// fitting holds what the server offers against what mirror needs.
func (l *link) fitting(i nbd.Info) error {
	needs := []struct {
		flag nbd.TransmissionFlags
		name string
	}{{nbd.SendFlush, "flush"}, {nbd.SendFUA, "FUA"}, {nbd.SendWriteZeroes, "write zeroes"}}
	if i.Has(nbd.ReadOnly) {
		return &unfitError{"it is read-only"}
	}
	for _, n := range needs {
		if !i.Has(n.flag) {
			return &unfitError{"its server does not offer " + n.name}
		}
	}
	switch {
	case i.MinBlock > blockSize:
		return &unfitError{fmt.Sprintf("its blocks have %d bytes, more than %d", i.MinBlock, blockSize)}
	case i.MaxBlock < maxRequest:
		return &unfitError{fmt.Sprintf("it takes requests of up to %d bytes, less than %d", i.MaxBlock, maxRequest)}
	case i.Size < metaSpace+minSize:
		return &unfitError{fmt.Sprintf("it has %d bytes, and mirror keeps the last %d for itself", i.Size, metaSpace)}
	}
	l.metaAt = (i.Size - metaSpace) / blockSize * blockSize
	return nil
}

// room is how large a device the replica can hold.
func (l *link) room() int64 { return l.metaAt }

// readMeta reads both copies.
func (l *link) readMeta() error {
	copies := make([]byte, 2*maxMeta)
	for i := range 2 {
		part := copies[i*maxMeta:][:maxMeta]
		off := uint64(l.metaAt + int64(i)*metaStride)
		if err := l.ask(nbd.Header{Command: nbd.CmdRead, Offset: off, Length: maxMeta}, part); err != nil {
			return fmt.Errorf("reading its metadata: %w", err)
		}
	}
	m, place, err := newest(copies[:maxMeta], copies[maxMeta:])
	if err != nil && !errors.Is(err, errBlank) {
		return err
	}
	if m != nil && m.size > l.room() {
		return fmt.Errorf("%w: it is of a device of %d bytes, and there is room for %d", errDamaged, m.size, l.room())
	}
	l.meta, l.place = m, place
	return nil
}

// refuses tells that an error will not go away by trying again soon.
func refuses(err error) bool {
	_, unfit := errors.AsType[*unfitError](err)
	return unfit || errors.Is(err, errDamaged) || errors.Is(err, errOther) || errors.Is(err, nbd.ErrRefused)
}
