package figures

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"cucriu/internal/testenv/hosts"
)

const (
	imageDir    = "/dev/shm/by-hand"
	iperfLasts  = 5 * time.Second
	iperfServer = "5201"
)

// rate is how fast something was sent.
type rate struct {
	what  string
	bytes int64
	link  int64 // bytes over the link, as far as that is known; 0 if not
	took  time.Duration
	busy  float64 // part of all processors
}

func (r rate) perSecond() float64 { return float64(r.bytes) / r.took.Seconds() }

// streams is the number of connections that cucriu takes by itself.
func streams() int { return max(2, min(16, runtime.NumCPU()/2)) }

// throughput sends the image of a job of this size in all ways, several times.
func (f *figures) throughput(gibs float64) {
	bytes := int64(gibs * gib)
	f.say("\n## Throughput, %s\n", size(bytes))
	f.say("| | bytes | over the link | seconds | MB/s | of iperf3 with 1 stream | processors in use |")
	f.say("|---|---:|---:|---:|---:|---:|---:|")
	w := f.start(bytes)
	defer f.endWork(w)
	runs := make(map[string][]rate)
	var order []string
	var baseline float64
	note := func(loaded string, r rate) {
		if r.what == "iperf3, 1 stream" {
			baseline = r.perSecond()
		}
		if runs[r.what] = append(runs[r.what], r); len(runs[r.what]) == 1 {
			order = append(order, r.what)
		}
		link := ""
		if r.link > 0 {
			link = fmt.Sprint(r.link)
		}
		f.say("| %s%s | %d | %s | %.2f | %.0f | %.2f | %.0f %% |", r.what, loaded, r.bytes, link, r.took.Seconds(), r.perSecond()/1e6, r.perSecond()/baseline, 100*r.busy)
	}
	for range f.repeat {
		for _, n := range slices.Compact([]int{1, streams(), 4}) {
			note(f.waitUntilQuiet(), f.iperf(n))
		}
		// What goes ahead is a whole image, and nothing else is done meanwhile.
		for _, way := range [][]string{{"--compress", "never"}, {}, {"--compress", "never", "--via", "ssh"}} {
			loaded := f.waitUntilQuiet()
			m := f.migrate(w, append(way, "--precopy")...)
			sent := m.phase("ahead")
			note(loaded, rate{strings.Join(append([]string{"cucriu migrate"}, way...), " "), m.Ahead, m.Link - m.Bytes, sent.length(), f.meter.busy(sent)})
			f.back(w)
		}
		loaded := f.waitUntilQuiet()
		hand := f.byHand(w)
		note(loaded, rate{"rsync over ssh, the same bytes", hand.bytes, 0, hand.copy.length(), f.meter.busy(hand.copy)})
		f.back(w)
	}
	f.say("\nThe medians:\n")
	f.say("| | MB/s | of iperf3 with 1 stream | of rsync |")
	f.say("|---|---:|---:|---:|")
	median := func(what string) float64 {
		rates := make([]float64, 0, f.repeat)
		for _, r := range runs[what] {
			rates = append(rates, r.perSecond())
		}
		slices.Sort(rates)
		return rates[len(rates)/2]
	}
	for _, what := range order {
		f.say("| %s | %.0f | %.2f | %.2f |", what, median(what)/1e6, median(what)/median("iperf3, 1 stream"), median(what)/median("rsync over ssh, the same bytes"))
	}
}

// back brings a job back to host a, by the quickest way.
func (f *figures) back(w *hosts.Job) {
	f.t.Helper()
	if w.Host == f.B {
		f.migrate(w, "--compress", "never")
	}
}

// iperf measures the link from host a to host b.
func (f *figures) iperf(streams int) rate {
	f.t.Helper()
	iperf := filepath.Join(f.net, "iperf3")
	server := f.B.Command(f.t.Context(), iperf, "-s", "-1", "-p", iperfServer)
	if err := server.Start(); err != nil {
		f.t.Fatal(err)
	}
	defer func() {
		_ = server.Cancel()
		_ = server.Wait()
	}()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if out, _ := f.B.Try("cat", "/proc/net/tcp6", "/proc/net/tcp"); strings.Contains(out, fmt.Sprintf(":%04X", 5201)) {
			break
		}
		if time.Now().After(deadline) {
			f.t.Fatal("iperf3 does not listen")
		}
	}
	out, took := f.do(f.A, iperf, "-c", f.B.Addr.String(), "-p", iperfServer, "-t", strconv.Itoa(int(iperfLasts.Seconds())), "-P", strconv.Itoa(streams), "-J")
	var said struct {
		End struct {
			Received struct {
				Bytes   int64
				Seconds float64
			} `json:"sum_received"`
		}
	}
	if err := json.Unmarshal(out, &said); err != nil || said.End.Received.Seconds == 0 {
		f.t.Fatalf("iperf3: %v: %s", err, out)
	}
	r := said.End.Received
	name := fmt.Sprintf("iperf3, %d streams", streams)
	if streams == 1 {
		name = "iperf3, 1 stream"
	}
	return rate{name, r.Bytes, 0, time.Duration(r.Seconds * float64(time.Second)), f.meter.busy(took)}
}
