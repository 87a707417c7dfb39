package main

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// asIndexer in the environment makes the test's own binary the program; the instances of a demonstration inherit it.
const asIndexer = "INDEXER_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asIndexer) != "" {
		os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
	}
	goleak.VerifyTestMain(m)
}
