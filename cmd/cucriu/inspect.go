package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"cucriu/cudackpt"
	"cucriu/hooks/image"
	"cucriu/hooks/preflight"
	"cucriu/internal/jobs"
	"cucriu/internal/jobs/job"
	"cucriu/internal/kit/criuimage"
	"cucriu/internal/kit/imagedir"
	"cucriu/internal/kit/quote"
)

// inspection is what the inspect command shows.
type inspection struct {
	Images   criuimage.Info     `json:"images"`
	Manifest *imagedir.Manifest `json:"manifest"` // nil: no process uses CUDA
	// Start is what a job is that cucriu run --image starts from it; nil if that cannot be, for the reason in NoStart.
	Start   *jobs.Start `json:"start,omitempty"`
	NoStart string      `json:"no_start,omitempty"`
}

func inspectCommand() *cobra.Command {
	var timeline, uuids bool
	var session string
	cmd := &cobra.Command{
		Use:   "inspect DIR",
		Short: "Show what an image directory holds: its processes, their memory, and their GPU state",
		Long: `
criu's images and the manifest are read and compared, and nothing is changed. A
damaged or incomplete image is refused, with an error that names the file.

With --timeline it shows where the time of the dump was spent, for the session and
for each CUDA process; --session shows any dump or restore of this host by the name
that cucriu status lists for it. The JSON, and the file cucriu-timeline.json in the
image directory, are Chrome traces, which Perfetto (https://ui.perfetto.dev) opens.`,
		Example: `  cucriu inspect /var/lib/images/job1
  cucriu inspect --json .
  cucriu inspect --timeline /var/lib/images/job1
  cucriu inspect --timeline --session restore-4711-883412 --json > restore.json`,
		Args: func(cmd *cobra.Command, args []string) error {
			if session == "" {
				return oneArgument("one image directory")(cmd, args)
			}
			if !timeline {
				return errors.New("--session requires --timeline")
			}
			return noArguments(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if timeline {
				trace, err := timelineOf(append(args, "")[0], session)
				if err != nil {
					return err
				}
				return show(cmd, trace, func(out io.Writer) { drawTimeline(out, trace) })
			}
			if err := requireImage(args[0]); err != nil {
				return err
			}
			report, err := inspectImage(args[0])
			if err != nil {
				return preflight.AsRefusal(err)
			}
			if start, err := jobs.StartFrom(args[0]); err == nil {
				report.Start = &start
			} else {
				report.NoStart = err.Error()
			}
			return show(cmd, report, func(out io.Writer) { report.write(out, uuids) })
		},
	}
	cmd.Flags().BoolVar(&timeline, "timeline", false, "show where the time of the dump was spent")
	cmd.Flags().StringVar(&session, "session", "", "with --timeline: show this session instead of an image directory")
	jsonFlag(cmd)
	uuidFlag(cmd, &uuids)
	return cmd
}

// requireImage refuses a directory that holds no image.
func requireImage(dir string) error {
	if err := job.RefuseDirectory(dir); err != nil {
		return preflight.AsRefusal(err)
	}
	for _, f := range image.PresentFindings(dir) {
		return preflight.AsRefusal(fmt.Errorf("%s: %s", f.Message, f.Remedy))
	}
	return nil
}

func inspectImage(dir string) (inspection, error) {
	img := imagedir.Open(dir)
	if !criuimage.IsStreamed(dir) {
		if _, err := img.Whole(); err != nil {
			return inspection{}, err
		}
	}
	info, err := criuimage.Read(dir)
	if err != nil {
		return inspection{}, err
	}
	report := inspection{Images: info}
	manifest, err := img.Manifest()
	if errors.Is(err, os.ErrNotExist) {
		return report, nil
	}
	if err != nil {
		return inspection{}, err
	}
	report.Manifest = &manifest
	for _, process := range manifest.Processes {
		if !slices.ContainsFunc(info.Processes, func(p criuimage.Process) bool { return p.PID == process.PID }) {
			return inspection{}, fmt.Errorf("the manifest names process %d (%s), which is not in criu's images: it belongs to another dump", process.PID, process.Name)
		}
	}
	return report, manifest.CheckPages(dir)
}

// fastLane returns how much memory the fast lane has copied, and the size of the files that
// hold it.
func (r inspection) fastLane() (copied, stored uint64) {
	for _, process := range r.Manifest.Processes {
		if process.Pages == nil {
			continue
		}
		copied += process.Pages.Bytes
		for _, size := range process.Pages.Sizes() {
			stored += uint64(size)
		}
	}
	return copied, stored
}

func (r inspection) write(out io.Writer, uuids bool) {
	fmt.Fprintf(out, "criu images of version %d, %d MiB\n", r.Images.Version, r.Images.Bytes>>20)
	if dump := r.Images.Dump; dump != nil {
		fmt.Fprintf(out, "criu held the processes for %v, and wrote %d pages in %v\n", dump.Frozen, dump.Pages, dump.Write)
	}
	cuda := make(map[int]imagedir.Process)
	var index gpuIndex // in the captured set, as a rule of the map counts
	if r.Manifest != nil {
		index = indexOf(r.Manifest.GPUs())
		fmt.Fprintf(out, "made %s with driver %s\n", r.Manifest.Created.Local().Format(time.DateTime), r.Manifest.DriverVersion)
		if len(r.Manifest.Processes) > 0 {
			fmt.Fprintln(out, r.Manifest.Needs())
		}
		if copied, stored := r.fastLane(); copied > 0 {
			fmt.Fprintf(out, "GPU state in files of its own, by the fast lane: %d MiB of memory in %d MiB\n", copied>>20, stored>>20)
		}
		for _, process := range r.Manifest.Processes {
			cuda[process.PID] = process
		}
	}
	r.writeStart(out)
	depth := make(map[int]int)
	fmt.Fprintln(out)
	table := newTable("PID", "NAME", "STATE", "THREADS", "MAPPED", "IN IMAGE", "GPU MEMORY", "SAW")
	for _, p := range r.Images.Processes {
		depth[p.PID] = depth[p.PPID] + 1
		memory, saw := "no CUDA", ""
		c, uses := cuda[p.PID]
		if uses {
			memory, saw = index.memory(c.MemoryBytes), index.names(cudackpt.UUIDsOf(c.GPUs))
		}
		name := strings.Repeat("  ", min(depth[p.PID]-1, maxDepth)) + p.Name
		table.row(strconv.Itoa(p.PID), name, p.State, strconv.Itoa(p.Threads), mib(p.MappedBytes), mib(p.ImageBytes), memory, saw)
		if uuids && len(c.MemoryBytes) > 0 {
			table.below(index.details(c.MemoryBytes))
		}
	}
	table.write(out)
}

// writeStart says what a job is that is started from the image.
func (r inspection) writeStart(out io.Writer) {
	if r.Start == nil {
		fmt.Fprintf(out, "cucriu run --image starts no job from it: %s\n", r.NoStart)
		return
	}
	fmt.Fprintf(out, "cucriu run --image starts jobs from it, with files of their own in %s\n", quote.Names(r.Start.Own))
	if len(r.Start.Shared) > 0 {
		fmt.Fprintf(out, "they share with the host: %s\n", quote.Names(r.Start.Shared))
	}
	if len(r.Start.Jobs) > 0 {
		fmt.Fprintf(out, "started from it: %s\n", quote.Names(r.Start.Jobs))
	}
}

const maxDepth = 4 // to which a tree is drawn
