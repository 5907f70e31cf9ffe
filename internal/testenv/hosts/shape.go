package hosts

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Shape is what a bad link does to packets. They go through the test's process, which moves
// some tens of megabytes a second, so the zero Shape is slower than the link itself.
type Shape struct {
	Delay time.Duration // in each direction
	Rate  int           // bytes a second in each direction; 0 for no limit
	Loss  float64       // part of the packets that are lost, 0 to 1
}

// queueTime is how much of the link's rate waits before packets are dropped, as in a router.
const queueTime = 200 * time.Millisecond

// Shape makes the link bad in both directions. Connections stay. It skips the test on a
// machine without TUN devices.
func (p *Pair) Shape(s Shape) {
	p.t.Helper()
	if p.forward != nil {
		p.Heal()
	}
	f := &forwarder{shape: s}
	var ends []*os.File
	for _, h := range p.Hosts() {
		end, err := h.openTUN()
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EPERM) {
			p.t.Skipf("a slow link needs /dev/net/tun: %v", err)
		}
		if err != nil {
			p.t.Fatal(err)
		}
		ends = append(ends, end)
	}
	p.forward = f
	f.start(ends[0], ends[1])
	f.start(ends[1], ends[0])
	for _, h := range p.Hosts() {
		if err := h.reach(tunName); err != nil {
			p.t.Fatal(err)
		}
	}
}

// openTUN makes a device on the host whose packets the test reads and writes.
func (h *Host) openTUN() (*os.File, error) {
	fd := -1
	err := h.network.do(func() (err error) {
		if fd, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0); err != nil {
			return err
		}
		request, err := unix.NewIfreq(tunName)
		if err != nil {
			return err
		}
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		return unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	})
	if err != nil {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
		return nil, fmt.Errorf("a TUN device on host %s: %w", h.Name, err)
	}
	tun := os.NewFile(uintptr(fd), tunName)
	link, err := h.network.handle.LinkByName(tunName)
	if err == nil {
		err = h.network.handle.LinkSetTxQLen(link, 1000)
	}
	if err == nil {
		err = h.network.handle.LinkSetUp(link)
	}
	if err != nil {
		_ = tun.Close()
		return nil, err
	}
	return tun, nil
}

// forwarder moves packets between two TUN devices.
type forwarder struct {
	shape   Shape
	ends    []*os.File
	running sync.WaitGroup
}

type packet struct {
	data []byte
	due  time.Time
}

// start forwards in one direction.
func (f *forwarder) start(from, to *os.File) {
	f.ends = append(f.ends, from)
	packets := make(chan packet, 1<<16)
	f.running.Go(func() {
		defer close(packets)
		f.read(from, packets)
	})
	f.running.Go(func() {
		for p := range packets {
			time.Sleep(time.Until(p.due))
			_, _ = to.Write(p.data)
		}
	})
}

// read reads packets until the device is closed, and drops those that are lost and those
// for which the queue has no room.
func (f *forwarder) read(from *os.File, packets chan<- packet) {
	var free time.Time // when the link has sent all that came before
	buffer := make([]byte, 1<<16)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		now := time.Now()
		if rand.Float64() < f.shape.Loss || free.Sub(now) > queueTime {
			continue
		}
		if free.Before(now) {
			free = now
		}
		if f.shape.Rate > 0 {
			free = free.Add(time.Duration(n) * time.Second / time.Duration(f.shape.Rate))
		}
		select {
		case packets <- packet{append([]byte(nil), buffer[:n]...), free.Add(f.shape.Delay)}:
		default:
		}
	}
}

func (f *forwarder) stop() {
	for _, end := range f.ends {
		_ = end.Close()
	}
	f.running.Wait()
}
