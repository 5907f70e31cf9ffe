package criuimage

import "slices"

// Credentials are the rights of a thread in the images.
type Credentials struct {
	PID, TID     int
	UIDs, GIDs   []uint32 // real, effective, saved, and that for files
	Groups       []uint32
	Capabilities uint64 // effective, permitted and inheritable ones together
}

// ReadCredentials returns the rights of all threads.
func ReadCredentials(dir string) ([]Credentials, error) {
	tree, err := ReadTree(dir)
	if err != nil {
		return nil, err
	}
	var all []Credentials
	for _, task := range tree.Tasks {
		for _, tid := range slices.Compact(slices.Sorted(slices.Values(append([]int{task.PID}, task.Threads...)))) {
			core, err := readCore(dir, tid)
			if err != nil {
				return nil, err
			}
			creds := core.GetThreadCore().GetCreds()
			if creds == nil {
				continue // a zombie has none
			}
			c := Credentials{
				PID: task.PID, TID: tid,
				UIDs:   []uint32{creds.GetUid(), creds.GetEuid(), creds.GetSuid(), creds.GetFsuid()},
				GIDs:   []uint32{creds.GetGid(), creds.GetEgid(), creds.GetSgid(), creds.GetFsgid()},
				Groups: creds.GetGroups(),
			}
			for _, set := range [][]uint32{creds.GetCapEff(), creds.GetCapPrm(), creds.GetCapInh()} {
				for i, word := range set[:min(2, len(set))] {
					c.Capabilities |= uint64(word) << (32 * i)
				}
			}
			all = append(all, c)
		}
	}
	return all, nil
}
