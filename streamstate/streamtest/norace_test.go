//go:build !race

package streamtest_test

const raceDetector = false
