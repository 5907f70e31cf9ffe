package proc

import (
	"errors"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TestAProcessDecidesHowLongItsEnvironmentIs: a few pages of the kernel's can stand for all of the address space, and no
// privilege is needed.
func TestAProcessDecidesHowLongItsEnvironmentIs(t *testing.T) {
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(stat), ") ")
	field := func(number int) uint64 { // as proc(5) counts them; the third is the first here
		value, err := strconv.ParseUint(strings.Fields(text)[number-3], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
	brk, _, _ := unix.Syscall(unix.SYS_BRK, 0, 0, 0)
	its := struct { // struct prctl_mm_map
		code, data         Range
		heap               Range
		stack              uint64
		arguments, environ Range
		auxiliary          uint64
		auxiliarySize, exe uint32
	}{
		code: Range{field(26), field(27)}, data: Range{field(45), field(46)}, heap: Range{field(47), uint64(brk)}, stack: field(28),
		arguments: Range{field(48), field(49)}, environ: Range{field(50), field(51)}, exe: math.MaxUint32,
	}
	set := func(environ Range) {
		t.Helper()
		its.environ = environ
		if err := unix.Prctl(unix.PR_SET_MM, unix.PR_SET_MM_MAP, uintptr(unsafe.Pointer(&its)), unsafe.Sizeof(its), 0); err != nil {
			t.Fatalf("the environment cannot be moved: %v", err)
		}
	}
	own := its.environ
	set(rangeOf(mapPages(t, MostText/unix.Getpagesize()+1, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE, -1)))
	_, err = ReadText("/proc/self/environ")
	set(own)
	if !errors.Is(err, errTooMuch) {
		t.Errorf("it was read: %v", err)
	}
	if text, err := ReadText("/proc/self/environ"); err != nil || len(text) == 0 {
		t.Errorf("as it was before: %q, %v", text, err)
	}
}

func TestNoMoreMappingsAreReadThanAreBelieved(t *testing.T) {
	const line = "1000-2000 r--p 00000000 00:00 0 \n"
	count := 0
	err := eachLine(strings.NewReader(strings.Repeat(line, 100)), int64(10*len(line)), func(string) error { count++; return nil })
	if !errors.Is(err, errTooMuch) || count != 10 {
		t.Errorf("%d lines, %v", count, err)
	}
	if err := eachLine(io.LimitReader(zeros{}, 1<<20), 1<<30, func(string) error { return nil }); err == nil {
		t.Error("a line may be of any length")
	}
}

type zeros struct{}

func (zeros) Read(data []byte) (int, error) { clear(data); return len(data), nil }

func FuzzMapping(f *testing.F) {
	for _, line := range []string{
		"7f0000000000-7f0000001000 r-xp 00000000 fe:01 1234   /usr/lib/libc.so.6",
		"7f0000000000-7f0000001000 rw-s 1000 00:05 99 /memfd:a b (deleted)",
		"7ffe00000000-7ffe00001000 rw-p 00000000 00:00 0                          [stack]",
		"7f0000000000-7f0000001000 ---p 00000000 00:00 0 ",
		"7f0000000000-7f0000001000 ---p 00000000 00:00 0",
		"1000-0 rw-p 0 0:0 0 x", "- - - - -", "", "a-b\x00 rwxp 0 ::: 0 \x1b[31m",
	} {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		m, err := parseMapping(line)
		if err == nil && (m.StartAddr > m.EndAddr || m.Perms == nil) {
			t.Errorf("%q is %+v", line, m)
		}
	})
}

func FuzzDescriptor(f *testing.F) {
	f.Add("pos:\t0\nflags:\t0100002\nmnt_id:\t15\nino:\t7\n")
	f.Add("pos:\t0\nflags:\t02\nclockid: 1\nticks: 3\nsettime flags: 01\nit_value: (0, 0)\nit_interval: (1, 2)\n")
	f.Add("flags:\t9\n")
	f.Add("flags:")
	f.Add(strings.Repeat("tfd: 5 events: 19 data: 5 pos:0 ino:61 sdev:5\n", 40))
	f.Fuzz(func(t *testing.T, text string) {
		info, err := parseDescriptor(text)
		reads, writes := info.Access()
		if err == nil && text == "" && (reads || writes) {
			t.Errorf("%q reads %v, writes %v", text, reads, writes)
		}
		if info.Field("tfd") == "" && len(info.Fields("tfd")) > 1 && info.Fields("tfd")[0] != "" {
			t.Errorf("%q: the first line is not the first", text)
		}
	})
}

func FuzzStatus(f *testing.F) {
	f.Add([]byte("Name:\tx\\ny\nState:\tT (stopped)\nTgid:\t7\nPPid:\t1\nNSpid:\t7\t2\nSeccomp:\t2\nUid:\t0\t0\t0\t0\n"))
	f.Add([]byte("Name:\t\x1b[31m\nNSpid:\t\n"))
	f.Add([]byte("NSpid:\t99999999999999999999\n"))
	f.Add([]byte("VmLck:\t18446744073709551615 kB\nNSpid: 1\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := parseStatus(1, data)
		if err == nil && (len(s.NSPID) == 0 || s.Name != Printable(s.Name)) {
			t.Errorf("%q is %+v", data, s)
		}
	})
}
