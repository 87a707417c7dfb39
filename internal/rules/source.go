package rules

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// source is one parsed file and the violations found in it.
type source struct {
	t    testing.TB
	name string // the file's base name
	fset *token.FileSet
	file *ast.File
}

// errorf reports a violation at a node.
func (s *source) errorf(at ast.Node, format string, args ...any) {
	s.t.Helper()
	s.t.Errorf("%v: "+format, append([]any{s.fset.Position(at.Pos())}, args...)...)
}

// parse reads one file. It reports nil after a fatal error of a t that does not stop its goroutine.
func parse(t testing.TB, file string) *source {
	t.Helper()
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, file, nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatalf("rules: %v", err)
		return nil
	}
	return &source{t: t, name: filepath.Base(file), fset: fset, file: f}
}

// sources parses the non-test files of one package directory.
func sources(t testing.TB, dir string) []*source {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatalf("rules: %v", err)
		return nil
	}
	var out []*source
	for _, e := range entries {
		if n := e.Name(); strings.HasSuffix(n, ".go") && !strings.HasSuffix(n, "_test.go") {
			out = append(out, parse(t, filepath.Join(dir, n)))
		}
	}
	if len(out) == 0 {
		t.Fatalf("rules: no Go files in %s", dir)
	}
	return slices.DeleteFunc(out, func(s *source) bool { return s == nil })
}

// imports maps the name that each import has in the file to its path. A dot import is reported: it would hide names.
func (s *source) imports() map[string]string {
	s.t.Helper()
	m := make(map[string]string)
	for _, spec := range s.file.Imports {
		p, _ := strconv.Unquote(spec.Path.Value) // the parser has checked it
		name := path.Base(p)
		if spec.Name != nil {
			name = spec.Name.Name
		}
		if name == "." {
			s.errorf(spec, "dot import of %s", p)
		}
		m[name] = p
	}
	return m
}

// qualified splits a selector pkg.Name of an imported package into import path and name.
func qualified(n ast.Node, imports map[string]string) (pkg, name string, ok bool) {
	sel, ok := n.(*ast.SelectorExpr)
	if !ok {
		return "", "", false
	}
	x, ok := sel.X.(*ast.Ident)
	if !ok {
		return "", "", false
	}
	pkg, ok = imports[x.Name]
	return pkg, sel.Sel.Name, ok
}
