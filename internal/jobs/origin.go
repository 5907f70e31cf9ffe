package jobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gofrs/flock"
	"golang.org/x/sys/unix"

	"cucriu/hooks/image"
	"cucriu/hooks/preflight"
	"cucriu/internal/jobs/inside"
	"cucriu/internal/jobs/job"
	"cucriu/internal/jobs/sandbox"
	"cucriu/internal/jobs/store"
	"cucriu/internal/kit/criuimage"
	"cucriu/internal/kit/durable"
	"cucriu/internal/kit/failpoint"
	"cucriu/internal/kit/fault"
	"cucriu/internal/kit/files"
	"cucriu/internal/kit/first"
	"cucriu/internal/kit/guest"
	"cucriu/internal/kit/imagedir"
	"cucriu/internal/kit/records"
	"cucriu/internal/kit/twice"
)

// origin is the image that a job was started from. The job is one of its own, which writes to no file that the job of
// the image was writing: it sees its own directory where that job had its own, and private copies of the directories in
// which that job was writing. All others it shares with the host.
type origin struct {
	Asked string `json:"asked"` // as the user named it
	Path  string `json:"path"`  // of the image, a checkpoint of a long job or the image of a dump
	ID    string `json:"id"`    // see [image.Image.ID]
	// Copy says that the job has a copy of it, and needs no other: see [starter.copyImage].
	Copy bool `json:"copy,omitempty"`
	// Dir is the directory that the job of the image had, as it saw it; "" if it was no long job.
	Dir        string   `json:"dir"`
	PrivateTmp bool     `json:"private_tmp,omitempty"`
	Private    []string `json:"private,omitempty"` // directories; the copy of number n is in D/private/n
	// Addresses are those at which the image and the job's checkpoints have sockets, beside loopback addresses, and those
	// of the job of the image. A network of the job's own has them.
	Addresses []netip.Addr `json:"addresses,omitempty"`
}

const (
	shownImage = "image"   // an empty directory in D, where the job's sandbox shows its image
	privateDir = "private" // in D
	oursPrefix = "cucriu-" // of copies of our own files in an image, with which they travel
)

// ours are the files of ours in the directory of a job that its processes have mapped, with how they are put there.
var ours = map[string]struct {
	place func(dir string) error
	mode  os.FileMode
}{
	first.File: {first.Place, first.Mode},
	guest.File: {guest.Place, guest.Mode},
}

// ImageError says why no job can be started from an image. Nothing of it was started.
type ImageError struct {
	Path string
	Err  error
}

func (e *ImageError) Error() string { return fmt.Sprintf("image %s: %v", e.Path, e.Err) }

func (e *ImageError) Unwrap() error { return e.Err }

// recordFrom is the record of a new job that is started from an image.
func recordFrom(o Options) (record, error) {
	path, err := resolveImage(o.Image)
	if err != nil {
		return record{}, &ImageError{o.Image, err}
	}
	c, from, err := readOrigin(path)
	if _, statErr := os.Lstat(filepath.Join(o.Dir, privateDir)); err == nil && statErr == nil {
		err = fault.New(filepath.Join(o.Dir, privateDir)+" has files of an earlier job", "name another --dir")
	}
	if err == nil && from.Dir != "" && (isBelow(resolve(o.Dir), from.Dir) || isBelow(from.Dir, resolve(o.Dir))) {
		err = fault.New(fmt.Sprintf("the job sees its directory at %s, and %s cannot be there, too", from.Dir, o.Dir),
			"name a --dir elsewhere")
	}
	if err == nil {
		err = checkUnchanged(c, asItIs)
	}
	if err == nil {
		from.Asked, from.Copy = o.Image, o.CopyImage != nil && *o.CopyImage
		from.Private, err = privateDirs(c, from.Dir, o)
	}
	_, of := ownerOf(path)
	if err == nil {
		err = of.refuseAround(from.Private)
	}
	if err != nil {
		return record{}, &ImageError{path, err}
	}
	r := record{
		Version: recordVersion, Name: cmp.Or(o.Name, filepath.Base(o.Dir)), Dir: o.Dir, Command: []string{c.Command},
		WorkDir: "/", Image: &from, Begun: time.Now().UTC(),
	}
	if len(of.Command) > 0 { // else only its name is known
		r.Command, r.WorkDir = of.Command, of.WorkDir
		if of.Image != nil {
			from.Addresses = of.Image.Addresses
		}
	}
	return r, nil
}

// resolveImage returns the path of the image that the user has named, by its directory, or as the newest checkpoint of a
// long job.
func resolveImage(asked string) (string, error) {
	path, err := filepath.EvalSymlinks(asked)
	if err != nil {
		return "", err
	}
	if err := durable.CheckPath("image directory", path, 0); err != nil {
		return "", err
	}
	if _, err := os.Lstat(filepath.Join(path, recordName)); err != nil {
		return path, nil
	}
	view, err := store.View(path)
	if err != nil {
		return "", err
	}
	all, err := view.Checkpoints()
	if err != nil {
		return "", err
	}
	if last := len(all) - 1; last >= 0 && errors.Is(all[last].Err, records.ErrNewer) { // no older one without a word
		return "", byMaker(all[last].Dir, all[last].Err)
	}
	newest := newestOf(all)
	if newest == nil {
		return "", fault.New("that job has no checkpoint that can be used", "make one: cucriu jobs checkpoint "+asked)
	}
	return filepath.Join(path, store.CheckpointsDir, newest.Name), nil
}

// ownerOf returns the directory of the job in which a checkpoint is, without links, and its record; "" if it is in
// none.
func ownerOf(image string) (dir string, of record) {
	if _, dir = twice.KeptIn(image); dir != "" {
		of, _ = loadRecord(filepath.Join(dir, recordName)) // what it does not say, nobody knows
	}
	return dir, of
}

// readOrigin reads what an image is that jobs can be started from.
func readOrigin(path string) (c store.Checkpoint, from origin, err error) {
	defer func() { err = byMaker(path, err) }()
	c, err = store.ReadImage(path)
	if err != nil {
		return c, from, err
	}
	if c.IsDump() {
		return c, origin{Path: path, ID: c.Image().ID()}, nil
	}
	_, trees, err := files.Written(path)
	if err != nil {
		return c, from, err
	}
	from = origin{Path: path, ID: c.Image().ID(), PrivateTmp: slices.Contains(trees, tmp)}
	of, err := inside.ReadStaged(path)
	if err != nil {
		return c, from, err
	}
	dir, owner := ownerOf(path)
	if len(of.Private) > 0 && dir == "" {
		return c, from, fault.New("it is a copy of a checkpoint whose job has files of its own, which are not here",
			"name the directory of that job")
	}
	if len(of.Private) > 0 && owner.Image == nil {
		return c, from, fault.New(filepath.Join(dir, recordName)+" does not say which files its job has of its own",
			"restore that from a backup, or use the version of cucriu that has written it")
	}
	if from.Dir = cmp.Or(of.Dir, owner.Dir); from.Dir == "" { // an earlier version has made it, and it is a copy
		return c, from, fault.New("it does not say which directory its job had",
			"name the directory of the job that it was made of")
	}
	from.Dir = resolve(from.Dir) // as criu names what is in it
	return c, from, nil
}

// byMaker has an error about what a newer cucriu has written say which that is.
func byMaker(dir string, err error) error {
	explained := new(fault.Explained)
	if !errors.Is(err, records.ErrNewer) || !errors.As(err, &explained) {
		return err
	}
	made, _ := image.ReadOptions(dir)
	return fault.Because(err, explained.Meaning(), made.MakerRemedy())
}

// own lists the directories in which the job has files of its own.
func (from *origin) own() []string {
	own := append([]string{shm}, from.Private...)
	if from.Dir != "" {
		own = append(own, from.Dir)
	}
	return own
}

// Start says what a job is that is started from an image.
type Start struct {
	// Own are the directories in which it has files of its own. Shared are files outside of them that the job of the image
	// had open or mapped, and that it shares with the host.
	Own    []string `json:"own"`
	Shared []string `json:"shared"`
	// Jobs are the directories of those that were started on this host, and are there.
	Jobs []string `json:"jobs,omitempty"`
}

// StartFrom reads what a job is that is started from an image. The error says why there can be none.
func StartFrom(image string) (Start, error) {
	path, err := filepath.EvalSymlinks(image)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return Start{}, err
	}
	c, from, err := readOrigin(path)
	if err == nil {
		err = checkUnchanged(c, asItIs)
	}
	if err == nil {
		from.Private, err = privateDirs(c, from.Dir, Options{})
	}
	if err != nil {
		return Start{}, err
	}
	all, err := criuimage.Files(path)
	start := Start{Own: from.own(), Shared: []string{}, Jobs: c.Jobs}
	for _, f := range all {
		isIn := func(dir string) bool { return isBelow(f.Path, dir) }
		if f.Mode&unix.S_IFMT == unix.S_IFREG && !isIn(aboutDir) && !slices.ContainsFunc(start.Own, isIn) {
			start.Shared = append(start.Shared, f.Path)
		}
	}
	return start, err
}

// isBelow reports whether a path is that of a directory, or of what is in it.
func isBelow(path, dir string) bool {
	rest, err := filepath.Rel(dir, path)
	return err == nil && filepath.IsLocal(rest)
}

// resolve follows the symbolic links of a path as far as it exists.
func resolve(path string) string {
	if followed, err := filepath.EvalSymlinks(path); err == nil || filepath.Dir(path) == path {
		return followed
	}
	return filepath.Join(resolve(filepath.Dir(path)), filepath.Base(path))
}

// shown is what the sandbox of the job shows in place of the host's. dir is the job's. Both jobs' directories are
// root's alone, and links may lead there. What is gone, with the job of the image, is made to mount on.
func (from *origin) shown(dir string) (shown []sandbox.Shown, err error) {
	own, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, err
	}
	for _, at := range append([]string{cmp.Or(from.Dir, own)}, from.Private...) {
		if err := makeMissing(at, 0o700); err != nil {
			return nil, err
		}
	}
	if dir = own; from.Dir != "" {
		at, err := filepath.EvalSymlinks(from.Dir)
		if err != nil {
			return nil, err
		}
		if at != own {
			shown = append(shown, sandbox.Shown{Dir: own, At: at})
		}
	}
	for n, at := range from.Private {
		shown = append(shown, sandbox.Shown{Dir: filepath.Join(dir, privateDir, strconv.Itoa(n)), At: at})
	}
	return shown, nil
}

// makeMissing makes a directory, and those above it for everybody, and follows no symbolic link.
func makeMissing(path string, mode uint32) error {
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := makeMissing(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return files.MakeDirectory(path, mode, 0, 0, func(files.Made) error { return nil })
}

// hostPath is where the host has a file or a directory of the job.
func (r record) hostPath(path string) string {
	if r.Image == nil {
		return path
	}
	for n, private := range r.Image.Private {
		if isBelow(path, private) {
			return filepath.Join(r.Dir, privateDir, strconv.Itoa(n), strings.TrimPrefix(path, private))
		}
	}
	return path
}

// refuseAround fails if one of these directories, of which a job from an image of this one is to get copies, has in it one
// that is private to this job: the copy would have the host's in its place.
func (r record) refuseAround(dirs []string) error {
	if r.Image == nil {
		return nil
	}
	for _, private := range r.Image.Private {
		for _, dir := range dirs {
			if dir != private && isBelow(private, dir) {
				return fault.New(fmt.Sprintf("each job from the image gets a copy of %s, in which the job of the image has "+
					"%s of its own", dir, private), "name directories with --private that do not contain that one")
			}
		}
	}
	return nil
}

// open reads the image again, which must be the same.
func (from *origin) open() (store.Checkpoint, error) {
	if _, err := os.Stat(from.Path); errors.Is(err, fs.ErrNotExist) {
		return store.Checkpoint{}, fault.New("it is gone, and the job has no checkpoint of its own",
			"bring it back, or mount the disk that it is on")
	}
	c, now, err := readOrigin(from.Path)
	if err == nil && now.ID != from.ID {
		err = fault.New("it is not the image that this job was started from",
			"bring that back; or start another job, with a --dir of its own")
	}
	return c, err
}

// startFromImage starts the job from its image.
func (s *starter) startFromImage(ctx context.Context) error {
	from := s.record.Image
	refuse := func(err error) error { return errors.Join(&ImageError{from.Path, err}, s.withdraw()) }
	s.steps.begin()
	c, isCopy, err := s.openImage()
	if err != nil {
		return refuse(err)
	}
	if dir, _ := ownerOf(from.Path); dir != "" && !isCopy {
		if err := store.NoteStarted(from.Path, Key(s.Dir), s.Dir); err != nil { // it may be read-only
			s.say(fmt.Sprintf("image %s is not pinned, and its owner may remove it while this job needs it "+
				"(cucriu jobs pin on a host that can write there prevents that): %v", from.Path, err))
		}
	}
	if err := failpoint.Hit(ctx, "image.noted", 0); err != nil {
		return refuse(err)
	}
	if from.Copy && !isCopy {
		c, err = s.copyImage(ctx, c)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return refuse(err)
		}
		s.steps.over("copy image")
	}
	if from.Copy {
		_ = store.ForgetStarted(from.Path, Key(s.Dir)) // whoever owns the image may have removed it
	}
	turn, err := s.prepareNetwork(ctx, c.Dir, true)
	if err != nil {
		return errors.Join(err, s.withdraw())
	}
	defer turn.Close()
	copies, err := s.layOut(ctx, c)
	if err == nil && copies {
		err = checkUnchanged(c, asItIs) // what was copied may have changed meanwhile
	}
	if err == nil {
		err = checkUnchanged(c, s.record.hostPath)
	}
	if err == nil {
		err = failpoint.Hit(ctx, "image.laid-out", 0)
	}
	if ctx.Err() != nil { // the job is not to be started any more, and the image is no reason
		return context.Cause(ctx)
	}
	if err != nil {
		return refuse(err)
	}
	s.steps.over("lay out")
	s.sayNeighbor(ctx, c)
	if copies {
		s.sayOutOfReach(c)
	}
	shown := sandbox.Shown{Dir: c.Dir, At: filepath.Join(s.Dir, shownImage), ReadOnly: true}
	if err := s.restore(ctx, c, shown, copies); err != nil {
		if errors.As(err, new(*job.NotStartedError)) {
			if copies { // which are not as they were copied any more
				err = errors.Join(err, os.RemoveAll(filepath.Join(s.Dir, privateDir)))
			}
			return errors.Join(err, s.withdraw())
		}
		if errors.As(err, new(*store.DamageError)) {
			return refuse(s.aboutCopy(err))
		}
		if preflight.Refused(err) {
			return refuse(err)
		}
		return fmt.Errorf("%s could not be started from image %s: %w", s.record.Name, from.Path, err)
	}
	message := fmt.Sprintf("%s: from image %s of %s", s.record.Name, from.Path, age(c))
	s.tell(s.steps.event(Event{Event: EventStarted, Message: message}))
	s.inform("the job has files of its own in " + strings.Join(from.own(), ", ") + "; it shares all others with the host")
	if with, err := image.ReadOptions(c.Dir); err == nil && len(with.Pipes) > 0 {
		s.inform("the job of the image wrote into pipes; this one writes to " + s.outputPath() + " instead")
	}
	if len(from.Addresses) > 0 && s.Net == NetOwn {
		s.inform(fmt.Sprintf("the job's network has the addresses that it had: %v", from.Addresses))
	}
	return s.openRoot()
}

// sayNeighbor says if another program uses a GPU of a job that uses several: a checkpoint of such a job is refused.
func (s *starter) sayNeighbor(ctx context.Context, c store.Checkpoint) {
	m, err := imagedir.ReadManifest(c.Dir)
	if err != nil || m.Used() < 2 {
		return
	}
	g, err := job.GivenGPUs(s.hook, environment(s.Options), false)
	if err != nil {
		return // the start says so
	}
	driver, err := s.hook.OpenDriver()
	if err != nil {
		return
	}
	for _, gpu := range g.Visible {
		pids, _ := driver.ContextsOn(ctx, gpu.UUID)
		if len(pids) == 0 {
			continue
		}
		s.say(fmt.Sprintf("%s: process %d uses GPU %v, too: that cannot interrupt the kernels of a job that was restored, "+
			"and ends them if one waits for another GPU for some seconds: give the job GPUs of its own",
			preflight.FindingGPUInUse, pids[0], gpu.UUID))
		return
	}
}

// awaitNames waits until no other job is restored from an image if this one has files or directories without a name
// that are not its own: criu gives them one for a moment, which is the same for all jobs from the image.
func (s *starter) awaitNames(ctx context.Context, images string) (turn *flock.Flock, err error) {
	turn = flock.New(filepath.Join(s.hook.Config.RunDir, "names"))
	from := s.record.Image
	if from == nil {
		return turn, nil
	}
	unnamed, err := criuimage.Unnamed(images)
	if err != nil {
		return nil, err
	}
	isShared := func(path string) bool {
		isOwn := isBelow(path, shm) || isBelow(path, from.Dir) || from.PrivateTmp && isBelow(path, tmp)
		return !isOwn && s.record.hostPath(path) == path
	}
	if slices.ContainsFunc(unnamed, isShared) {
		_, err = turn.TryLockContext(ctx, 20*time.Millisecond) // there is no event to wait for
	}
	return turn, err
}

// addOurs puts copies of our files into an image that becomes a checkpoint: a job that is started from it has them mapped.
func (s *core) addOurs(images string) error {
	for name, of := range ours {
		data, err := os.ReadFile(filepath.Join(s.Dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = durable.WriteNew(filepath.Join(images, oursPrefix+name), data, of.mode)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
