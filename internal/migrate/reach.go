package migrate

import (
	"context"
	"strings"

	"cucriu/internal/kit/failpoint"
)

// reach lets the tests make something go wrong at a point of a migration. It does nothing in a
// real build. The spaces of names are hyphens there.
func reach(ctx context.Context, point string) error {
	return failpoint.Hit(ctx, strings.ReplaceAll(point, " ", "-"), 0)
}
