package migrate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"cucriu/internal/jobs"
)

// sentFiles are the files of one round.
type sentFiles struct {
	files  []sentFile
	total  int64 // bytes
	opened []*os.File
}

type sentFile struct {
	name    string // in the round
	content io.ReaderAt
	size    int64
}

func (f *sentFiles) add(name string, content io.ReaderAt, size int64) {
	f.files = append(f.files, sentFile{name, content, size})
	f.total += size
}

// open adds a file of this host, under a name of the round.
func (f *sentFiles) open(path string) (name string, err error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	f.opened = append(f.opened, file)
	info, err := file.Stat()
	if err != nil {
		return "", err
	}
	name = fmt.Sprintf("f%d", len(f.files))
	f.add(name, file, info.Size())
	return name, nil
}

func (f *sentFiles) close() {
	for _, file := range f.opened {
		file.Close()
	}
}

// send sends the checkpoints that the destination has not: all of them while the job runs on, and
// with last the newest one, and the job's other files.
func (s *jobSource) send(ctx context.Context, last bool) error {
	files := new(sentFiles)
	defer files.close()
	manifest, err := s.collect(files, last)
	if err != nil {
		return err
	}
	if !last && len(manifest.Checkpoints) == 0 {
		return nil
	}
	data, err := json.Marshal(manifest)
	if err != nil {
		return err
	}
	files.add(jobManifestName, bytes.NewReader(data), int64(len(data)))
	if err := s.sendRound(ctx, files); err != nil {
		return err
	}
	if err := s.remote.Send(sayJobTake, nil); err != nil {
		return err
	}
	if err := s.remote.expect(ctx, sayTaken, nil); err != nil {
		return err
	}
	for _, c := range manifest.Checkpoints {
		s.there[c.Name] = c.CRC32C
	}
	return nil
}

// collect opens what a round has. A checkpoint may be pruned meanwhile, as long as the job runs:
// it does not go ahead then.
func (s *jobSource) collect(files *sentFiles, last bool) (m jobManifest, err error) {
	newest, found, err := s.newest()
	if err != nil {
		return m, err
	}
	if !found {
		return m, errors.New("there is no checkpoint to move")
	}
	listed, err := s.view.List(func(name string, crc32c uint32) bool {
		there, is := s.there[name]
		return is && there == crc32c || !last || name == newest.Name
	})
	if err != nil {
		return m, err
	}
	for _, l := range listed {
		if there, is := s.there[l.Name]; is && there == l.CRC32C {
			continue
		}
		c := jobCheckpoint{Listed: l}
		for _, f := range l.Files {
			name := ""
			if f.SameAs == "" {
				if name, err = files.open(filepath.Join(s.job.Dir, "checkpoints", l.Name, f.Name)); err != nil {
					return m, err
				}
			}
			c.Sent = append(c.Sent, name)
		}
		m.Checkpoints = append(m.Checkpoints, c)
	}
	if !last {
		return m, nil
	}
	for _, name := range jobs.TravelFiles() {
		sent, err := files.open(filepath.Join(s.job.Dir, name))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return m, err
		}
		m.Others = append(m.Others, jobFile{Name: name, Sent: sent})
	}
	return m, nil
}

// sendRound sends the files of a round.
func (s *jobSource) sendRound(ctx context.Context, files *sentFiles) error {
	s.round++
	way, err := s.open(ctx, sayJobRound, round{Number: s.round})
	if err != nil {
		return err
	}
	defer way.close()
	name := "ahead"
	if !s.halted.IsZero() {
		name = "send"
	}
	s.tell(Progress{Phase: name, Done: way.sender.Arrived, Total: files.total})
	for _, f := range files.files {
		way.sender.Add(f.name, f.content).Complete(f.size)
	}
	err = way.finish(ctx)
	s.result.Bytes += way.totals.Bytes
	s.result.Link += way.totals.Sent
	return err
}
