package prepare

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// missing adds a file that is not there.
func missing(j *Job) *File {
	j.Files = append(j.Files, File{Path: "/nonexistent/file", PID: j.RootPID, Mode: unix.S_IFREG | 0o644, Size: 100})
	return &j.Files[len(j.Files)-1]
}

var fileChanges = []change{
	{
		name: "a file that is not there", change: func(_ *testing.T, j *Job, _ *Room) { missing(j) },
		want: []string{"error file-missing"}, words: []string{"/nonexistent/file does not exist", "--copy-files"},
	},
	{
		name: "a file that is not there, and is copied", change: func(t *testing.T, j *Job, room *Room) {
			room.Copy = CopyMissing
			missing(j).Path = t.TempDir() + "/file"
		},
		words: []string{"1 are copied, 100 B"}, copies: 1,
	},
	{
		name: "a file that is copied into a directory that is not there", change: func(_ *testing.T, j *Job, room *Room) {
			room.Copy = CopyMissing
			missing(j)
			missing(j).Path = "/nonexistent/another"
		},
		want: []string{"error directory-missing"}, words: []string{"/nonexistent does not exist here, and /nonexistent/file is to be created in it", "mkdir -p /nonexistent"}, copies: 2,
	},
	{
		name: "a file that is copied into a directory that is made", change: func(t *testing.T, j *Job, room *Room) {
			room.Copy = CopyMissing
			dir := t.TempDir() + "/made"
			missing(j).Path = dir + "/below/file"
			j.SocketDirectories = append(j.SocketDirectories, Directory{Path: dir + "/below", PID: j.RootPID, Mode: 0o700}, Directory{Path: dir, PID: j.RootPID, Mode: 0o700})
		},
		copies: 1,
	},
	{
		name: "a directory that is made in one that is not there", change: func(_ *testing.T, j *Job, room *Room) {
			room.Copy = CopyMissing
			j.SocketDirectories = append(j.SocketDirectories, Directory{Path: "/nonexistent/made", PID: j.RootPID, Mode: 0o700})
		},
		want: []string{"error directory-missing"}, words: []string{"/nonexistent does not exist here, and /nonexistent/made is to be created in it"},
	},
	{
		name: "a file that is copied to where a symbolic link leads", change: func(t *testing.T, j *Job, room *Room) {
			room.Copy = CopyMissing
			dir := t.TempDir()
			if err := os.Symlink(dir, dir+"/link"); err != nil {
				t.Fatal(err)
			}
			missing(j).Path = dir + "/link/file"
		},
		want: []string{"error directory-missing"}, words: []string{"is reached through a symbolic link"}, copies: 1,
	},
	{
		name: "root's file, which a user's job reads", change: func(t *testing.T, j *Job, room *Room) {
			room.Copy = CopyMissing
			for n := range j.Processes {
				j.Processes[n].RealUID = 1000
			}
			missing(j).Path = t.TempDir() + "/root's"
			missing(j).Path = t.TempDir() + "/log"
			j.Files[len(j.Files)-1].Written = true
			missing(j).Path = t.TempDir() + "/own"
			j.Files[len(j.Files)-1].UID = 1000
		},
		want: []string{"error file-missing"}, words: []string{"belongs to user 0, who runs no process of the job"}, copies: 2,
	},
	{
		name: "a file that is not there, and is too large", change: func(_ *testing.T, j *Job, room *Room) {
			room.Copy = CopyMissing
			missing(j).Size = maxCopied + 1
		},
		want: []string{"error file-missing"}, words: []string{"up to 64.0 MiB"},
	},
	{
		name: "a file that is not there, and others write into it", change: func(_ *testing.T, j *Job, room *Room) {
			room.Copy = CopyMissing
			missing(j).Shared = true
		},
		want: []string{"error file-missing"}, words: []string{"other programs write into it"},
	},
	{
		name: "a file system that is not mounted", change: func(_ *testing.T, j *Job, _ *Room) {
			missing(j).Identity = Identity{FileSystem: "nfs4", Source: "server:/export"}
		},
		want: []string{"error file-missing"}, words: []string{"mount server:/export (nfs4)"},
	},
	{
		name: "a pipe that is not there", change: func(_ *testing.T, j *Job, room *Room) {
			room.Copy = CopyMissing
			f := missing(j)
			f.Pipe, f.Mode = true, unix.S_IFIFO|0o600
		},
		want: []string{"error file-missing"}, words: []string{"mkfifo /nonexistent/file"},
	},
	{
		name: "many files that are not there", change: func(_ *testing.T, j *Job, _ *Room) {
			for n := range maxNamed + 5 {
				missing(j).Path = fmt.Sprintf("/nonexistent/%d", n)
			}
		},
		want: repeat("error file-missing", maxNamed), words: []string{"likewise 5 more files"},
	},
	{
		name: "a file of another size", change: func(t *testing.T, j *Job, _ *Room) {
			elsewhere(j)
			file(t, j, "text").Size = 5
			j.Files[len(j.Files)-1].Identity.Inode++
		},
		want: []string{"error file-differs"}, words: []string{"has 4 bytes, but the job's has 5"},
	},
	{
		name: "a file of another mode", change: func(t *testing.T, j *Job, _ *Room) {
			elsewhere(j)
			file(t, j, "text").Mode = unix.S_IFREG | 0o600
			j.Files[len(j.Files)-1].Identity.Inode++
		},
		want: []string{"error file-differs"}, words: []string{"0640", "0600"},
	},
	{
		name: "a file of the same size", change: func(t *testing.T, j *Job, _ *Room) {
			elsewhere(j)
			file(t, j, "text").Identity.Inode++
		},
	},
	{
		name: "a library of another build", change: func(t *testing.T, j *Job, _ *Room) {
			elsewhere(j)
			program(t, j).BuildID = "0123456789abcdef"
		},
		want: []string{"error file-differs"}, words: []string{"is a different build"},
	},
	{name: "libraries of the same build", change: func(_ *testing.T, j *Job, _ *Room) { elsewhere(j) }},
	{
		name: "a file that the job writes, and that is another here", change: func(t *testing.T, j *Job, room *Room) {
			elsewhere(j)
			room.Copy = CopyMissing
			f := file(t, j, "text")
			f.Written, f.Identity.Inode = true, f.Identity.Inode+1
		},
		want: []string{"error file-differs"}, words: []string{"--copy-files=changed"},
	},
	{
		name: "a file that the job writes, and that is replaced", change: func(t *testing.T, j *Job, room *Room) {
			elsewhere(j)
			room.Copy = CopyChanged
			f := file(t, j, "text")
			f.Written, f.Identity.Inode = true, f.Identity.Inode+1
		},
		copies: 1,
	},
	{
		name: "a log that the job appends to, and that is another here", change: func(t *testing.T, j *Job, _ *Room) {
			elsewhere(j)
			f := file(t, j, "text")
			f.Written, f.AppendOnly, f.Size, f.Identity.Inode = true, true, 100, f.Identity.Inode+1
		},
		want: []string{"error file-differs"}, words: []string{"to which the job would append", "--copy-files=changed"},
	},
	{
		name: "a log that the job appends to, with others, and that is another here", change: func(t *testing.T, j *Job, room *Room) {
			elsewhere(j)
			room.Copy = CopyChanged
			f := file(t, j, "text")
			f.Written, f.AppendOnly, f.Shared, f.Identity.Inode = true, true, true, f.Identity.Inode+1
		},
		want: []string{"error file-differs"}, words: []string{"keep it on a file system that both hosts have mounted"},
	},
	{
		name: "a file that the job writes, on the same machine", change: func(t *testing.T, j *Job, _ *Room) {
			f := file(t, j, "text")
			f.Written, f.Size = true, 100 // it goes on to grow
		},
	},
	{
		name: "a file that the job writes, of a server that is this host", change: func(t *testing.T, j *Job, _ *Room) {
			elsewhere(j)
			f := file(t, j, "text")
			f.Written, f.Identity.FileSystem, f.Identity.Source, f.Identity.Device = true, "nfs4", "server:/export", 77
		},
		words: []string{"1 of them the very same"},
	},
	{
		name: "a file with the same inode, on a disk of its own", change: func(t *testing.T, j *Job, _ *Room) {
			elsewhere(j)
			file(t, j, "text").Written = true
		},
		want: []string{"error file-differs"},
	},
	{
		name: "a directory that is not there", change: func(_ *testing.T, j *Job, _ *Room) {
			j.Directories = append(j.Directories, "/nonexistent/work")
		},
		want: []string{"error directory-missing"}, words: []string{"mkdir -p /nonexistent/work"},
	},
	{
		name: "a file in place of a directory", change: func(t *testing.T, j *Job, _ *Room) {
			j.Directories = append(j.Directories, file(t, j, "text").Path)
		},
		want: []string{"error directory-missing"}, words: []string{"is not a directory here"},
	},
}

func repeat(text string, n int) []string {
	var list []string
	for range n {
		list = append(list, text)
	}
	return list
}
