package jobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"cucriu/internal/jobs/relay"
	"cucriu/internal/jobs/store"
	"cucriu/internal/kit/durable"
	"cucriu/internal/kit/failpoint"
	"cucriu/internal/kit/fault"
	"cucriu/internal/kit/files"
	"cucriu/internal/kit/records"
)

// A job that was started from an image moves without the image, which it does not need once it has a checkpoint. It
// takes along the directories that are private to it, as they are once it has ended in its last checkpoint.

// packedDir is where they are packed, in D on the source, and in the folder for what comes on the destination.
const packedDir = ".packed"

// FromImage is what a job that was started from an image needs on a host, beside what each long job needs.
type FromImage struct {
	// Private are the directories of which the job has copies, and Bytes how much these hold.
	Private []string `json:"private,omitempty"`
	Bytes   int64    `json:"bytes,omitempty"`
	Seen    string   `json:"seen,omitempty"` // the job's directory as the job sees it; "" if that is its own
	// Net and Publish are as the options of cucriu run; empty if those there are not known.
	Net     string   `json:"net,omitempty"`
	Publish []string `json:"publish,omitempty"`
}

// announceImage says what the job of a directory needs; nil if it was not started from an image. It refuses one that
// could not be packed. start is the command that starts it on the destination: see [Move].
func announceImage(ctx context.Context, dir, start string) (*FromImage, error) {
	r, err := loadRecord(filepath.Join(dir, recordName))
	if err != nil || r.Image == nil {
		return nil, err
	}
	f := &FromImage{Private: r.Image.Private, Seen: r.Image.Dir}
	if f.Bytes, err = files.ForeseePack(ctx, r.copies(filepath.Join(dir, privateDir)), dir); err != nil {
		return nil, fmt.Errorf("the files that %s has of its own cannot move: %w", r.Name, err)
	}
	if start != "" {
		return f, nil
	}
	options, err := Flags(dir)
	f.Net = NetOwn
	for _, option := range options {
		if net, is := strings.CutPrefix(option, "--net="); is {
			f.Net = net
		} else if port, is := strings.CutPrefix(option, "--publish="); is {
			f.Publish = append(f.Publish, port)
		}
	}
	return f, err
}

// copies are the copies of the job's private directories, in a directory.
func (r record) copies(dir string) (copies []string) {
	if r.Image == nil {
		return nil
	}
	for n := range r.Image.Private {
		copies = append(copies, filepath.Join(dir, strconv.Itoa(n)))
	}
	return copies
}

// check fails if the job could not run on this host, for a reason that its checkpoints do not tell. Nothing is touched.
func (f *FromImage) check(runDir string) error {
	from := origin{Dir: f.Seen, Private: f.Private}
	if err := from.refuseHidden(runDir, ""); err != nil {
		return err
	}
	for _, dir := range append([]string{f.Seen}, f.Private...) {
		if dir == "" {
			continue
		}
		// It is made to mount on if it is missing.
		at := durable.Existing(dir)
		if info, err := os.Stat(at); err != nil || !info.IsDir() {
			what := at + " is no directory on this host, and the job has files of its own in " + dir
			return errors.Join(err, fault.New(what, "remove what has this name"))
		}
	}
	if isPrepared(f.Net) {
		if _, err := preparedFindings(f.Net, ""); err != nil {
			return fmt.Errorf("--net %s: %w", f.Net, err)
		}
	}
	var ports []relay.Publish
	for _, text := range f.Publish {
		port, err := relay.Parse(text)
		if err != nil {
			return err
		}
		ports = append(ports, port)
	}
	taken, err := relay.Listen(ports)
	if err == nil {
		taken.Close()
	}
	return err
}

// Room is how many bytes the job's own files need where its directory is: they come packed.
func (f *FromImage) Room() int64 {
	if f == nil {
		return 0
	}
	return 2 * f.Bytes
}

// asOf names the checkpoint with which the private directories agree that a job has left on this host, or has come
// with, until it runs here. It is among them, to come and go with them. A move back to this host that was not completed
// leaves newer checkpoints, and not the files that the job had then.
type asOf struct {
	Checkpoint string `json:"checkpoint"`
}

var asOfKind = records.Kind[asOf]{Name: "as-of.json", What: "the record of the job's own files", Version: 1}

// giveUpNewer gives up the checkpoints with which the private directories do not agree, before the job runs here.
func (s *starter) giveUpNewer(all []store.Checkpoint) error {
	private := filepath.Join(s.Dir, privateDir)
	of, err := asOfKind.ReadOr(private, asOf{})
	if err != nil || of.Checkpoint == "" {
		return err
	}
	agrees := slices.IndexFunc(all, func(c store.Checkpoint) bool { return c.Name == of.Checkpoint })
	if agrees >= 0 && all[agrees].Usable() {
		why := errors.New("it has come by a move that was not completed, and the files that the job has of its own have not")
		for i := agrees + 1; i < len(all); i++ {
			if err := s.store.GiveUp(all[i].Name, why); err != nil {
				return err
			}
			s.say(fmt.Sprintf("checkpoint %s is set aside: %v", all[i].Name, why))
			all[i].GivenUp = why.Error()
		}
	}
	return asOfKind.Remove(private)
}

// pack packs the private directories of the job of a directory, which has ended.
func pack(ctx context.Context, dir string) error {
	r, err := loadRecord(filepath.Join(dir, recordName))
	if err != nil || r.Image == nil || len(r.Image.Private) == 0 {
		return err
	}
	to := filepath.Join(dir, packedDir)
	if err := errors.Join(os.RemoveAll(to), os.Mkdir(to, 0o700)); err != nil {
		return err
	}
	if err := files.Pack(ctx, r.copies(filepath.Join(dir, privateDir)), to); err != nil {
		return fmt.Errorf("pack the files that %s has of its own: %w", r.Name, err)
	}
	return failpoint.Hit(ctx, "job.packed", 0)
}

// packed lists what was packed, below the directory of the job.
func packed(dir string) (names []string, err error) {
	there, err := os.ReadDir(filepath.Join(dir, packedDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, entry := range there {
		names = append(names, filepath.Join(packedDir, entry.Name()))
	}
	return names, err
}

// isPacked reports whether a name may be that of something packed. It comes from the other host.
func isPacked(name string) bool {
	base, is := strings.CutPrefix(name, packedDir+"/")
	return is && base != "." && filepath.IsLocal(base) && filepath.Base(base) == base
}

// takePacked keeps what was packed, and has come, in the folder for what comes.
func (j *Arriving) takePacked(name, from string) error {
	if err := os.Mkdir(filepath.Join(j.Folder(), packedDir), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return os.Rename(from, filepath.Join(j.Folder(), name))
}

// unpack makes the job's private directories of what was packed, all or none. Those that the job had when it was here
// before are of no use then. They agree with the job's newest checkpoint.
func (j *Arriving) unpack(ctx context.Context, newest string) error {
	r, err := loadRecord(filepath.Join(j.dir, recordName))
	if err != nil || r.Image == nil || len(r.Image.Private) == 0 {
		return err
	}
	private, made := filepath.Join(j.dir, privateDir), filepath.Join(j.Folder(), privateDir)
	if err := os.Mkdir(made, 0o700); err != nil {
		return err
	}
	if err := files.Unpack(ctx, filepath.Join(j.Folder(), packedDir), r.copies(made)); err != nil {
		return fmt.Errorf("the files that the job has of its own: %w", err)
	}
	if err := errors.Join(asOfKind.Write(made, asOf{newest}), syncAll(made)); err != nil {
		return err
	}
	if err := failpoint.Hit(ctx, "job.unpacked", 0); err != nil {
		return err
	}
	err = unix.Renameat2(unix.AT_FDCWD, made, unix.AT_FDCWD, private, unix.RENAME_EXCHANGE)
	if errors.Is(err, unix.EINVAL) { // as NFS says
		err = cmp.Or[error](os.Rename(private, made+".before"), unix.ENOENT)
	}
	if errors.Is(err, unix.ENOENT) {
		err = os.Rename(made, private)
	}
	return errors.Join(err, durable.Sync(j.dir))
}

// Leave notes, before the job leaves this host, with which checkpoint the files agree that it leaves here.
func (j *Leaving) Leave() error {
	private := filepath.Join(j.Dir, privateDir)
	if _, err := os.Lstat(private); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	newest, err := j.newest()
	if err != nil || newest == nil {
		return err
	}
	return asOfKind.Write(private, asOf{newest.Name})
}

// Stays undoes [Leaving.Leave], and removes what was packed. A supervisor of an earlier version, which has resumed the
// job meanwhile, knows neither: what it goes on to do must not be set aside.
func (j *Leaving) Stays() error {
	return errors.Join(os.RemoveAll(filepath.Join(j.Dir, packedDir)), asOfKind.Remove(filepath.Join(j.Dir, privateDir)))
}

// Gone removes what is not needed any more once the job runs on another host: that needs its image no longer.
func (j *Leaving) Gone() error {
	if r, err := loadRecord(filepath.Join(j.Dir, recordName)); err == nil && r.Image != nil {
		_ = store.ForgetStarted(r.Image.Path, Key(j.Dir)) // whoever owns it may have removed it
	}
	return os.RemoveAll(filepath.Join(j.Dir, packedDir))
}
