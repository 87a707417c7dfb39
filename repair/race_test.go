//go:build race

package repair

const raceDetector = true
