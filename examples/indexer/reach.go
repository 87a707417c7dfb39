package main

import (
	"context"
	"errors"
	"log"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// reach tells which brokers cannot be reached, and when they can be again. The client tries for ever and says nothing.
type reach struct {
	log *log.Logger
	mu  sync.Mutex
	// +checklocks:mu
	lost map[string]bool // by address
}

// OnBrokerConnect is called by the client for each attempt.
func (r *reach) OnBrokerConnect(broker kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	if errors.Is(err, context.Canceled) {
		return // it ends
	}
	at := net.JoinHostPort(broker.Host, strconv.Itoa(int(broker.Port)))
	r.mu.Lock()
	defer r.mu.Unlock()
	switch was := r.lost[at]; {
	case err != nil && !was:
		r.log.Printf("broker %s cannot be reached: %v; trying again", at, err)
		r.lost[at] = true
	case err == nil && was:
		r.log.Printf("broker %s is reached again", at)
		delete(r.lost, at)
	}
}
