package image

import (
	"fmt"
	"path/filepath"

	"cucriu/hooks/timeline"
	"cucriu/internal/kit/durable"
)

// TimelineName is the file name of a dump's timeline in the image directory. The timeline ends
// with criu's last page, because publishing the image and ending the job come later.
const TimelineName = "cucriu-timeline.json"

const maxTimelineBytes = 8 << 20

// ReadTimeline reads and checks the timeline in an image directory. If there is none, the error
// is [os.ErrNotExist].
func ReadTimeline(dir string) (timeline.Trace, error) {
	path := filepath.Join(dir, TimelineName)
	data, err := durable.ReadFile(path, maxTimelineBytes)
	if err != nil {
		return timeline.Trace{}, fmt.Errorf("timeline: %w", err)
	}
	t, err := timeline.Parse(data)
	if err != nil {
		return timeline.Trace{}, fmt.Errorf("timeline %s is damaged: %w: the image does not need it", path, err)
	}
	return t, nil
}
