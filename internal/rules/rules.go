package rules

import (
	"go/ast"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// lockMethods are the names that only a gate may mention.
var lockMethods = []string{"Lock", "RLock", "TryLock", "TryRLock", "Unlock", "RUnlock"}

// lockTypes are the names of package sync that only a gate may mention.
var lockTypes = []string{"Mutex", "RWMutex", "Locker", "Cond", "NewCond"}

// Gate fails t where a non-test file of the package in dir, other than the gate files, takes, releases or declares a
// lock. A gate file without a lock fails too.
func Gate(t testing.TB, dir string, gateFiles ...string) {
	t.Helper()
	seen := make(map[string]bool)
	for _, s := range sources(t, dir) {
		isGate := slices.Contains(gateFiles, s.name)
		imports := s.imports()
		ast.Inspect(s.file, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			pkg, name, _ := qualified(n, imports)
			if pkg == "sync" && slices.Contains(lockTypes, name) || slices.Contains(lockMethods, sel.Sel.Name) {
				seen[s.name] = true
				if !isGate {
					s.errorf(n, "%s outside the gate (%s)", sel.Sel.Name, strings.Join(gateFiles, ", "))
				}
			}
			return true
		})
	}
	for _, f := range gateFiles {
		if !seen[f] {
			t.Errorf("%s: named as a gate, but it has no lock", filepath.Join(dir, f))
		}
	}
}

// impure are the packages that a core does without: each brings a lock, a clock, chance or the outside world. A
// path ending in a slash stands for all below it.
var impure = []string{
	"context", "crypto/rand", "go.uber.org/atomic", "golang.org/x/sync/", "hash/maphash", "log", "log/", "math/rand",
	"math/rand/", "net", "net/", "os", "os/", "runtime", "runtime/", "sync", "sync/", "syscall", "testing", "testing/",
}

// timeNames are the names of package time that carry a value and read no clock.
var timeNames = []string{
	"Time", "Duration", "Nanosecond", "Microsecond", "Millisecond", "Second", "Minute", "Hour",
}

// Core fails t where one of the core files in dir could block, race, read a clock or talk to the outside: an impure
// import, any name of package time but its two types and the units, a channel, a go statement or a select.
func Core(t testing.TB, dir string, coreFiles ...string) {
	t.Helper()
	for _, f := range coreFiles {
		s := parse(t, filepath.Join(dir, f))
		if s == nil {
			return
		}
		s.checkImports()
		imports := s.imports()
		ast.Inspect(s.file, func(n ast.Node) bool {
			s.checkCoreNode(n, imports)
			return true
		})
	}
}

func (s *source) checkImports() {
	s.t.Helper()
	for _, spec := range s.file.Imports {
		p := strings.Trim(spec.Path.Value, "`\"")
		if slices.ContainsFunc(impure, func(i string) bool {
			return p == i || strings.HasSuffix(i, "/") && strings.HasPrefix(p, i)
		}) {
			s.errorf(spec, "a core imports %s", p)
		}
	}
}

func (s *source) checkCoreNode(n ast.Node, imports map[string]string) {
	s.t.Helper()
	switch n := n.(type) {
	case *ast.ChanType:
		s.errorf(n, "a channel in a core")
	case *ast.GoStmt:
		s.errorf(n, "a goroutine in a core")
	case *ast.SelectStmt:
		s.errorf(n, "a select in a core")
	case *ast.SendStmt:
		s.errorf(n, "a send in a core")
	case *ast.UnaryExpr:
		if n.Op == token.ARROW {
			s.errorf(n, "a receive in a core")
		}
	case *ast.CallExpr:
		if id, ok := n.Fun.(*ast.Ident); ok && id.Name == "close" {
			s.errorf(n, "a close in a core")
		}
	case *ast.SelectorExpr:
		if pkg, name, ok := qualified(n, imports); ok && pkg == "time" && !slices.Contains(timeNames, name) {
			s.errorf(n, "time.%s in a core: a core takes now", name)
		}
	}
}

// exits end the process, or a goroutine that is not ours. A package's last word is an error or a panic about a bug.
var exits = map[string]*regexp.Regexp{
	"os":      regexp.MustCompile(`^Exit$`),
	"log":     regexp.MustCompile(`^(Fatal|Panic)`),
	"runtime": regexp.MustCompile(`^Goexit$`),
	"syscall": regexp.MustCompile(`^(Exit|Kill)$`),
}

var bug = regexp.MustCompile(`(?i)\bbug`)

// Panics fails t where a non-test file of the package in dir panics without saying "bug", or ends the process.
func Panics(t testing.TB, dir string) {
	t.Helper()
	for _, s := range sources(t, dir) {
		imports := s.imports()
		ast.Inspect(s.file, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				if id, ok := call.Fun.(*ast.Ident); ok && id.Name == "panic" && !saysBug(call) {
					s.errorf(call, `a panic that does not say "bug": a panic is only for a broken invariant of ours`)
				}
			}
			if pkg, name, ok := qualified(n, imports); ok && exits[pkg] != nil && exits[pkg].MatchString(name) {
				s.errorf(n, "%s.%s", pkg, name)
			}
			return true
		})
	}
}

// saysBug reports whether a string or a name in the call's arguments begins a word with "bug".
func saysBug(call *ast.CallExpr) bool {
	found := false
	for _, arg := range call.Args {
		ast.Inspect(arg, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BasicLit:
				found = found || bug.MatchString(n.Value)
			case *ast.Ident:
				found = found || bug.MatchString(n.Name)
			}
			return !found
		})
	}
	return found
}

// polls are the methods of testify that look again and again, by the wall clock.
var polls = regexp.MustCompile(`^(Eventually|EventuallyWithT|Never)f?$`)

// sleepExcuse marks a line that must wait by the wall clock, and says why.
const sleepExcuse = "//rules:sleep "

// Sleeps fails t where a test file in or below root waits by the wall clock: time.Sleep, or one of testify's polling
// methods. A sleep written inside a call of synctest.Test or rapid.SyncTest is instant, so it is fine; a line that
// ends with "//rules:sleep" and a reason is excused.
func Sleeps(t testing.TB, root string) {
	t.Helper()
	Files(t, root, func(path string) {
		if !strings.HasSuffix(path, "_test.go") {
			return
		}
		if s := parse(t, filepath.Join(root, path)); s != nil {
			s.checkSleeps()
		}
	})
}

func (s *source) checkSleeps() {
	s.t.Helper()
	excused := make(map[int]bool)
	for _, g := range s.file.Comments {
		for _, c := range g.List {
			if strings.HasPrefix(c.Text, sleepExcuse) {
				excused[s.fset.Position(c.Pos()).Line] = true
			}
		}
	}
	imports := s.imports()
	ast.Inspect(s.file, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			if _, name, ok := qualified(call.Fun, imports); ok && (name == "SyncTest" || isSynctest(call, imports)) {
				return false // a bubble: its clock is not the wall's
			}
		}
		sel, ok := n.(*ast.SelectorExpr)
		if !ok || excused[s.fset.Position(n.Pos()).Line] {
			return true
		}
		if pkg, name, ok := qualified(n, imports); ok && pkg == "time" && name == "Sleep" {
			s.errorf(n, "time.Sleep in a test: wait for the event, or use testing/synctest")
		}
		if polls.MatchString(sel.Sel.Name) {
			s.errorf(n, "%s in a test: wait for the event, or use testing/synctest", sel.Sel.Name)
		}
		return true
	})
}

func isSynctest(call *ast.CallExpr, imports map[string]string) bool {
	pkg, name, _ := qualified(call.Fun, imports)
	return pkg == "testing/synctest" && name == "Test"
}

// Files calls fn with the path, relative to root, of every regular file below root but those of version control, of
// testdata and of build output (directories whose name begins with a dot, .ci aside).
func Files(t testing.TB, root string, fn func(path string)) {
	t.Helper()
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		switch {
		case d.IsDir() && (d.Name() == "testdata" || rel != "." && d.Name() != ".ci" && strings.HasPrefix(d.Name(), ".")):
			return filepath.SkipDir
		case d.Type().IsRegular() && d.Name() != ".git": // a file in a worktree
			fn(rel)
		}
		return nil
	})
	if err != nil {
		t.Fatalf("rules: %v", err)
	}
}
