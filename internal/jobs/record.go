package jobs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/jobs/sandbox"
	"cucriu/internal/jobs/store"
	"cucriu/internal/kit/fault"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/records"
	"cucriu/internal/kit/twice"
)

const recordName = twice.RecordName // in the directory of the job

// record is what the directory of a job says of it, beside its checkpoints.
type record struct {
	Version int       `json:"version"`
	Name    string    `json:"name"`
	Dir     string    `json:"dir"` // of the job; criu knows its output by that name
	Command []string  `json:"command"`
	WorkDir string    `json:"work_dir"`
	Begun   time.Time `json:"begun"`
	Input   input     `json:"input,omitempty"`
	// Image is what the job was started from; nil if that was its command.
	Image *origin `json:"image,omitempty"`
	// Adopted says that the job was not started by us.
	Adopted bool `json:"adopted,omitempty"`
	// User is whose the process was that was adopted.
	User     string    `json:"user,omitempty"`
	Finished *finished `json:"finished,omitempty"` // nil if the job has not come to its end
}

// finished says how a job has come to its end by itself.
type finished struct {
	Status int       `json:"status"`
	At     time.Time `json:"at"`
}

// A job from an image has version 2: earlier versions of cucriu would resume it in the files of the job of the image.
const (
	recordVersion   = 1
	recordFromImage = 2
)

// recordKind is one whose record may have another name yet: see [describeAs].
var recordKind = records.Kind[record]{
	Version: recordFromImage,
	Remedy:  "restore it from a backup; or, if the job has not finished, move it away and name the command to cucriu run again: the job resumes from its checkpoints",
	Check: func(r *record) error {
		if r.Version < recordVersion || len(r.Command) == 0 {
			return errors.New("it names no command")
		}
		return nil
	},
}

// openRecord reads the record of a job, or makes one for a job that is new, and reports whether it is.
func openRecord(o Options) (r record, isNew bool, err error) {
	_, err = os.Lstat(filepath.Join(o.Dir, recordName))
	isNew = errors.Is(err, fs.ErrNotExist)
	r, change, err := readRecord(o)
	if err == nil && isNew { // first: who starts a job from an image again names no command, and the options are needed
		err = flagsKind.Write(o.Dir, append([]string{}, o.Flags...))
	}
	if err == nil && change {
		err = r.write(o.Dir)
	}
	return r, isNew, err
}

// loadRecord reads the record of a job. The error is [fs.ErrNotExist] if there is none.
func loadRecord(path string) (r record, err error) {
	r, err = recordKind.Read(path)
	if dir := filepath.Dir(path); errors.Is(err, fs.ErrNotExist) && hasCheckpoints(dir) {
		return record{}, fault.Because(err, path+" is missing", "restore it from a backup, or name the command to cucriu run --dir "+dir+
			" again: the job resumes from its checkpoints; or, if it runs on no host and nothing of it is needed, rm -r "+dir)
	}
	if errors.Is(err, unix.ENOTDIR) {
		return record{}, fault.Because(unix.ENOTDIR, filepath.Dir(path)+" is not a directory", "specify the directory of a job")
	}
	if err != nil {
		return record{}, fmt.Errorf("the job's record %s: %w", path, err)
	}
	return r, nil
}

// hasCheckpoints reports whether a directory is that of a job which may have run.
func hasCheckpoints(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, store.CheckpointsDir))
	return err == nil
}

// readRecord reads the record of a job, or makes one for a job that is new, and reports whether it is
// to be written.
func readRecord(o Options) (r record, change bool, err error) {
	path := filepath.Join(o.Dir, recordName)
	if r, err = loadRecord(path); errors.Is(err, fs.ErrNotExist) {
		r, err = newRecord(o)
		return r, true, err
	} else if err != nil {
		return record{}, false, err
	}
	if len(o.Command) > 0 && !slices.Equal(o.Command, r.Command) {
		return record{}, false, fmt.Errorf("%s is the directory of another job: %s: %s", o.Dir, strings.Join(r.Command, " "), otherRemedy(o.Dir, r.Name))
	}
	if r.Dir != "" && !isSame(r.Dir, o.Dir) {
		remedy := "move it back, or mount it there (mount --bind)"
		if _, err := Describe(r.Dir); err == nil {
			remedy = "use that one, where a job is; if this is a copy that is not needed, and not the same directory mounted twice, " +
				"remove it with rm -r " + o.Dir
		}
		return record{}, false, fault.New(fmt.Sprintf("%s was moved or copied: the job's checkpoints can be restored as %s", o.Dir, r.Dir), remedy)
	}
	if err := r.Input.check(); err != nil {
		return record{}, false, err
	}
	if o.Image != "" && (r.Image == nil || r.Image.Asked != o.Image) {
		return record{}, false, fmt.Errorf("%s is the directory of another job, which was not started from %s: %s",
			o.Dir, o.Image, otherRemedy(o.Dir, r.Name))
	}
	if err := r.refuseCopy(o); err != nil {
		return record{}, false, err
	}
	if o.Adopt != 0 && !r.Adopted {
		return record{}, false, fmt.Errorf("%s is the directory of another job, which was started there: %s: name another --dir", o.Dir, strings.Join(r.Command, " "))
	}
	if change = o.Name != "" && o.Name != r.Name; change {
		r.Name = o.Name
	}
	return r, change, nil
}

// refuseCopy refuses --copy-image if the job was started otherwise.
func (r record) refuseCopy(o Options) error {
	switch {
	case o.CopyImage == nil || r.Image != nil && r.Image.Copy == *o.CopyImage || r.Image == nil && !*o.CopyImage:
		return nil
	case r.Image == nil:
		return fault.New(r.Name+" was not started from an image", "leave out --copy-image")
	case r.Image.Copy:
		return fault.New(r.Name+" has a copy of its image since its first start", "leave out --copy-image=false")
	}
	return fault.New(fmt.Sprintf("%s was started without a copy of its image, and needs %s", r.Name, r.Image.Path),
		"leave out --copy-image, or start another job, with a --dir of its own")
}

// otherRemedy says what to do about a directory whose job has another command.
func otherRemedy(dir, name string) string {
	made, err := entries(filepath.Join(dir, store.CheckpointsDir), "")
	data, _ := os.ReadFile(filepath.Join(dir, eventsName)) // a full disk may have prevented it
	var last Event
	for line := range bytes.Lines(data) {
		last = Event{}
		_ = json.Unmarshal(line, &last)
	}
	remedy := "name another --dir, or leave out the command to continue that job"
	switch {
	case err != nil || len(made) > 0:
		return remedy
	case last.Event == EventEnded && last.Status != 0:
		return fmt.Sprintf("it ended with exit status %d and has no checkpoint: remove it with cucriu jobs rm %s, or name another --dir", last.Status, name)
	}
	return remedy + ", or remove it with cucriu jobs rm " + name
}

func newRecord(o Options) (record, error) {
	if o.Adopt != 0 {
		return adoptedRecord(o)
	}
	if o.Image != "" {
		return recordFrom(o)
	}
	if len(o.Command) == 0 {
		return record{}, fmt.Errorf("%s is not yet the directory of a job: name the command to run", o.Dir)
	}
	work, err := os.Getwd()
	if err != nil {
		return record{}, err
	}
	r := record{
		Version: recordVersion, Name: o.Name, Dir: o.Dir, Command: o.Command, WorkDir: work,
		Begun: time.Now().UTC(),
	}
	if r.Name == "" {
		r.Name = filepath.Base(o.Dir)
	}
	return r, nil
}

// CheckRecord fails if the record of a job does not let cucriu run resume it, for example because its
// directory was moved.
func CheckRecord(dir string) error {
	_, _, err := readRecord(Options{Dir: dir})
	return err
}

// CheckMade is [checkMade] for a job that may run.
func CheckMade(l Local) error {
	err := checkMade(l.Dir)
	if of := new(fault.Explained); l.PID != 0 && errors.As(err, &of) {
		return fault.New(of.Meaning(), "bring it back, or make another: cucriu jobs checkpoint "+l.Name)
	}
	return err
}

// checkMade fails if a job has made a checkpoint, by the log of its events, and has none: they were removed, or are on
// a disk that is not mounted. Started anew, the job would lose its work without a word.
func checkMade(dir string) error {
	r, err := loadRecord(filepath.Join(dir, recordName))
	if err != nil {
		return nil // which others tell
	}
	view, err := store.View(dir)
	if err != nil {
		return nil
	}
	if all, err := view.Checkpoints(); err != nil || len(all) > 0 {
		return nil
	}
	made := lastMade(dir, r.Begun)
	if made.Name == "" {
		return nil
	}
	return fault.New(missing(dir, made), "bring it back, or mount the disk that it is on; to start the job from the beginning, first cucriu jobs rm "+dir)
}

// lastMade is the newest checkpoint that the log of a job's events tells of.
func lastMade(dir string, begun time.Time) (made Made) {
	data, _ := os.ReadFile(filepath.Join(dir, eventsName)) // a full disk may have prevented it
	for line := range bytes.Lines(data) {
		if e := (Event{}); json.Unmarshal(line, &e) == nil && e.Event == EventCheckpoint && e.At.After(begun) {
			made = Made{Name: e.Checkpoint, At: e.At}
		}
	}
	return made
}

// missing says that a checkpoint that was made is not there.
func missing(dir string, made Made) string {
	return fmt.Sprintf("checkpoint %s of %s is recorded, but %s is missing", proc.Printable(made.Name), made.At.Local().Format(time.DateTime), filepath.Join(dir, store.CheckpointsDir, made.Name))
}

// isSame reports whether two paths lead to one directory.
func isSame(a, b string) bool {
	infoA, errA := os.Stat(a)
	infoB, errB := os.Stat(b)
	return errA == nil && errB == nil && os.SameFile(infoA, infoB)
}

func (r record) write(dir string) error {
	if r.Image != nil {
		r.Version = recordFromImage
	}
	return recordKind.Write(filepath.Join(dir, recordName), r)
}

// input is what the standard input of a job is. It is that from its first start on.
type input string

const (
	inputNone input = "" // /dev/null
	// Earlier versions gave the job a terminal, passed their own standard input on to it, or had it read the file that
	// it was, which criu opens again.
	inputTerminal input = "terminal"
	inputStream   input = "stream"
	inputFile     input = "file"
)

// check refuses what a job cannot get any more.
func (i input) check() error {
	if i == inputStream {
		return errors.New("the job reads input that an earlier version of cucriu run forwards to it (--stdin), which this version does not support: resume it with the version that started it")
	}
	return nil
}

// terminalSpec says what terminal a job of an earlier version is to have; nil if it had none.
func terminalSpec(s *core) *sandbox.TerminalSpec {
	if s.record.Input != inputTerminal {
		return nil
	}
	t := &sandbox.TerminalSpec{Output: s.outputPath()}
	if s.user != nil {
		t.User = &s.user.Credential
	}
	return t
}

// Description is what the directory of a job says of it.
type Description struct {
	Name     string
	Dir      string // as which its checkpoints can be restored
	Command  []string
	Begun    time.Time
	Finished bool
	// User is whose the job is; "" if the options of cucriu run say so, or it is not known of a job that was adopted.
	User    string
	Adopted bool
	// Attached says that an earlier version gave the job a terminal (--tty), or its own input (--stdin).
	Attached bool
	// Image is the image that the job was started from; "" if it was started by its command.
	Image string
}

// Describe reads what the directory of a job says of it. The error is [fs.ErrNotExist] if it is not
// the directory of a job.
func Describe(dir string) (Description, error) {
	return describeAs(filepath.Join(dir, recordName))
}

// describeAs is Describe for a record that has another name yet.
func describeAs(path string) (Description, error) {
	r, err := loadRecord(path)
	d := Description{
		Name: r.Name, Dir: r.Dir, Command: r.Command, Begun: r.Begun, Finished: r.Finished != nil, User: r.User,
		Adopted: r.Adopted, Attached: r.Input != inputNone,
	}
	if r.Image != nil {
		d.Image = r.Image.Path
	}
	return d, err
}

// OutputLog is where the output of a job is, in its directory.
const OutputLog = "output.log"

// OwnFiles are all names that there may be in the directory of a job that has not run here.
func OwnFiles() []string {
	return append(travelFiles(), "lock", "owner.json", "checkpoints", "staged", fenceName, undoName, arrivalsName, moveLockName, moveName,
		shownImage, privateDir, privateDir+".partial", copiedImage, copiedImage+".partial", packedDir)
}

// NoteLocal notes in the run directory what a job does on this host that has no supervisor here.
func NoteLocal(runDir, dir string, state State) error {
	of, err := Describe(dir)
	if errors.Is(err, fs.ErrNotExist) {
		of, err = Description{Name: filepath.Base(dir)}, nil
	}
	if err != nil {
		return err
	}
	folder := localDir(runDir, dir)
	if l, err := readLocal(folder); err == nil && (l.alive || l.PID != 0) {
		return nil // it is supervised, or to be found
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return fmt.Errorf("run directory: %w", err)
	}
	return localKind.Write(folder, Local{Name: of.Name, Dir: dir, State: state})
}

// Runs reports whether the job runs, or is paused, with a supervisor.
func (l Local) Runs() bool {
	return l.PID != 0 && (l.State == StateRunning || l.State == StateCheckpoint || l.State == StatePaused)
}
