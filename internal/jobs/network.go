package jobs

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/gofrs/flock"

	"cucriu/hooks/checkpoint"
	"cucriu/hooks/preflight"
	"cucriu/internal/kit/criuimage"
	"cucriu/internal/kit/failpoint"
	"cucriu/internal/kit/fault"
	"cucriu/internal/kit/imagedir"
	"cucriu/internal/kit/netns"
	"cucriu/internal/kit/proc"
)

// What [Options.Net] may be, beside a network namespace that is prepared.
const (
	NetOwn  = "own"  // loopback, and ports that are published
	NetHost = "host" // as of every other long job
)

// prepareNetwork refuses an image whose sockets cannot be restored in the network that a job from an image is to have,
// or notes what a network of its own needs for them. isStart says that it is the image that the job is started from.
// Until turn is closed, no other such job looks for its ports in the same network: criu would let two listen at one.
func (s *starter) prepareNetwork(ctx context.Context, image string, isStart bool) (turn *flock.Flock, err error) {
	if s.record.Image == nil {
		return new(flock.Flock), nil
	}
	turn = flock.New(filepath.Join(s.hook.Config.RunDir, "ports-"+Key(s.Net)))
	defer func() {
		if err != nil {
			turn.Close()
		}
	}()
	sockets, _ := imagedir.Open(image).Sockets() // the restore says what is wrong with it
	s.takeAddresses(sockets)
	if err := failpoint.Hit(ctx, "image.addresses", 0); err != nil {
		return turn, err
	}
	if s.Net != NetOwn {
		locked, err := turn.TryLock()
		if err == nil && !locked {
			s.inform("waiting for another job that is being started in the same network")
			_, err = turn.TryLockContext(ctx, 20*time.Millisecond) // there is no event to wait for
		}
		if err != nil {
			return turn, err
		}
	}
	var findings preflight.Findings
	const own = "--net own gives the job a network of its own, with --publish for its ports"
	switch {
	case s.Net == NetOwn:
		return turn, nil
	case s.Net != NetHost:
		findings, err = preparedFindings(s.Net, image)
	case isStart && len(sockets.Inside) > 0: // even if no job has them now
		err = fault.New(fmt.Sprintf("the image has both ends of the TCP connection from %v, and these cannot exist "+
			"twice in one network", sockets.Inside[0]), own)
	default:
		findings = checkpoint.AddressFindings(image, "")
		for i := range findings {
			findings[i].Remedy += "; or " + own
		}
	}
	if err == nil {
		err = s.hook.Judge(findings).Err()
	}
	if err != nil {
		err = &ImageError{image, fmt.Errorf("--net %s: %w", s.Net, err)}
	}
	return turn, err
}

// preparedFindings finds which addresses of an image, if any, a network namespace lacks that was prepared. It fails if
// there is no such namespace.
func preparedFindings(net, image string) (findings preflight.Findings, err error) {
	proc.OnOwnThread(func() {
		if err = netns.Join(netns.Path(net)); err == nil && image != "" {
			findings = checkpoint.AddressFindings(image, "nsenter --net="+netns.Path(net)+" ")
		}
	})
	return findings, err
}

// isPrepared reports whether --net names a network namespace that was prepared.
func isPrepared(net string) bool { return net != "" && net != NetOwn && net != NetHost }

// takeAddresses notes at which addresses an image has sockets, before they are needed.
func (s *starter) takeAddresses(sockets criuimage.Sockets) {
	from := s.record.Image
	before := len(from.Addresses)
	for _, address := range sockets.Local {
		if !address.IsLoopback() && !slices.Contains(from.Addresses, address) {
			from.Addresses = append(from.Addresses, address)
		}
	}
	if len(from.Addresses) > before {
		s.sayError(s.record.write(s.Dir)) // a full disk does not stop a job
	}
}
