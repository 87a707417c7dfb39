package rules_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/staleproof/staleproof/internal/rules"
)

// recorder is a testing.TB that keeps what was reported and goes on after a fatal error.
type recorder struct {
	testing.TB
	got []string
}

func (r *recorder) Helper() {}
func (r *recorder) Errorf(format string, args ...any) {
	r.got = append(r.got, fmt.Sprintf(format, args...))
}
func (r *recorder) Fatalf(format string, args ...any) { r.Errorf(format, args...) }

// lay writes a package: alternating file names and contents after the package clause.
func lay(t *testing.T, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	for i := 0; i < len(files); i += 2 {
		p := filepath.Join(dir, files[i])
		require.NoError(t, os.MkdirAll(filepath.Dir(p), 0o700))
		require.NoError(t, os.WriteFile(p, []byte("package p\n"+files[i+1]), 0o600))
	}
	return dir
}

// expect runs a check and demands that it reports want, a fragment of the only report, or nothing if want is empty.
func expect(t *testing.T, want string, check func(tb testing.TB)) {
	t.Helper()
	r := &recorder{TB: t}
	check(r)
	if want == "" {
		require.Empty(t, r.got)
		return
	}
	require.Len(t, r.got, 1)
	require.Contains(t, r.got[0], want)
}

const gate = `import "sync"
type T struct{ mu sync.Mutex }
func (t *T) do(fn func()) { t.mu.Lock(); defer t.mu.Unlock(); fn() }
`

func TestGate(t *testing.T) {
	for name, tc := range map[string]struct{ src, want string }{
		"plain":            {`func f(t *T) { t.do(func() {}) }`, ""},
		"Lock":             {`func f(t *T) { t.mu.Lock() }`, "other.go:2:16: Lock outside the gate (gate.go)"},
		"deferred Unlock":  {`func f(t *T) { defer t.mu.Unlock() }`, "Unlock outside"},
		"TryLock":          {`func f(t *T) bool { return t.mu.TryLock() }`, "TryLock outside"},
		"RLock":            {`func f(t interface{ RLock() }) { t.RLock() }`, "RLock outside"},
		"method value":     {`func f(t *T) func() { return t.mu.Lock }`, "Lock outside"},
		"mutex":            {"import \"sync\"\nvar mu sync.Mutex", "Mutex outside"},
		"renamed package":  {"import s \"sync\"\nvar mu *s.RWMutex", "RWMutex outside"},
		"embedded":         {"import \"sync\"\ntype U struct{ sync.Mutex }", "Mutex outside"},
		"condition":        {"import \"sync\"\nvar c = sync.NewCond(nil)", "NewCond outside"},
		"dot import":       {`import . "sync"`, "dot import of sync"},
		"other sync names": {"import \"sync\"\nvar once sync.Once", ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := lay(t, "gate.go", gate, "other.go", tc.src, "x_test.go", `func g(t *T) { t.mu.Lock() }`)
			expect(t, tc.want, func(tb testing.TB) { rules.Gate(tb, dir, "gate.go") })
		})
	}
}

func TestGateListCannotRot(t *testing.T) {
	dir := lay(t, "gate.go", gate, "other.go", "")
	expect(t, "other.go: named as a gate", func(tb testing.TB) { rules.Gate(tb, dir, "gate.go", "other.go") })
	expect(t, "gone.go: named as a gate", func(tb testing.TB) { rules.Gate(tb, dir, "gate.go", "gone.go") })
	expect(t, "no Go files", func(tb testing.TB) { rules.Gate(tb, t.TempDir()) })
}

func TestCore(t *testing.T) {
	for name, tc := range map[string]struct{ src, want string }{
		"plain":        {"import \"fmt\"\nfunc f() { fmt.Sprint() }", ""},
		"time's types": {"import \"time\"\nfunc f(now time.Time) time.Time { return now.Add(2 * time.Second) }", ""},
		"time.Now":     {"import \"time\"\nvar t = time.Now()", "core.go:3:9: time.Now in a core"},
		"time.Since":   {"import t \"time\"\nvar f = t.Since", "time.Since"},
		"timer":        {"import \"time\"\nvar t *time.Timer", "time.Timer"},
		"sync":         {`import _ "sync"`, "imports sync"},
		"sync/atomic":  {`import "sync/atomic"`, "imports sync/atomic"},
		"uber atomic":  {`import "go.uber.org/atomic"`, "imports go.uber.org/atomic"},
		"errgroup":     {`import "golang.org/x/sync/errgroup"`, "imports golang.org/x/sync/errgroup"},
		"context":      {`import "context"`, "imports context"},
		"log":          {`import "log"`, "imports log"},
		"slog":         {"import `log/slog`", "imports log/slog"},
		"chance":       {`import "math/rand/v2"`, "imports math/rand/v2"},
		"channel":      {`type T struct{ c chan int }`, "a channel"},
		"go":           {`func f() { go f() }`, "a goroutine"},
		"select":       {`func f() { select {} }`, "a select"},
		"send":         {`func f(t T) { t.c <- 1 }`, "a send"},
		"receive":      {`func f(t T) { <-t.c }`, "a receive"},
		"close":        {`func f(t T) { close(t.c) }`, "a close"},
		"a namesake":   {`func f(t T) { t.close(); t.Now() }`, ""},
		"not Go":       {`func`, "expected"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := lay(t, "core.go", tc.src, "shell.go", `func s() { go s() }`)
			expect(t, tc.want, func(tb testing.TB) { rules.Core(tb, dir, "core.go") })
		})
	}
	expect(t, "gone.go", func(tb testing.TB) { rules.Core(tb, t.TempDir(), "gone.go") })
}

func TestPanics(t *testing.T) {
	for name, tc := range map[string]struct{ src, want string }{
		"plain":       {`func f() {}`, ""},
		"bug":         {`func f() { panic("p: bug: lost a job") }`, ""},
		"formatted":   {"import \"fmt\"\nfunc f() { panic(fmt.Sprintf(\"bug: %d\", 1)) }", ""},
		"helper":      {`func f() { panic(bugf("lost")) }`, ""},
		"other words": {`func f() { panic("bad argument") }`, `p.go:2:12: a panic that does not say "bug"`},
		"debug":       {`func f() { panic("debug") }`, "a panic"},
		"error":       {`func f(err error) { panic(err) }`, "a panic"},
		"exit":        {"import \"os\"\nfunc f() { os.Exit(1) }", "os.Exit"},
		"fatal":       {"import \"log\"\nfunc f() { log.Fatalf(\"bug\") }", "log.Fatalf"},
		"Goexit":      {"import \"runtime\"\nfunc f() { runtime.Goexit() }", "runtime.Goexit"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := lay(t, "p.go", tc.src, "p_test.go", `func g() { panic("test") }`)
			expect(t, tc.want, func(tb testing.TB) { rules.Panics(tb, dir) })
		})
	}
}

func TestSleeps(t *testing.T) {
	const imports = "import (\"testing/synctest\"; \"time\"; \"pgregory.net/rapid\")\n"
	for name, tc := range map[string]struct{ src, want string }{
		"plain":          {`func f() { time.After(1) }`, ""},
		"sleep":          {`func f() { time.Sleep(1) }`, "p_test.go:3:12: time.Sleep"},
		"in a bubble":    {`func f() { synctest.Test(t, func() { time.Sleep(1) }) }`, ""},
		"rapid's bubble": {`func f() { rapid.SyncTest(t, func() { time.Sleep(1) }) }`, ""},
		"Eventually":     {`func f() { require.Eventually(t, nil, 1, 1) }`, "Eventually in a test"},
		"a method":       {`func f() { require.New(t).Neverf() }`, "Neverf in a test"},
		"excused":        {"func f() { time.Sleep(1) } //rules:sleep the peer is another process", ""},
		"no reason":      {"func f() { time.Sleep(1) } //rules:sleep", "time.Sleep"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := lay(t, "a/b/p_test.go", imports+tc.src, "p.go", imports+`func g() { time.Sleep(1) }`,
				"testdata/x_test.go", "not Go")
			expect(t, tc.want, func(tb testing.TB) { rules.Sleeps(tb, dir) })
		})
	}
}
