package repair

import (
	"errors"
	"fmt"
)

// The kinds of failure of [Live] and [Reconcile], beside what the tracker refuses.
var (
	// ErrOption matches an *[OptionError].
	ErrOption = errors.New("repair: bad option")
	// ErrCopy matches a *[CopyError].
	ErrCopy = errors.New("repair: an extent cannot be copied")
	// ErrNoSource says that no active replica is connected to copy from.
	ErrNoSource = errors.New("repair: no source")
	// ErrMeta says that what replicas remember does not fit the device.
	ErrMeta = errors.New("repair: metadata does not fit")
)

// OptionError names an option that cannot be, or an argument that is nil.
type OptionError struct {
	Field string
	Got   int64 // zero: it is nil
}

func (e *OptionError) Error() string {
	if e.Got == 0 {
		return fmt.Sprintf("%v: %s is nil", ErrOption, e.Field)
	}
	return fmt.Sprintf("%v: %s is %d", ErrOption, e.Field, e.Got)
}

// notNil refuses the first of two arguments that is not there.
func notNil(a string, hasA bool, b string, hasB bool) error {
	switch {
	case !hasA:
		return &OptionError{Field: a}
	case !hasB:
		return &OptionError{Field: b}
	}
	return nil
}

// Unwrap is [ErrOption].
func (e *OptionError) Unwrap() error { return ErrOption }

// CopyError says that no source could be copied from.
type CopyError struct {
	Extent int
	Err    error // of the last source, or ErrNoSource
}

func (e *CopyError) Error() string { return fmt.Sprintf("%v: %d: %v", ErrCopy, e.Extent, e.Err) }

// Unwrap is [ErrCopy] and the last source's error.
func (e *CopyError) Unwrap() []error { return []error{ErrCopy, e.Err} }

// LiveOptions are the options of [Live]. The zero value works.
type LiveOptions struct {
	// Meta, if set, is asked first, and what replicas remember alike is left out. Without it everything is copied that the
	// tracker does not know to be clean.
	Meta Meta
	// Checksum has each extent that is left after that compared with a source before it is copied, see
	// [jobtracker.Repair.Compare]: what holds the same is not copied, also where the target has missed a change, or may have
	// lost it. It pays where extents mostly hold the same and data is dearer to move than to read; the driver must know
	// [jobtracker.HalfSum] and [jobtracker.HalfCompare]. One that answers to the latter without Result.Same has all copied.
	Checksum bool
	// Parallel is how many extents are compared or copied at once. Each holds an extent's data. Zero: 4.
	Parallel int
	// BytesPerSecond is how fast extents are begun at most, measured in what they hold. Zero: as fast as it goes.
	BytesPerSecond int64
	// Attempts is how often each source is asked for an extent before the repair is given up. Zero: 2.
	Attempts int
	// OnProgress, if set, is told how the repair goes, one event at a time, on a goroutine of its own. It cannot hold up the
	// repair nor its end: one that is slow, or never returns, is told less, but always the first event and the last
	// one, [LiveEnded] (R09). That one may be told after Live has returned; the goroutine ends with it. OnProgress may
	// call anything.
	OnProgress func(LiveProgress)
}

func (o *LiveOptions) setDefaults() error {
	switch {
	case o.Parallel < 0:
		return &OptionError{Field: "Parallel", Got: int64(o.Parallel)}
	case o.BytesPerSecond < 0:
		return &OptionError{Field: "BytesPerSecond", Got: o.BytesPerSecond}
	case o.Attempts < 0:
		return &OptionError{Field: "Attempts", Got: int64(o.Attempts)}
	}
	if o.Parallel == 0 {
		o.Parallel = 4
	}
	if o.Attempts == 0 {
		o.Attempts = 2
	}
	return nil
}
