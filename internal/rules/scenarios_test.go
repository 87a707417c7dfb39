package rules_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/staleproof/staleproof/internal/rules"
)

var (
	scenarioRow  = regexp.MustCompile("(?m)^\\| ([SJR][0-9]{2}) \\| .* \\| `(\\w+)` `(Test\\w+)` \\|$")
	scenarioTest = regexp.MustCompile(`(?m)^func (Test([SJR][0-9]{2})\w*)\(`)
)

// TestScenarios holds docs/SCENARIOS.md to the tests: each row names a test of its id that exists, has a mutant, and each
// test that is named after a row has one.
func TestScenarios(t *testing.T) {
	tests := map[string]bool{} // package and name
	ids := map[string]bool{}
	rules.Files(t, root, func(path string) {
		if !strings.HasSuffix(path, "_test.go") {
			return
		}
		text, err := os.ReadFile(filepath.Join(root, path))
		require.NoError(t, err)
		for _, m := range scenarioTest.FindAllStringSubmatch(string(text), -1) {
			tests[filepath.Base(filepath.Dir(path))+" "+m[1]] = true
			ids[m[2]] = true
		}
	})
	text, err := os.ReadFile(filepath.Join(root, "docs", "SCENARIOS.md"))
	require.NoError(t, err)
	rows := scenarioRow.FindAllStringSubmatch(string(text), -1)
	require.Len(t, rows, strings.Count(string(text), "\n| S")+strings.Count(string(text), "\n| J")+strings.Count(string(text), "\n| R"),
		"a row that is not like the others")
	last := ""
	for _, row := range rows {
		id, pkg, name := row[1], row[2], row[3]
		require.True(t, last == "" || last[0] != id[0] || last < id, "%s comes after %s", id, last)
		require.True(t, strings.HasPrefix(name, "Test"+id), "%s is no test of %s", name, id)
		require.True(t, tests[pkg+" "+name], "%s: package %s has no %s", id, pkg, name)
		patches, err := filepath.Glob(filepath.Join(root, "internal", "mutants", id+"-*.patch"))
		require.NoError(t, err)
		require.NotEmpty(t, patches, "%s has no mutant", id)
		delete(ids, id)
		last = id
	}
	require.Empty(t, ids, "tests are named after rows that docs/SCENARIOS.md has not got")
}
