package prepare

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/criuutil"
	"cucriu/internal/kit/proc"
)

// thisHost describes the machine that this program runs on. criu is the path of its criu; empty
// for the system's.
func thisHost(ctx context.Context, criu string) (Host, error) {
	h := Host{Architecture: runtime.GOARCH}
	var err error
	if h.Name, err = os.Hostname(); err != nil {
		return h, err
	}
	if h.BootID, err = proc.BootID(); err != nil {
		return h, err
	}
	if h.Kernel, err = (proc.System{}).KernelVersion(); err != nil {
		return h, err
	}
	if h.CPU, err = readCPU("/proc/cpuinfo"); err != nil {
		return h, err
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return h, fmt.Errorf("monotonic clock: %w", err)
	}
	h.Monotonic = time.Duration(now.Nano())
	if installed, err := criuutil.FindCriu(ctx, criu, os.Getenv); err == nil { // else a finding says so
		h.Criu = installed.Version
	}
	return h, nil
}

func readCPU(path string) (CPU, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return CPU{}, err
	}
	return parseCPU(string(data)), nil
}

// instructions matches the names in /proc/cpuinfo on x86 that stand for instructions or registers
// of programs. The others are about the kernel, about virtual machines, or about timers.
var instructions = regexp.MustCompile(`^(fpu|tsc|cx8|cx16|cmov|clflush|clflushopt|clwb|clzero|mmx|mmxext|3dnow|3dnowext|fxsr|fxsr_opt|syscall|rdtscp|lm|lahf_lm|` +
	`sse|sse2|pni|ssse3|sse4_1|sse4_2|sse4a|misalignsse|3dnowprefetch|popcnt|abm|movbe|aes|pclmulqdq|xsave|xsaveopt|xsavec|xgetbv1|avx.*|f16c|fma|fma4|xop|tbm|` +
	`rdrand|rdseed|rdpid|fsgsbase|bmi1|bmi2|erms|fsrm|fzrm|fsrs|fsrc|hle|rtm|adx|sha_ni|sha512|sm3|sm4|gfni|vaes|vpclmulqdq|amx_.*|pku|ospke|umwait|waitpkg|movdiri|movdir64b|` +
	`cldemote|serialize|tsxldtrk|enqcmd|rdpru|wbnoinvd|cmpccxadd|prefetchi|user_shstk|apx)$`)

// parseCPU reads the first processor of /proc/cpuinfo. On arm64 all features are those of programs.
func parseCPU(text string) CPU {
	var cpu CPU
	for line := range strings.Lines(text) {
		name, value, found := strings.Cut(line, ":")
		if !found {
			if cpu.Features != nil {
				break // the next processor
			}
			continue
		}
		value = strings.TrimSpace(value)
		switch strings.TrimSpace(name) {
		case "model name", "CPU part":
			cpu.Model = proc.Printable(value)
		case "flags":
			cpu.Features = slices.DeleteFunc(strings.Fields(value), func(flag string) bool { return !instructions.MatchString(flag) })
		case "Features":
			cpu.Features = strings.Fields(value)
		}
	}
	slices.Sort(cpu.Features)
	return cpu
}
