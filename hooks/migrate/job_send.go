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
	"sync/atomic"
	"time"

	"cucriu/hooks/jobs"
	"cucriu/hooks/migrate/wire"
)

// sentFiles are the files of one round.
type sentFiles struct {
	files []sentFile
	total int64
	done  atomic.Int64
}

type sentFile struct {
	name    string // in the round
	content io.ReaderAt
	close   func() error
	size    int64
}

func (f *sentFiles) add(content io.ReaderAt, close func() error, size int64) (name string) {
	name = fmt.Sprintf("f%d", len(f.files))
	f.files = append(f.files, sentFile{name, content, close, size})
	f.total += size
	return name
}

func (f *sentFiles) addPath(path string) (name string, err error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	info, err := file.Stat()
	if err != nil {
		return "", errors.Join(err, file.Close())
	}
	return f.add(file, file.Close, info.Size()), nil
}

func (f *sentFiles) closeAll() {
	for _, file := range f.files {
		if file.close != nil {
			_ = file.close()
		}
	}
}

// send sends the checkpoints that the destination has not: all of them while the job runs on, and
// with last the newest one, and the job's other files.
func (s *jobSource) send(ctx context.Context, last bool) error {
	files := new(sentFiles)
	defer files.closeAll()
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
	files.add(bytes.NewReader(data), nil, int64(len(data)))
	files.files[len(files.files)-1].name = jobManifestName
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
				if name, err = files.addPath(filepath.Join(s.job.Dir, "checkpoints", l.Name, f.Name)); err != nil {
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
		sent, err := files.addPath(filepath.Join(s.job.Dir, name))
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

// sendRound has the destination listen, and sends files there.
func (s *jobSource) sendRound(ctx context.Context, files *sentFiles) error {
	s.round++
	if err := s.remote.Send(sayJobRound, jobRound{Number: s.round, Bytes: files.total}); err != nil {
		return err
	}
	var at listening
	if err := s.remote.expect(ctx, sayListening, &at); err != nil {
		return err
	}
	config, err := s.identity.ClientConfig(s.remote.peer.Fingerprint)
	if err != nil {
		return err
	}
	dial := s.options.dataDialer(at, config)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	over := make(chan struct{})
	defer close(over)
	go s.giveUpWhenLost(over, cancel)
	options := wire.SendOptions{
		Dial:    dial,
		Streams: streamsOf(s.options), BytesPerSecond: s.options.BytesPerSecond, Progress: files.done.Store,
	}
	s.options.Compress.apply(&options, 0)
	sender, err := wire.NewSender(ctx, options)
	if err != nil {
		return err
	}
	name := "ahead"
	if !s.stopped.IsZero() {
		name = "send"
	}
	s.tell(Progress{Phase: name, Done: files.done.Load, Total: files.total})
	for _, f := range files.files {
		if err := sender.Range(ctx, f.name, f.content, 0, f.size); err != nil {
			return err
		}
		if err := sender.Close(ctx, f.name, f.size); err != nil {
			return err
		}
	}
	totals, err := sender.Finish(ctx)
	s.result.Bytes += totals.Bytes
	s.result.Link += totals.Sent
	return err
}

// giveUpWhenLost ends a transfer whose control connection is lost.
func (s *jobSource) giveUpWhenLost(over chan struct{}, cancel context.CancelCauseFunc) {
	select {
	case <-s.remote.Done():
		select {
		case <-over:
		case <-time.After(5 * time.Second): // for the receiver's own words
			cancel(errors.New("the connection to the destination is lost"))
		}
	case <-over:
	}
}
