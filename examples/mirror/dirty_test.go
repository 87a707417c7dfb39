package main

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/staleproof/staleproof/jobtracker"
)

func TestBitmap(t *testing.T) {
	b := newBitmap(130)
	require.Len(t, b, 3)
	require.False(t, b.any())
	for _, i := range []int{0, 63, 64, 129} {
		b.set(i)
		require.True(t, b.has(i))
	}
	require.Equal(t, 4, b.count())
	require.True(t, b.within(130))
	require.False(t, b.within(129))
	b.drop(64)
	var got []int
	for i := range b.each {
		got = append(got, i)
		if i == 63 {
			break
		}
	}
	require.Equal(t, []int{0, 63}, got)
}

func never(int) bool { return false }

// TestMarksWaitForTheCopy: a bit may be relied on only when a copy that has it is durable, and none is on its way that
// lacks it.
func TestMarksWaitForTheCopy(t *testing.T) {
	m := newMarks(newBitmap(64))
	require.False(t, m.require(3, 5))
	require.True(t, m.unsaved())
	require.False(t, m.require(3, 5), "wanted is not durable")
	m.launch(never)
	require.False(t, m.require(3, 5), "on its way is not durable")
	require.False(t, m.require(9, 10), "came too late for this copy")
	m.landed()
	require.True(t, m.require(3, 5))
	require.False(t, m.require(4, 10))
	require.True(t, m.unsaved())
}

// TestMarksClearNeverRacesASet: while a copy without a bit is on its way, the bit cannot be relied on, whatever is durable.
func TestMarksClearNeverRacesASet(t *testing.T) {
	durable := newBitmap(64)
	durable.set(3)
	m := newMarks(durable)
	require.True(t, m.require(3, 4))
	m.launch(func(e int) bool { return e == 3 })
	require.False(t, m.require(3, 4), "it is being cleared")
	m.landed()
	require.True(t, m.unsaved(), "it must be set again")
	require.False(t, m.require(3, 4))
	m.launch(never)
	m.landed()
	require.True(t, m.require(3, 4))
	require.False(t, m.unsaved())
}

func TestFenceNeedsEveryReplica(t *testing.T) {
	b := newExtentBook(4, 3)
	b.wrote(5, 1, 3)
	for r := range 3 {
		require.Zero(t, b.fence())
		b.flushed(r, 7)
	}
	require.Equal(t, jobtracker.JobID(7), b.fence())
	require.True(t, b.clean(0, 7))
	require.True(t, b.clean(1, 7))
	b.wrote(8, 2, 3)
	require.True(t, b.clean(1, 7))
	require.False(t, b.clean(2, 7), "written since")
	b.flushed(0, 9)
	b.flushed(1, 9)
	require.Equal(t, jobtracker.JobID(7), b.fence(), "one has not done it")
	b.joined(2)
	require.Zero(t, b.fence(), "one that has just begun to vote vouches for nothing")
	b.flushed(2, 12)
	require.Zero(t, b.fence(), "9 was done without it, 12 by it alone")
	b.flushed(0, 12)
	b.flushed(1, 12)
	require.Equal(t, jobtracker.JobID(12), b.fence())
}

// TestDirtyModel is the rule itself: however dispatches, copies, flushes and losses fall, an extent that was sent a change
// which is not flushed on all replicas has its bit on every replica that was sent it. A crash may come at any moment, so
// it is looked at after every step, with the copy on its way landed or not.
func TestDirtyModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const extents, replicas = 6, 3
		book := newExtentBook(extents, replicas)
		var marks [replicas]marks
		for r := range marks {
			marks[r] = newMarks(newBitmap(extents))
		}
		type change struct {
			id  jobtracker.JobID
			ext int
		}
		var (
			next   jobtracker.JobID   = 1
			todo   [replicas][]change // admitted, not dispatched; in order
			wait   [replicas][]change // dispatched, waits for its bit
			sent   []change           // sent to some replica, with the replica
			sentTo []int
			fences [replicas][]jobtracker.JobID // flushes admitted, not done
			last   [replicas]jobtracker.JobID
		)
		send := func(r int) {
			still := wait[r][:0]
			for _, c := range wait[r] {
				if marks[r].require(c.ext, c.ext+1) {
					sent, sentTo = append(sent, c), append(sentTo, r)
				} else {
					still = append(still, c)
				}
			}
			wait[r] = still
		}
		replica := rapid.IntRange(0, replicas-1)
		t.Repeat(map[string]func(*rapid.T){
			"write": func(t *rapid.T) {
				c := change{next, rapid.IntRange(0, extents-1).Draw(t, "extent")}
				next++
				for r := range replicas {
					todo[r] = append(todo[r], c)
				}
			},
			"flush": func(*rapid.T) {
				for r := range replicas {
					fences[r] = append(fences[r], next)
				}
				next++
			},
			"dispatch": func(t *rapid.T) {
				r := replica.Draw(t, "replica")
				if len(todo[r]) == 0 || len(fences[r]) > 0 && todo[r][0].id > fences[r][0] {
					t.Skip("waits for a flush")
				}
				c := todo[r][0]
				todo[r] = todo[r][1:]
				book.wrote(c.id, c.ext, c.ext+1)
				marks[r].require(c.ext, c.ext+1)
				wait[r] = append(wait[r], c)
				send(r)
			},
			"flushed": func(t *rapid.T) {
				r := replica.Draw(t, "replica")
				if len(fences[r]) == 0 || len(wait[r]) > 0 || len(todo[r]) > 0 && todo[r][0].id < fences[r][0] {
					t.Skip("waits for a write")
				}
				last[r] = fences[r][0]
				fences[r] = fences[r][1:]
				book.flushed(r, last[r])
			},
			"copy": func(t *rapid.T) {
				r := replica.Draw(t, "replica")
				if marks[r].flying != nil {
					marks[r].landed()
					send(r)
					return
				}
				fence := jobtracker.JobID(0)
				if rapid.Bool().Draw(t, "tidy") {
					fence = book.fence()
				}
				marks[r].launch(func(e int) bool { return book.clean(e, fence) })
			},
			"lost": func(t *rapid.T) { // its connection: the copy on its way has landed or not, and all is asked again
				r := replica.Draw(t, "replica")
				durable := marks[r].durable
				if marks[r].flying != nil && rapid.Bool().Draw(t, "landed") {
					durable = marks[r].flying
				}
				marks[r] = newMarks(durable)
				todo[r] = append(wait[r], todo[r]...)
				wait[r] = nil
			},
			"": func(t *rapid.T) {
				done := min(last[0], last[1], last[2])
				for i, c := range sent {
					if c.id < done {
						continue
					}
					m := marks[sentTo[i]]
					require.True(t, m.durable.has(c.ext), "job %d, extent %d, replica %d", c.id, c.ext, sentTo[i])
					require.True(t, m.flying == nil || m.flying.has(c.ext), "job %d, extent %d, replica %d: being cleared", c.id, c.ext, sentTo[i])
				}
			},
		})
	})
}
