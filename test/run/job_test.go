package run

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// jobVariable names the folder of a job that this program is to be.
const jobVariable = "CUCRIU_RUN_TEST_JOB"

// cudaVariable names the program that uses CUDA which the job is to start, if any.
const cudaVariable = "CUCRIU_RUN_TEST_CUDA"

const (
	tickEvery  = 20 * time.Millisecond
	timerEvery = 100 * time.Millisecond
)

// report is what the job says of itself after each tick, in the file status.
type report struct {
	PID   int    `json:"pid"`
	Tick  int    `json:"tick"`
	Bad   int    `json:"bad"`           // how often something was not as the job had left it
	What  string `json:"what"`          // the first such thing
	GapMS int64  `json:"gap_ms"`        // the longest time between two ticks, by the job's own clock
	UpMS  int64  `json:"up_ms"`         // how long it runs, by the same
	Timer uint64 `json:"timer_expired"` // of timerEvery
	Alarm int    `json:"alarms"`

	Echoes  int  `json:"echoes"`  // over the TCP connection inside of the job, if it has one
	Outside bool `json:"outside"` // the TCP connection to the outside is open
}

// counter is a job without CUDA. What it keeps in memory, in files and in /dev/shm must always
// agree.
type counter struct {
	report
	dir         string
	ticks, page *os.File // appended to; written in place
	shm         *os.File
	memory      *memory // nil if it is not to have much
	timer       int
	begun       time.Time
}

// runJob is the job. It ends with the status in the file stop.
func runJob(dir string) {
	c := &counter{dir: dir, report: report{PID: os.Getpid()}, begun: time.Now()}
	if err := c.open(); err != nil {
		fmt.Println("the job cannot begin:", err)
		os.Exit(3)
	}
	cuda, err := startCUDA(dir)
	if err != nil {
		fmt.Println("the job cannot begin:", err)
		os.Exit(3)
	}
	connection, err := connect()
	if err != nil {
		fmt.Println("the job cannot begin:", err)
		os.Exit(3)
	}
	alarms := make(chan os.Signal, 100)
	signal.Notify(alarms, unix.SIGALRM)
	_, _ = unix.Setitimer(unix.ITIMER_REAL, unix.Itimerval{Interval: unix.Timeval{Usec: 200_000}, Value: unix.Timeval{Usec: 200_000}})
	for last := time.Now(); ; {
		time.Sleep(tickEvery)
		now := time.Now()
		c.GapMS = max(c.GapMS, now.Sub(last).Milliseconds())
		last = now
		c.UpMS = now.Sub(c.begun).Milliseconds()
		for len(alarms) > 0 {
			<-alarms
			c.Alarm++
		}
		if connection != nil {
			c.talk(connection)
		}
		c.tick()
		if _, err := os.Stat(filepath.Join(dir, "close")); err == nil && connection != nil {
			connection.Close()
			connection = nil
		}
		if stop, err := os.ReadFile(filepath.Join(dir, "stop")); err == nil {
			status, _ := strconv.Atoi(strings.TrimSpace(string(stop)))
			if err := stopCUDA(dir, cuda); err != nil {
				fmt.Println("the job's CUDA process:", err)
				status = 4
			}
			os.Exit(status)
		}
	}
}

// connectVariable names a socket to which the job connects at first: the path of a UNIX socket, or
// the address of a TCP port. With the latter it has a TCP connection to itself as well.
const connectVariable = "CUCRIU_RUN_TEST_CONNECT"

// connections are those of the job.
type connections struct {
	outside net.Conn
	inside  []net.Conn // both ends
}

func connect() (*connections, error) {
	to := os.Getenv(connectVariable)
	if to == "" {
		return nil, nil
	}
	network := "tcp"
	if filepath.IsAbs(to) {
		network = "unix"
	}
	outside, err := net.Dial(network, to)
	if err != nil || network == "unix" {
		return &connections{outside: outside}, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	near, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		return nil, err
	}
	far, err := listener.Accept()
	return &connections{outside, []net.Conn{near, far}}, err
}

func (c *connections) Close() error { return c.outside.Close() }

// talk sends a word over each TCP connection, and expects it back from those who are there.
func (c *counter) talk(to *connections) {
	if len(to.inside) == 0 {
		return
	}
	word := []byte(line(c.Tick))
	got := make([]byte, len(word))
	_, err := to.inside[0].Write(word)
	if err == nil {
		_, err = io.ReadFull(to.inside[1], got)
	}
	if err != nil || !bytes.Equal(word, got) {
		c.wrong(fmt.Sprintf("inside: %q came as %q: %v", word, got, err))
	}
	c.Echoes++
	_ = to.outside.SetDeadline(time.Now().Add(time.Minute))
	if _, err = to.outside.Write(word); err == nil {
		_, err = io.ReadFull(to.outside, got)
	}
	c.Outside = err == nil
}

// startCUDA starts the process of the job that uses CUDA. It may return nil.
func startCUDA(dir string) (*exec.Cmd, error) {
	program := os.Getenv(cudaVariable)
	if program == "" {
		return nil, nil
	}
	dir = filepath.Join(dir, "cuda")
	cmd := exec.Command(program, "--dir", dir, "--mib", "1", "--spin", "event-sync")
	return cmd, errors.Join(os.MkdirAll(dir, 0o700), cmd.Start())
}

func stopCUDA(dir string, cmd *exec.Cmd) error {
	if cmd == nil {
		return nil
	}
	if err := os.WriteFile(filepath.Join(dir, "cuda", "stop"), nil, 0o600); err != nil {
		return err
	}
	return cmd.Wait()
}

func (c *counter) open() error {
	var err error
	open := func(path string, flags int) (f *os.File) {
		if err == nil {
			f, err = os.OpenFile(path, flags|os.O_RDWR|os.O_CREATE, 0o600)
		}
		return f
	}
	c.ticks = open(filepath.Join(c.dir, "ticks"), os.O_APPEND|os.O_TRUNC)
	c.page = open(filepath.Join(c.dir, "page"), os.O_TRUNC)
	c.shm = open("/dev/shm/long-"+strconv.Itoa(os.Getpid()), os.O_TRUNC)
	if err != nil {
		return err
	}
	if c.memory, err = newMemory(); err != nil {
		return err
	}
	if c.timer, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC); err != nil {
		return err
	}
	every := unix.NsecToTimespec(int64(timerEvery))
	return unix.TimerfdSettime(c.timer, 0, &unix.ItimerSpec{Interval: every, Value: every}, nil)
}

const tickBytes = 21 // 20 digits and the end of the line

func line(tick int) string { return fmt.Sprintf("%020d\n", tick) }

// tick compares what was written with what is known, and writes more.
func (c *counter) tick() {
	c.expect("ticks", c.ticks, int64(c.Tick)*tickBytes)
	if c.Tick > 0 {
		c.expect("page", c.page, tickBytes)
		c.expect("/dev/shm", c.shm, tickBytes)
	}
	var expired [8]byte
	if n, _ := unix.Read(c.timer, expired[:]); n == 8 {
		for i, b := range expired {
			c.Timer += uint64(b) << (8 * i)
		}
	}
	if what := c.memory.tick(c.Tick); what != "" {
		c.wrong(what)
	}
	c.Tick++
	if _, err := c.ticks.WriteString(line(c.Tick)); err != nil {
		c.wrong("ticks: " + err.Error())
	}
	_, _ = c.page.WriteAt([]byte(line(c.Tick)), 0)
	_, _ = c.shm.WriteAt([]byte(line(c.Tick)), 0)
	fmt.Printf("tick %d\n", c.Tick)
	data, _ := json.Marshal(c.report)
	temporary := filepath.Join(c.dir, ".status")
	if os.WriteFile(temporary, data, 0o600) == nil {
		_ = os.Rename(temporary, filepath.Join(c.dir, "status"))
	}
}

// expect notes if a file does not have its size, or does not end with the last tick.
func (c *counter) expect(name string, f *os.File, size int64) {
	info, err := f.Stat()
	if err != nil || info.Size() != size {
		c.wrong(fmt.Sprintf("%s has %v bytes at tick %d, want %d (%v)", name, info.Size(), c.Tick, size, err))
		return
	}
	if size == 0 {
		return
	}
	last := make([]byte, tickBytes)
	if _, err := f.ReadAt(last, size-tickBytes); err != nil || string(last) != line(c.Tick) {
		c.wrong(fmt.Sprintf("%s ends with %q at tick %d (%v)", name, last, c.Tick, err))
	}
}

func (c *counter) wrong(what string) {
	c.Bad++
	if c.What == "" {
		c.What = what
	}
}
