package streamstate

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// What the model and the exploration have found, as tests of their own.

// TestGivenUpIsForgottenByTheLadder: a partition that was restarted, given up and wanted again begins with a clean record.
// Its first failure is no sign that a repair did not last.
func TestGivenUpIsForgottenByTheLadder(t *testing.T) {
	l := newLedger(t, false, "Due") // and its restart has been handed out
	require.NoError(t, l.s.Unwant(0).Err())
	require.NoError(t, l.s.Want(0))
	require.NoError(t, l.begin(0, Begin{Owner: "A"}).End(Failed))
	require.Equal(t, RungRestart, l.at(0).Rung)
}

// TestReplacedClaimIsWatchedToo: after a repair the claim of a higher term, which replaces the one that began, ends the
// repair when it has lived long enough.
func TestReplacedClaimIsWatchedToo(t *testing.T) {
	l := newLedger(t, false, "Due") // and its restart has been handed out
	l.begin(0, Begin{Owner: "A", Term: 5})
	c := l.begin(0, Begin{Owner: "A", Term: 6})
	require.NoError(t, ledgerCalls["deadline"](l))
	require.NoError(t, c.End(Failed))
	require.Equal(t, RungRestart, l.at(0).Rung)
}
