package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// options say what to measure, and where everything is.
type options struct {
	root string // holds bin and build
	criu string
	real bool // use NVIDIA's driver, not the simulated one

	loads  []load // empty: those that fit this machine
	modes  []string
	dir    string // of the images
	out    string // of the results
	repeat int
	warm   bool   // first dump and restore once without measuring
	config string // more configuration for the fast lane
	keep   bool   // keep the images
}

// parseOptions reads the command line, and the environment variables that the tests use,
// too.
func parseOptions(args []string) (options, error) {
	opts := options{warm: true, root: os.Getenv("CUCRIU_TEST_ROOT"), criu: os.Getenv("CUCRIU_TEST_CRIU"), real: os.Getenv("CUCRIU_TEST_DRIVER") == "real"}
	var err error
	if opts.root == "" {
		if opts.root, err = os.Getwd(); err != nil {
			return opts, err
		}
	}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	loads := flags.String("cases", "", "what is dumped, such as 1x1GiB,4x256MiB: `PROCESSESxBYTES` of GPU memory of each process (default: what fits this machine)")
	modes := flags.String("modes", strings.Join(allModes(), ","), "how, a `list`")
	flags.StringVar(&opts.dir, "dir", "", "the images go into this `folder`, on the disk to be measured (default: that of --out)")
	flags.StringVar(&opts.out, "out", filepath.Join(opts.root, "build", "bench"), "the results go into this `folder`")
	flags.IntVar(&opts.repeat, "repeat", 3, "runs of each case in each mode, of which the median counts")
	flags.StringVar(&opts.config, "config", "", "more `text` for the configuration file of mode fastlane")
	flags.BoolVar(&opts.keep, "keep", false, "keep the images and criu's logs")
	flags.SetOutput(io.Discard) // the caller prints the error
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			flags.SetOutput(os.Stdout)
			flags.PrintDefaults()
		}
		return opts, err
	}
	if flags.NArg() > 0 {
		return opts, fmt.Errorf("%q is no option (see --help)", flags.Arg(0))
	}
	if opts.loads, err = parseLoads(*loads); err != nil {
		return opts, err
	}
	if opts.modes, err = parseModes(*modes); err != nil {
		return opts, err
	}
	if opts.repeat < 1 {
		return opts, errors.New("--repeat must be at least 1")
	}
	if opts.dir == "" {
		opts.dir = opts.out
	}
	for _, path := range []*string{&opts.root, &opts.out, &opts.dir} {
		if *path, err = filepath.Abs(*path); err != nil {
			return opts, err
		}
	}
	if opts.criu == "" {
		return opts, errors.New("CUCRIU_TEST_CRIU is not set: run make bench, or export CUCRIU_TEST_CRIU=$(make -s which-criu)")
	}
	return opts, nil
}

func parseModes(text string) ([]string, error) {
	modes := strings.Split(text, ",")
	for _, mode := range modes {
		if !slices.Contains(allModes(), mode) {
			return nil, fmt.Errorf("--modes: %q is none of %s", mode, strings.Join(allModes(), ", "))
		}
	}
	return modes, nil
}

// namespaces reports whether the jobs run in namespaces of their own: a real driver may not
// know pid namespaces.
func (o options) namespaces() bool {
	return !o.real && os.Getenv("CUCRIU_TEST_NAMESPACES") != "off"
}

// artefact returns the path of a build output.
func (o options) artefact(path ...string) string {
	return filepath.Join(append([]string{o.root}, path...)...)
}
