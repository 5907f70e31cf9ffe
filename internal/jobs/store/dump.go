package store

import (
	"errors"
	"fmt"
	"io/fs"

	"cucriu/hooks/image"
	"cucriu/internal/kit/criuimage"
	"cucriu/internal/kit/fault"
	"cucriu/internal/kit/imagedir"
)

// ReadImage reads a checkpoint, wherever it lies, or the image of a dump as if it were one. That has no name, and does
// not hold the files that the job was writing.
func ReadImage(dir string) (Checkpoint, error) {
	if isCheckpoint(dir) {
		return Read(dir)
	}
	const remedy = "dump the job with cucriu dump, or run it with cucriu run --dir"
	img := imagedir.Open(dir)
	tree, err := img.Whole()
	if err != nil {
		return Checkpoint{}, err
	}
	if tree.OwnPIDs || tree.OwnMounts || tree.OwnNetwork {
		return Checkpoint{}, fault.New("namespace: it was made of a container, or of a job with namespaces of its own",
			"restore it with the program that made it, such as runc restore or podman container restore")
	}
	m, err := img.Manifest()
	if errors.Is(err, fs.ErrNotExist) {
		return Checkpoint{}, fault.New("no process in it uses CUDA, or criu has made it without cucriu-hook", remedy)
	}
	if err != nil {
		return Checkpoint{}, err
	}
	sums, err := img.Sums()
	if errors.Is(err, fs.ErrNotExist) {
		return Checkpoint{}, fault.New("it has no checksums: criu or an early version of cucriu has made it", remedy)
	}
	if err != nil {
		return Checkpoint{}, err
	}
	o, err := image.ReadOptions(dir)
	if err != nil {
		return Checkpoint{}, err
	}
	if o.Terminal {
		return Checkpoint{}, fault.New("its job has a terminal, which a job from an image has not",
			"dump it when it was started without one: redirect its standard input, output and error")
	}
	info, err := criuimage.Read(dir)
	if err != nil {
		return Checkpoint{}, fmt.Errorf("criu's images: %w", err)
	}
	return Checkpoint{
		Dir: dir, Files: sums, Bytes: int64(info.Bytes), dumped: image.Open(dir),
		Info: Info{
			CreatedAt: m.Created, Command: info.Processes[0].Name, RootPID: m.RootPID, Driver: m.DriverVersion, GPUs: m.GPUs(),
			Clocks: Clocks{Monotonic: int64(o.Monotonic), Boottime: int64(o.Boottime)},
		},
	}, nil
}

// IsDump reports whether the checkpoint is the image of a dump.
func (c Checkpoint) IsDump() bool { return c.dumped != nil }
