package nbd

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Block sizes that hold where a backend or a server says nothing.
const (
	DefaultMinBlock       = 1
	DefaultPreferredBlock = 4096
)

// Info is what an export tells a client: a backend gives it, a Client shows it. It is a snapshot
// of the handshake and holds for the life of the connection.
type Info struct {
	// Size is in bytes, not negative.
	Size int64
	// Flags say what the export can do. A Server adds HasFlags and drops what it does not speak.
	Flags TransmissionFlags
	// MinBlock is the alignment of offsets and lengths: a power of two up to 64 KiB. Zero: 1.
	MinBlock uint32
	// PreferredBlock is a power of two, at least 512 and MinBlock. Zero: the larger of 4096 and MinBlock.
	PreferredBlock uint32
	// MaxBlock is the longest read or write, a multiple of MinBlock. Zero: no limit of the backend's, and a
	// Server says its own. A Client shows 0xffffffff for none.
	MaxBlock uint32
}

// Has reports whether all of f is set.
func (i Info) Has(f TransmissionFlags) bool { return i.Flags&f == f }

// effective returns i as the server offers it: defaults filled in, limits applied.
func (i Info) effective(maxRequest uint32) (Info, error) {
	i.Flags = i.Flags&offered | HasFlags
	if !i.Has(SendWriteZeroes) {
		i.Flags &^= SendFastZero
	}
	if i.MinBlock == 0 {
		i.MinBlock = DefaultMinBlock
	}
	if i.PreferredBlock == 0 {
		i.PreferredBlock = max(DefaultPreferredBlock, i.MinBlock)
	}
	if i.MaxBlock == 0 || i.MaxBlock > maxRequest {
		i.MaxBlock = maxRequest &^ (i.MinBlock - 1)
	}
	return i, i.check()
}

// check holds i against the protocol's rules for block sizes.
func (i Info) check() error {
	switch {
	case i.Size < 0:
		return fmt.Errorf("%w: negative size %d", ErrInfo, i.Size)
	case !isPowerOfTwo(i.MinBlock) || i.MinBlock > 1<<16:
		return fmt.Errorf("%w: minimum block size %d", ErrInfo, i.MinBlock)
	case !isPowerOfTwo(i.PreferredBlock) || i.PreferredBlock < max(i.MinBlock, 512):
		return fmt.Errorf("%w: preferred block size %d", ErrInfo, i.PreferredBlock)
	case i.MaxBlock != noBlockLimit && i.MaxBlock%i.MinBlock != 0,
		int64(i.MaxBlock) < min(int64(i.PreferredBlock), i.Size),
		i.MaxBlock < i.MinBlock:
		return fmt.Errorf("%w: maximum block size %d", ErrInfo, i.MaxBlock)
	}
	return nil
}

func isPowerOfTwo(n uint32) bool { return n != 0 && n&(n-1) == 0 }

// appendExport appends size and flags, as both OptExportName and OptGo answer them.
func (i Info) appendExport(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, uint64(i.Size))
	return binary.BigEndian.AppendUint16(b, uint16(i.Flags))
}

// decodeExport is the inverse of appendExport; b has ten bytes.
func (i *Info) decodeExport(b []byte) error {
	size := binary.BigEndian.Uint64(b)
	if size > math.MaxInt64 {
		return &ProtocolError{What: "export size", Got: size}
	}
	i.Size, i.Flags = int64(size), TransmissionFlags(binary.BigEndian.Uint16(b[8:]))
	return nil
}

// appendBlockSizes appends the three block sizes.
func (i Info) appendBlockSizes(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, i.MinBlock)
	b = binary.BigEndian.AppendUint32(b, i.PreferredBlock)
	return binary.BigEndian.AppendUint32(b, i.MaxBlock)
}

// decodeBlockSizes is the inverse of appendBlockSizes; b has twelve bytes.
func (i *Info) decodeBlockSizes(b []byte) {
	i.MinBlock = binary.BigEndian.Uint32(b)
	i.PreferredBlock = binary.BigEndian.Uint32(b[4:])
	i.MaxBlock = binary.BigEndian.Uint32(b[8:])
}
