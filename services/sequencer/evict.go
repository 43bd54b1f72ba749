package sequencer

import "time"

// evictApart is how often appends at the limit of coordinates may look at all
// streams for idle ones.
const evictApart = time.Second

// evictForRoom is evictIdle for those who find no room: one of them looks, now
// and then, and not each of them.
func (s *Service) evictForRoom() {
	now, last := s.now().UnixNano(), s.evicted.Load()
	if (now < last || now-last >= int64(evictApart)) && s.evicted.CompareAndSwap(last, now) {
		s.evictIdle()
	}
}

// evictIdle lets streams go that nobody used for a while; sooner when their
// coordinates take more than half of their budget. A stream that goes is read
// back from head and directories, so the chain is absorbed that far first
// (open.go): evicted remembers how far that is.
func (s *Service) evictIdle() {
	idle := s.cfg.IdleStream
	if s.coordinates.Load() > s.cfg.CoordinateBytes/2 {
		idle /= 60
	}
	before := s.now().Add(-idle)
	for _, sh := range s.shards {
		sh.mu.Lock()
		streams := make([]*openStream, 0, len(sh.streams))
		for _, st := range sh.streams {
			streams = append(streams, st)
		}
		sh.mu.Unlock()
		for _, st := range streams {
			st.mu.Lock()
			if st.atRestLocked() && st.used.Before(before) {
				sh.evictLocked(st)
			}
			st.mu.Unlock()
		}
	}
}

// atRestLocked reports whether nothing of the stream is under way, and nobody waits
// for it.
func (st *openStream) atRestLocked() bool {
	return st.gone == nil && st.waiters == 0 && len(st.queue) == 0 && len(st.inflight) == 0 && !st.pumping
}

// evictLocked removes a stream that is at rest; st.mu is held.
func (sh *shard) evictLocked(st *openStream) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.streams[st.id] != st || !sh.serving.Load() {
		return
	}
	// Everything of the stream in the present chain lies at or below the chain's
	// newest committed slot of this shard.
	sh.evicted = max(sh.evicted, sh.committedTo)
	delete(sh.streams, st.id)
	st.gone, st.atRest = errNoLeader(sh.number), true
	st.notifyLocked() // who is about to wait opens it again
	st.uncountLocked(len(st.pieces))
	st.pieces = nil
}

// leftAtRest reports whether the stream left memory with nothing under way.
func (st *openStream) leftAtRest() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.atRest
}
