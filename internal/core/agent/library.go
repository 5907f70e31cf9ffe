package agent

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"math"
	"regexp"
)

// library is how the library's file is called; criu adds to the name of one that was removed. The tests have a small one.
var library = regexp.MustCompile(`^(guest|small).*\.so`)

// What a library of ours has at most: it is a few times smaller, whatever its version.
const (
	mostLibraries = 8 // that are called so, of a process
	mostSegments  = 32
	mostDynamic   = 128
	mostSymbols   = 4096
	mostNames     = 1 << 18 // bytes
)

var errNotOurs = errors.New("it is not the library")

// mailboxIn finds the mailbox in a library that is mapped at base, as the dynamic loader finds it. Any file may be called
// as ours is, and may say anything. So nothing is opened, which the job might notice, and nothing is read but what lies
// behind base in the memory of the process and is no longer than in ours.
func mailboxIn(read func(data []byte, address uint64) error, base uint64) (offset uint64, err error) {
	value := func(v any, at uint64) error {
		data := make([]byte, binary.Size(v))
		if err := read(data, base+at); err != nil {
			return err
		}
		_, err := binary.Decode(data, binary.LittleEndian, v)
		return err
	}
	var header elf.Header64
	if err := value(&header, 0); err != nil {
		return 0, err
	}
	if !bytes.HasPrefix(header.Ident[:], []byte(elf.ELFMAG)) || elf.Class(header.Ident[elf.EI_CLASS]) != elf.ELFCLASS64 ||
		elf.Type(header.Type) != elf.ET_DYN || header.Phnum > mostSegments {
		return 0, errNotOurs
	}
	segments := make([]elf.Prog64, header.Phnum)
	if err := value(segments, header.Phoff); err != nil {
		return 0, err
	}
	var end uint64
	var dynamic []elf.Dyn64
	for _, s := range segments {
		switch elf.ProgType(s.Type) {
		case elf.PT_LOAD:
			end = max(end, s.Vaddr+s.Memsz)
		case elf.PT_DYNAMIC:
			dynamic = make([]elf.Dyn64, min(s.Memsz/uint64(binary.Size(elf.Dyn64{})), mostDynamic))
			if err := value(dynamic, s.Vaddr); err != nil {
				return 0, err
			}
		}
	}
	var symbols, names, size uint64
	for _, d := range dynamic {
		at := d.Val
		if at >= base { // glibc has added the base to it, musl has not
			at -= base
		}
		switch elf.DynTag(d.Tag) {
		case elf.DT_SYMTAB:
			symbols = at
		case elf.DT_STRTAB:
			names = at
		case elf.DT_STRSZ:
			size = d.Val
		}
	}
	// The names follow the symbols, of which no table has the number.
	count := (names - symbols) / elf.Sym64Size
	if symbols == 0 || names <= symbols || count > mostSymbols || size == 0 || size > mostNames {
		return 0, errNotOurs
	}
	table, text := make([]elf.Sym64, count), make([]byte, size)
	if err := errors.Join(value(table, symbols), value(text, names)); err != nil {
		return 0, err
	}
	wanted := append([]byte(symbol), 0)
	for _, s := range table {
		if uint64(s.Name) < size && bytes.HasPrefix(text[s.Name:], wanted) && s.Value < end && end < math.MaxInt64 {
			return s.Value, nil
		}
	}
	return 0, errNotOurs
}
