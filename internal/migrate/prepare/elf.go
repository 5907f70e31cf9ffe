package prepare

import (
	"debug/elf"
	"encoding/hex"
	"os"

	"golang.org/x/sys/unix"
)

// noteHead is what precedes a build id in its section: a header of three words, and "GNU\0".
const noteHead = 16

// buildID returns GNU's build id of a file, in hexadecimal; empty if it is not an ELF file or has none.
func buildID(path string) string {
	// Opening a named pipe must not wait.
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return ""
	}
	defer file.Close()
	program, err := elf.NewFile(file)
	if err != nil {
		return ""
	}
	section := program.Section(".note.gnu.build-id")
	if section == nil || section.Size <= noteHead || section.Size > noteHead+maxBuildID {
		return ""
	}
	note, err := section.Data()
	if err != nil {
		return ""
	}
	return hex.EncodeToString(note[noteHead:])
}
