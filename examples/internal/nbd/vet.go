package nbd

// vet holds a request against the export and returns what to refuse it with, zero for nothing. It clears
// FlagFUA where nothing is written.
func (i Info) vet(h *Header) Errno {
	rule, ok := ruleOf(h.Command)
	switch {
	case !ok:
		return EINVAL
	case rule.writes && i.Has(ReadOnly):
		return EPERM
	case !i.Has(rule.needs):
		return EINVAL
	}
	if e := i.vetFlags(h, rule); e != 0 {
		return e
	}
	return i.vetRange(h, rule)
}

// rule is what the protocol says about a command.
type rule struct {
	writes bool
	needs  TransmissionFlags
	flags  CommandFlags // beside FlagFUA
	beyond Errno        // past the end of the export
}

// ruleOf returns the rule of a command that carries out something; ok is false for all others.
func ruleOf(c Command) (r rule, ok bool) {
	switch c {
	case CmdRead:
		return rule{beyond: EINVAL}, true
	case CmdWrite:
		return rule{writes: true, beyond: ENOSPC}, true
	case CmdFlush:
		return rule{needs: SendFlush, beyond: EINVAL}, true
	case CmdTrim:
		return rule{writes: true, needs: SendTrim, beyond: EINVAL}, true
	case CmdCache:
		return rule{needs: SendCache, beyond: EINVAL}, true
	case CmdWriteZeroes:
		return rule{writes: true, needs: SendWriteZeroes, flags: FlagNoHole | FlagFastZero, beyond: ENOSPC}, true
	case CmdDisc:
	}
	return rule{}, false
}

func (i Info) vetFlags(h *Header, r rule) Errno {
	allowed := r.flags
	if i.Has(SendFUA) {
		allowed |= FlagFUA // on any command: clients are known to set it everywhere
	}
	if !i.Has(SendFastZero) {
		allowed &^= FlagFastZero
	}
	if h.Flags&^allowed != 0 {
		return EINVAL
	}
	if !r.writes {
		h.Flags &^= FlagFUA
	}
	return 0
}

func (i Info) vetRange(h *Header, r rule) Errno {
	size := uint64(i.Size)
	mask := uint64(i.MinBlock - 1)
	switch {
	case h.Command == CmdFlush && (h.Offset != 0 || h.Length != 0):
		return EINVAL
	case h.Offset > size || uint64(h.Length) > size-h.Offset:
		return r.beyond
	case h.Offset&mask != 0 || uint64(h.Length)&mask != 0:
		return EINVAL
	case h.Length > i.MaxBlock && h.Command != CmdTrim && h.Flags&FlagFastZero == 0:
		return EINVAL // a trim, or a zeroing that is fast, is as long as it likes
	}
	return 0
}
