package hosts

// PowerOff ends a host from one moment to the next: its processes are gone without a word to
// the other host, and so is all that was in its memory, /run and /dev/shm. What was not
// synced to a disk is not lost.
func (h *Host) PowerOff() {
	h.pair.t.Helper()
	h.pair.Cut()
	h.end()
	h.init = nil
}

// Boot starts a host again after [Host.PowerOff], and heals the link. It has another boot id.
func (h *Host) Boot() {
	h.pair.t.Helper()
	h.boot()
	h.pair.Heal()
	h.startServers()
}
