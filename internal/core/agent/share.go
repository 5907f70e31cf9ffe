package agent

import (
	"encoding/binary"
	"math"
)

// Owner is a name that a library has given itself, by which others know whose memory they have.
type Owner [24]byte

// Link is memory that a process has given to others, or opened of another's.
type Link struct {
	Owner   Owner
	Number  uint64 // of the owner's
	Opened  uint32 // not 0: it is another process's
	Movable uint32 // not 0: it can be taken down and put up again
}

// mostLinks is MOST_LINKS of share.h.
const mostLinks = 4096

// Batch is BATCH of rights.h: how many descriptors a message of [Give] has at most.
const Batch = 64

// MessageBytes is the size of a message of [Give]: struct given of share.c.
const MessageBytes = 24 + Batch*16

// MostShared is how many descriptors of parts a process can give.
const MostShared = 1 << 17

// KnowsOwners reports whether the library knows [List].
func (a *Agent) KnowsOwners() bool {
	box, err := a.read()
	return err == nil && box.Version >= 4
}

// ServesAll reports whether the library can take down what the process has of others: it knows [List], and the driver alone gave
// the process nothing, as far as the library tells.
func (a *Agent) ServesAll() bool {
	box, err := a.read()
	return err == nil && box.Version >= 4 && box.Unserved == 0
}

// Links returns what [List] has found.
func (a *Agent) Links() ([]Link, error) {
	box, err := a.read()
	if err != nil || box.Version < 4 || box.Count == 0 {
		return nil, err
	}
	links := make([]Link, min(box.Count, mostLinks))
	return links, a.readTable(links, box.Links)
}

// GiveFrom has the next [Give] begin with a part, as they are counted over all memory that was given.
func (a *Agent) GiveFrom(part uint64) error {
	if _, err := a.read(); err != nil {
		return err
	}
	const behind = 16 // From and Given
	return a.process.WriteMemory(binary.LittleEndian.AppendUint64(nil, part), a.address+uint64(endOf(4)-behind))
}

// MostTaken returns how many messages one [Take] can take: an older library takes one.
func (a *Agent) MostTaken() (int, error) {
	box, err := a.read()
	if box.Version < 8 {
		return 1, err
	}
	return math.MaxInt, err
}

// SetTakes says how many messages the next [Take] finds.
func (a *Agent) SetTakes(messages int) error {
	box, err := a.read()
	if err != nil || box.Version < 8 {
		return err
	}
	return a.process.WriteMemory(binary.LittleEndian.AppendUint64(nil, uint64(messages)), a.address+uint64(endOf(7)))
}
