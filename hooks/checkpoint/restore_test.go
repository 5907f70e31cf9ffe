package checkpoint

import (
	"context"
	"errors"
	"testing"

	"cucriu/criuutil"
	"cucriu/hooks"
	"cucriu/internal/core/session"
)

// TestADamagedImageFailsTheLastStageThatUndoesIt, and with criu that empties the image the first.
func TestADamagedImageFailsTheLastStageThatUndoesIt(t *testing.T) {
	damaged := errors.New("damaged")
	for _, autoDedup := range []bool{false, true} {
		for _, found := range []error{nil, damaged} {
			d := &criuSession{
				env: session.Of(new(hooks.Hook)), criu: &criuutil.Criu{AutoDedup: autoDedup},
				options: Options{CheckImage: func(context.Context) error { return found }},
			}
			for _, stage := range []string{criuutil.StagePreRestore, criuutil.StagePostRestore} {
				var want error
				if stage == criuutil.StagePostRestore || autoDedup {
					want = found
				}
				if err := d.checkImage(t.Context(), stage); !errors.Is(err, want) || (d.cause == "") != (want == nil) {
					t.Errorf("%s, found %v, --auto-dedup %v: %v, cause %q", stage, found, autoDedup, err, d.cause)
				}
			}
			d.endCheck(func() {})
		}
	}
}
