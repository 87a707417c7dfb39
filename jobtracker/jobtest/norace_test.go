//go:build !race

package jobtest_test

const raceDetector = false
