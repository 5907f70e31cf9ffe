package wire

import (
	"context"
	"io"
)

// File is a file that is there already. It must not change while it is sent.
type File struct {
	Name    string
	Content io.ReaderAt
	Size    int64
}

// sideBySide is how much of a file is queued before the next one has its turn, in bytes.
const sideBySide = 4 << 20

// Files queues whole files, and says that they are complete. It queues them piece by piece, side by
// side: the receiver's kernel lets only one write at a time into a file.
func (s *Sender) Files(ctx context.Context, files []File) error {
	for offset := int64(0); len(files) > 0; offset += sideBySide {
		var larger []File
		for _, f := range files {
			if err := s.Range(ctx, f.Name, f.Content, offset, min(sideBySide, f.Size-offset)); err != nil {
				return err
			}
			if f.Size > offset+sideBySide {
				larger = append(larger, f)
			} else if err := s.Close(ctx, f.Name, f.Size); err != nil {
				return err
			}
		}
		files = larger
	}
	return nil
}
