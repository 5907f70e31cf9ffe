package main

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// The values of options that must have a certain form. A wrong value is found before a command
// begins.

// parsePID reads the pid of one process. criu and the kernel count pids in 32 bits.
func parsePID(text string) (int, error) {
	pid, err := strconv.Atoi(text)
	if err != nil || pid <= 0 || pid > math.MaxInt32 {
		return 0, errors.New("a pid is a positive number")
	}
	return pid, nil
}

// pidValue is an option that names one process; 0 if it was not given.
type pidValue int

// Set implements [pflag.Value], as do the methods below.
func (p *pidValue) Set(text string) error {
	pid, err := parsePID(text)
	if err == nil && *p != 0 {
		err = fmt.Errorf("it was given before, as %d, and can name one process only", *p)
	}
	if err == nil {
		*p = pidValue(pid)
	}
	return err
}

func (p *pidValue) String() string { return strconv.Itoa(int(*p)) }
func (p *pidValue) Type() string   { return "pid" }

// pidsValue is an option that names processes: one or several, each time that it is given.
type pidsValue []int

func (p *pidsValue) Set(text string) error {
	for part := range strings.SplitSeq(text, ",") {
		pid, err := parsePID(strings.TrimSpace(part))
		if err != nil {
			return err
		}
		*p = append(*p, pid)
	}
	return nil
}

func (p *pidsValue) String() string {
	var pids []string
	for _, pid := range *p {
		pids = append(pids, strconv.Itoa(pid))
	}
	return strings.Join(pids, ",")
}

func (p *pidsValue) Type() string { return "pids" }

// pidsFlag adds the flag of the commands that work on processes.
func pidsFlag(cmd *cobra.Command, pids *[]int) {
	cmd.Flags().VarP((*pidsValue)(pids), "pid", "p", "a process; several: -p 4711 -p 4712, or -p 4711,4712")
	_ = cmd.MarkFlagRequired("pid")
}

// timeoutValue is an option that limits how long something may take.
type timeoutValue time.Duration

func (v *timeoutValue) Set(text string) error {
	d, err := time.ParseDuration(text)
	if err != nil {
		return errors.New("it is no duration, such as 10s or 2m")
	}
	if d < time.Millisecond { // the driver counts in milliseconds, and takes 0 to mean no limit
		return errors.New("it must be more than nothing, 1ms at least")
	}
	*v = timeoutValue(d)
	return nil
}

func (v *timeoutValue) String() string {
	if *v == 0 {
		return ""
	}
	return time.Duration(*v).String()
}

func (v *timeoutValue) Type() string { return "duration" }

// folderValue is an option that names a directory.
type folderValue string

func (v *folderValue) Set(text string) error {
	if text == "" {
		return errors.New("it names no folder")
	}
	if *v != "" {
		return fmt.Errorf("it was given before, as %s, and can name one folder only", *v)
	}
	*v = folderValue(text)
	return nil
}

func (v *folderValue) String() string { return string(*v) }
func (v *folderValue) Type() string   { return "folder" }

// verbosityValue is an option that says how much criu logs: -v4 or, as criu has it, -vvvv.
type verbosityValue int

func (v *verbosityValue) Set(text string) error {
	if strings.Trim(text, "v") == "" && text != "" {
		text = strconv.Itoa(len(text) + 1)
	}
	level, err := strconv.Atoi(text)
	if err != nil || level < 0 || level > 4 {
		return errors.New("it is one of 0 to 4")
	}
	*v = verbosityValue(level)
	return nil
}

func (v *verbosityValue) String() string { return strconv.Itoa(int(*v)) }
func (v *verbosityValue) Type() string   { return "0-4" }

// sizeValue is an option that is a number of bytes, such as 500G; 0 if it was not given.
type sizeValue int64

func (v *sizeValue) Set(text string) error {
	number := strings.TrimSuffix(strings.TrimSuffix(strings.ToUpper(text), "B"), "I")
	shift := 0
	if i := strings.IndexAny(number, "KMGTP"); i >= 0 && i == len(number)-1 {
		shift = 10 * (strings.IndexByte("KMGTP", number[i]) + 1)
		number = number[:i]
	}
	bytes, err := strconv.ParseInt(number, 10, 64)
	if err != nil || bytes <= 0 || bytes > math.MaxInt64>>shift {
		return errors.New("it is no size, such as 500G or 2T")
	}
	*v = sizeValue(bytes << shift)
	return nil
}

func (v *sizeValue) String() string {
	if *v == 0 {
		return ""
	}
	return strconv.FormatInt(int64(*v), 10)
}

func (v *sizeValue) Type() string { return "size" }

// percentValue is an option that is a part of something: 1% is 0.01.
type percentValue float64

func (v *percentValue) Set(text string) error {
	percent, err := strconv.ParseFloat(strings.TrimSuffix(text, "%"), 64)
	if err != nil || !strings.HasSuffix(text, "%") || !(percent > 0 && percent <= 50) {
		return errors.New("it is more than 0% and at most 50%")
	}
	*v = percentValue(percent / 100)
	return nil
}

func (v *percentValue) String() string {
	if *v == 0 {
		return ""
	}
	return strconv.FormatFloat(100*float64(*v), 'g', -1, 64) + "%"
}

func (v *percentValue) Type() string { return "percent" }
