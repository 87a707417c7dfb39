package jobtracker

import (
	"math/bits"
	"testing"

	"github.com/stretchr/testify/require"
)

// ruleOf is the table of the documentation, in words: when a job of a kind is acked and when it fails, of n replicas with
// quorum w. It is written from the promise, replica by replica, not from the masks' algebra.
func ruleOf(k Kind, snapshot bool, n, w int, voters, done, bad uint8) (acked, failed bool) {
	votersDone, votersOut, noGood := 0, 0, 0
	for r := range n {
		votes, isDone, isBad := voters>>r&1 == 1, done>>r&1 == 1, bad>>r&1 == 1
		switch {
		case votes && isDone:
			votersDone++
		case votes && !isBad:
			votersOut++
		default:
			noGood++ // it failed, was skipped, or has no vote
		}
	}
	switch k {
	case Read, Copy: // one voter; fails when none can still succeed
		return votersDone >= 1, votersDone == 0 && votersOut == 0
	case Write, Zero, Trim:
		return votersDone >= w, noGood > n-w
	case Flush:
		if snapshot {
			return votersDone == n, noGood > 0
		}
		return votersDone >= w, noGood > n-w
	case Barrier: // all voters, that are still any good, and not too many that are none
		return votersOut == 0 && noGood <= n-w, noGood > n-w
	}
	return false, false
}

// Every kind, n, W, and mask of voters, done and bad replicas.
func TestJ09_AckRulesAreTheTable(t *testing.T) {
	rows := 0
	for k := Read; k < numKinds; k++ {
		for _, snapshot := range []bool{false, true} {
			if snapshot && k != Flush {
				continue
			}
			rule := ackRules[k]
			if snapshot {
				rule = snapshotRule
			}
			for n := 1; n <= MaxReplicas; n++ {
				all := uint8(1<<n - 1)
				for w := 1; w <= n; w++ {
					for state := range pow(3, n) { // each replica is outstanding, done or bad
						done, bad := masks(state, n)
						for voters := uint8(1); voters <= all; voters++ {
							rows++
							v := judge(rule, n, w, voters, done, bad)
							acked, failed := ruleOf(k, snapshot, n, w, voters, done, bad)
							if v != verdictOf(acked, failed) || acked && failed {
								t.Fatalf("%v, snapshot %v, %d of %d, voters %b, done %b, bad %b: %d, the table says %v %v", k, snapshot, w, n, voters, done, bad, v, acked, failed)
							}
							if done|bad == all && v == pending {
								t.Fatalf("%v of %d of %d: all are terminal, and it is undecided: voters %b, done %b", k, w, n, voters, done)
							}
						}
					}
				}
			}
		}
	}
	require.Greater(t, rows, 10_000_000)
}

func verdictOf(ok, bad bool) verdict {
	switch {
	case ok:
		return acked
	case bad:
		return failed
	}
	return pending
}

// Once it is decided, no further answer decides it otherwise.
func TestJ09_VerdictsAreFinal(t *testing.T) {
	for k := Read; k < numKinds; k++ {
		for n := 1; n <= 5; n++ {
			for w := 1; w <= n; w++ {
				for state := range pow(3, n) {
					done, bad := masks(state, n)
					for voters := uint8(1); voters < 1<<n; voters++ {
						v := judge(ackRules[k], n, w, voters, done, bad)
						if v == pending {
							continue
						}
						for r := range n {
							bit := uint8(1) << r
							if (done|bad)&bit != 0 {
								continue
							}
							if judge(ackRules[k], n, w, voters, done|bit, bad) != v || judge(ackRules[k], n, w, voters, done, bad|bit) != v {
								t.Fatalf("%v of %d of %d: voters %b, done %b, bad %b is %d, and replica %d changes that", k, w, n, voters, done, bad, v, r)
							}
						}
					}
				}
			}
		}
	}
}

// masks are which replicas are done and bad in the state of this number, in base 3.
func masks(state, n int) (done, bad uint8) {
	for r := range n {
		switch state % 3 {
		case 1:
			done |= 1 << r
		case 2:
			bad |= 1 << r
		}
		state /= 3
	}
	return done, bad
}

func pow(b, n int) int {
	p := 1
	for range n {
		p *= b
	}
	return p
}

// Every kind has a rule, no two that say the same differ, and a snapshot is the strictest.
func TestJ09_RuleTable(t *testing.T) {
	require.Len(t, ackRules, numKinds)
	require.Equal(t, ackRules[Write], ackRules[Zero])
	require.Equal(t, ackRules[Write], ackRules[Trim])
	require.NotEqual(t, ackRules[Flush], snapshotRule)
	for n := 1; n <= MaxReplicas; n++ {
		all := uint8(1<<n - 1)
		require.Equal(t, acked, judge(snapshotRule, n, 1, all, all, 0))
		require.Equal(t, failed, judge(snapshotRule, n, 1, all, all&^1, 1))
		require.Equal(t, n, bits.OnesCount8(all))
	}
}
