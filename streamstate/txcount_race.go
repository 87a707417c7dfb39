//go:build race || !(amd64 || arm64 || ppc64 || ppc64le || s390x || riscv64 || loong64 || mips64 || mips64le)

package streamstate

import "sync/atomic"

// end changes the count.
func (c *txCount) end() { atomic.StoreUint64(&c.n, c.n+1) } // +checklocksignore: only who has the lock writes
