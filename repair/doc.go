// Package repair puts back together what a fault took apart. It is drivers: each runs as long as one call, over an
// interface of the caller's, and keeps no state of its own that outlives the call. The state of a repair lives in the
// record that is repaired, and is reached by tickets, so whatever happens to the record meanwhile ends the ticket, and
// an answer that comes late is refused.
package repair
