// Package files knows the files of a job that belong to a checkpoint: what its processes have open or mapped for
// writing, and the directories that the job has for itself, such as its /dev/shm. It saves them beside the image
// while the job is paused, and puts them back before criu restores it. What is only read is listed, to be compared.
// Otherwise a job that resumes from a checkpoint would meet files that are newer than its memory, and criu would
// refuse those of another size.
//
// The checkpoint's directory gets a list, cucriu-files.json, and the content:
// cucriu-file-N, one for each file that is saved, and cucriu-tree-N, one for each directory. Only data is
// stored, without the holes.
//
// PutBack makes a list of what is to be done at each path, and refuses what cannot be done, before it
// changes anything. It never loses what is newer than the checkpoint: it copies that to
// NAME.cucriu-TIME beside the file, waits until the copy is on disk, and only then changes the file in
// place. The file stays the same inode, with its names, owner, ACLs and attributes, which other
// programs may have open. One that is missing is written beside, and then gets its name. The list is
// also the record of how to undo this: until [Forget], [Undo] makes the files again what they were,
// whoever was killed at whatever point.
//
// A checkpoint may be put back on another host, too: see [Options] and [PutBackOptions]. What is
// made there for a job can be found and removed again, even if PutBack is killed: see [Made].
//
// The package works as root for a job that may be somebody else's. So it follows no
// symbolic link, and it writes only to a file that has the owner that it had at the
// checkpoint, and no more names than then.
//
// What the processes have open or mapped is read by package inventory. From that, scan.go chooses what belongs to the
// checkpoint, save.go copies it and makes the list, whose format is in list.go, and putback.go puts it back.
//
// The package knows /proc, files and a directory. It knows nothing of criu's images or CUDA.
package files
