//go:build !race && (amd64 || arm64 || ppc64 || ppc64le || s390x || riscv64 || loong64 || mips64 || mips64le)

package streamstate

// end changes the count. It is a plain write of one word, since an atomic one is as dear as a lock: who looks at it without
// the lock sees, as the memory model has it for a word, a value that was written, and none that was overwritten before
// the function of its transaction returned to it. The race detector cannot know that; its builds write atomically.
func (c *txCount) end() { c.n++ }
