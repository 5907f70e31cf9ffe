package criuimage

import (
	"encoding/binary"
	"fmt"
	"path/filepath"

	"github.com/google/renameio/v2"
	"google.golang.org/protobuf/proto"
)

// clearDeathSignal takes out of the images of a dump that the threads of its root get a signal when their
// parent ends (PR_SET_PDEATHSIG). That parent is not in the images: the root's parent after a restore is
// criu, and its end says nothing about the job. All other processes keep theirs.
func clearDeathSignal(dir string, threads []int) error {
	for _, tid := range threads {
		core, err := readCore(dir, tid)
		if err != nil {
			return err
		}
		if core.GetThreadCore().GetPdeathSig() == 0 {
			continue
		}
		core.ThreadCore.PdeathSig = nil
		head, _, err := readFrames(dir, coreName(tid), "CORE")
		if err != nil {
			return err
		}
		body, err := proto.Marshal(core)
		if err != nil {
			return fmt.Errorf("image %s: %w", coreName(tid), err)
		}
		data := append(binary.LittleEndian.AppendUint32(head, uint32(len(body))), body...)
		path := filepath.Join(dir, coreName(tid))
		if err := renameio.WriteFile(path, data, 0o600, renameio.WithTempDir(dir), renameio.WithExistingPermissions()); err != nil {
			return fmt.Errorf("image %s: %w", coreName(tid), err)
		}
	}
	return nil
}
