// Package repair puts back together what a fault took apart. It is drivers: each runs as long as one call, over an
// interface of the caller's. [Stream] drives the repair of a session of streamstate:
//
//	for {
//		err := repair.Stream(ctx, s, source, repair.StreamOptions{})
//		due, ok := errors.AsType[*repair.RecoveryDueError](err)
//		if !ok {
//			return err // the session has ended, or ctx
//		}
//		if err := s.Stop(due).Wait(ctx); err != nil { // nil: it is stopped, and no flush runs any more
//			return err
//		}
//		s, err = book.Reopen(s, streamstate.ReopenOptions[*index]{Carry: carry, Pending: true})
//		if err != nil {
//			return err
//		}
//		at, err := s.Timestamp() // where the next session begins
//		if err == nil {
//			err = rollBack(at) // the data, to there
//		}
//		if err == nil {
//			err = s.Opened()
//		}
//		if err != nil {
//			return errors.Join(err, s.OpenFailed(err)) // not Active: nothing is accepted for data that is not rolled back
//		}
//	}
//
// A flush may be done, and a partition given up, between the error and Stop. So it is the next session that says how far the
// data is to be rolled back; the error's Restart is how far it was when recovery came due.
//
// [Live] brings a replica of jobtracker back while the device goes on. [Reconcile] makes replicas equal whose contents may
// differ when an activation is to begin.
//
// # What it promises
//
//   - The state of a repair lives in the record that is repaired, as a table with armed deadlines, and is reached by
//     tickets. So nothing here can disagree with it: whatever happens to the record meanwhile ends the ticket, and an
//     answer that comes late is refused and changes nothing.
//   - A driver belongs to one session, or one repair of a replica. It ends with it, and when it returns every call it
//     made has returned; so it never acts for a successor.
//   - It waits for events, each with a cap that is armed by an event. It does not poll: while nothing is due it does not
//     run at all.
//   - What can never succeed is tried a bounded number of times, with pauses that grow and are jittered.
//   - Who is told of it cannot hold it up.
//
// Ids such as R16 in these docs name faults, each with what must come of it and a test: docs/SCENARIOS.md lists them.
//
// # Concurrency
//
// The package has no lock. Each call may be made on any goroutine; it runs the caller's functions on goroutines of its
// own, and returns when they have returned. It does not recover their panics; one that
// goes through [Live] or [Reconcile] ends the ticket on its way.
package repair
