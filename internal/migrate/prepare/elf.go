package prepare

import (
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

const maxNotes = 1 << 20 // bytes; a program has a few hundred

// buildID returns the build id of a file, in hexadecimal; empty if it is no ELF file or has none.
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
	for _, part := range program.Progs {
		if part.Type != elf.PT_NOTE || part.Filesz > maxNotes {
			continue
		}
		notes := make([]byte, part.Filesz)
		if _, err := io.ReadFull(part.Open(), notes); err != nil {
			continue
		}
		align := uint64(4)
		if part.Align == 8 {
			align = 8
		}
		if id := noteOf(notes, program.ByteOrder, align); id != nil {
			return hex.EncodeToString(id)
		}
	}
	return ""
}

// noteOf finds GNU's build id among notes. Each is a header of three words, a name and a content,
// padded to the alignment.
func noteOf(notes []byte, order binary.ByteOrder, align uint64) []byte {
	const header, typeBuildID = 12, 3
	round := func(n uint64) uint64 { return (n + align - 1) / align * align }
	for len(notes) >= header {
		nameSize, size, kind := uint64(order.Uint32(notes)), uint64(order.Uint32(notes[4:])), order.Uint32(notes[8:])
		content := round(header + nameSize)
		end := content + size
		if end > uint64(len(notes)) {
			return nil
		}
		if kind == typeBuildID && string(notes[header:header+nameSize]) == "GNU\x00" && size > 0 && size <= maxBuildID {
			return notes[content:end]
		}
		notes = notes[min(round(end), uint64(len(notes))):]
	}
	return nil
}
