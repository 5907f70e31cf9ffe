package inject

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
)

// savedThreads is the content of the file that a borrower leaves for [ReturnBorrowed].
type savedThreads struct {
	PID int `json:"pid"`
	// Instruction is the address of the instruction with which the threads enter the
	// kernel.
	Instruction uint64        `json:"instruction"`
	Threads     []savedThread `json:"threads"`
}

// savedThread is a thread as it was before it was borrowed.
type savedThread struct {
	TID       int        `json:"tid"`
	StartTime uint64     `json:"start_time"` // of the thread, as [proc.Ident] has it
	Registers registers  `json:"registers"`
	Mask      signalMask `json:"mask"`
}

// write does not call fsync: the page cache outlives this program, and the threads do not
// outlive the page cache.
func (s savedThreads) write(path string) error {
	data, err := json.Marshal(s)
	if err == nil {
		err = renameio.WriteFile(path, append(data, '\n'), 0o600, renameio.WithTempDir(filepath.Dir(path)))
	}
	if err != nil {
		return fmt.Errorf("save the registers of process %d: %w", s.PID, err)
	}
	return nil
}

func readSavedThreads(path string) (savedThreads, error) {
	var s savedThreads
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if err == nil && (s.PID <= 0 || s.Instruction == 0 || len(s.Threads) == 0) {
		err = errors.New("it is not complete")
	}
	if err != nil {
		return s, fmt.Errorf("registers of borrowed threads in %s: %w", path, err)
	}
	return s, nil
}
