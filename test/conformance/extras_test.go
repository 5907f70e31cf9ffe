package conformance

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"
	"unsafe"

	"github.com/ebitengine/purego"
)

// A CUDA program for what cudawork does not do: NVML in the same process, CUDA graphs,
// arrays and green contexts. It writes the same status and answers the same check.

const (
	programWords = 1 << 18 // 1 MiB of device memory
	arrayWords   = 1 << 16 // of the array
	captureMode  = 2       // CU_STREAM_CAPTURE_MODE_RELAXED
	unsigned32   = 3       // CU_AD_FORMAT_UNSIGNED_INT32
	resourceSM   = 1       // CU_DEV_RESOURCE_TYPE_SM
	greenStream  = 1       // CU_GREEN_CTX_DEFAULT_STREAM
)

// cuda holds the functions that the program calls, by name.
type cuda struct {
	library uintptr
	err     error // the first error
}

// call calls a function unless one has failed before. What the arguments point to
// is moved to the heap, where it stays.
//
//go:uintptrescapes
func (c *cuda) call(name string, args ...uintptr) {
	if c.err != nil {
		return
	}
	function, err := purego.Dlsym(c.library, name)
	if err != nil {
		c.err = err
		return
	}
	if r, _, _ := purego.SyscallN(function, args...); uint32(r) != 0 {
		c.err = fmt.Errorf("%s: %d", name, uint32(r))
	}
}

// ownProgram is the running program.
type ownProgram struct {
	cuda, nvml    *cuda
	dir           string
	memory        uintptr
	array         uintptr // 0: none
	stream, graph uintptr // graph 0: none
	device        uintptr // NVML's, 0: none
	words         []uint32
	tick          int
	bad           int
}

func runProgram(args []string) error {
	flags := flag.NewFlagSet("program", flag.ContinueOnError)
	dir := flags.String("dir", "", "")
	withNVML := flags.Bool("nvml", false, "")
	withGraph := flags.Bool("graph", false, "")
	withArray := flags.Bool("array", false, "")
	green := flags.Bool("green", false, "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	runtime.LockOSThread() // the CUDA context is the thread's
	p := &ownProgram{dir: *dir, words: make([]uint32, programWords)}
	if err := p.setUp(*withNVML, *withGraph, *withArray, *green); err != nil {
		return err
	}
	for {
		if err := p.step(); err != nil {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func open(library string) (*cuda, error) {
	handle, err := purego.Dlopen(library, purego.RTLD_NOW|purego.RTLD_LOCAL)
	return &cuda{library: handle}, err
}

func (p *ownProgram) setUp(withNVML, withGraph, withArray, green bool) (err error) {
	if p.cuda, err = open("libcuda.so.1"); err != nil {
		return err
	}
	out := new(uintptr) // what each call below gives
	p.cuda.call("cuInit", 0)
	if green {
		p.greenContext(out)
	} else {
		p.cuda.call("cuDevicePrimaryCtxRetain", uintptr(unsafe.Pointer(out)), 0)
	}
	p.cuda.call("cuCtxSetCurrent", *out)
	p.cuda.call("cuMemAlloc_v2", uintptr(unsafe.Pointer(out)), programWords*4)
	p.memory = *out
	p.cuda.call("cuStreamCreate", uintptr(unsafe.Pointer(out)), 1)
	p.stream = *out
	if withArray {
		// CUDA_ARRAY_DESCRIPTOR: width, height, format and number of channels.
		description := &[3]uint64{arrayWords, 0, 1<<32 | unsigned32}
		p.cuda.call("cuArrayCreate_v2", uintptr(unsafe.Pointer(out)), uintptr(unsafe.Pointer(description)))
		p.array = *out
		p.fillArray()
	}
	if withGraph {
		p.cuda.call("cuStreamBeginCapture_v2", p.stream, captureMode)
		p.cuda.call("cuMemsetD32Async", p.memory, 7, programWords, p.stream)
		p.cuda.call("cuStreamEndCapture", p.stream, uintptr(unsafe.Pointer(out)))
		graph := *out
		p.cuda.call("cuGraphInstantiateWithFlags", uintptr(unsafe.Pointer(out)), graph, 0)
		p.graph = *out
	}
	if p.cuda.err != nil || !withNVML {
		return p.cuda.err
	}
	if p.nvml, err = open("libnvidia-ml.so.1"); err != nil {
		return err
	}
	p.nvml.call("nvmlInit_v2")
	p.nvml.call("nvmlDeviceGetHandleByIndex_v2", 0, uintptr(unsafe.Pointer(out)))
	p.device = *out
	return p.nvml.err
}

// greenContext creates a context on all multiprocessors.
func (p *ownProgram) greenContext(out *uintptr) {
	resource := new([64]uint64) // CUdevResource, which has grown with the versions
	p.cuda.call("cuDeviceGetDevResource", 0, uintptr(unsafe.Pointer(resource)), resourceSM)
	p.cuda.call("cuDevResourceGenerateDesc", uintptr(unsafe.Pointer(out)), uintptr(unsafe.Pointer(resource)), 1)
	description := *out
	p.cuda.call("cuGreenCtxCreate", uintptr(unsafe.Pointer(out)), description, 0, greenStream)
	made := *out
	p.cuda.call("cuCtxFromGreenCtx", uintptr(unsafe.Pointer(out)), made)
}

// fillArray writes the tick into the array.
func (p *ownProgram) fillArray() {
	words := p.words[:arrayWords]
	for i := range words {
		words[i] = uint32(p.tick)
	}
	p.cuda.call("cuMemcpyHtoA_v2", p.array, 0, uintptr(unsafe.Pointer(&words[0])), arrayWords*4)
}

// stepArray compares the array with the last tick, and writes the next one.
func (p *ownProgram) stepArray(last int) {
	words := p.words[:arrayWords]
	p.cuda.call("cuMemcpyAtoH_v2", uintptr(unsafe.Pointer(&words[0])), p.array, 0, arrayWords*4)
	for _, word := range words {
		if word != uint32(last) {
			p.bad++
		}
	}
	p.fillArray()
}

// step fills the memory (by the graph, if there is one) and compares it. It synchronizes
// only after a launch, which a lock holds back, so it does not need to be stopped for a
// checkpoint.
func (p *ownProgram) step() error {
	want := uint32(7)
	if p.graph != 0 {
		p.cuda.call("cuMemsetD32Async", p.memory, 0, programWords, p.stream)
		p.cuda.call("cuGraphLaunch", p.graph, p.stream)
		p.cuda.call("cuStreamSynchronize", p.stream)
	} else {
		// The value of the last tick must still be there: it is what a checkpoint saves.
		want = uint32(p.tick)
		if p.tick == 0 {
			p.cuda.call("cuMemsetD32Async", p.memory, 0, programWords, p.stream)
			p.cuda.call("cuStreamSynchronize", p.stream)
		}
	}
	p.cuda.call("cuMemcpyDtoH_v2", uintptr(unsafe.Pointer(&p.words[0])), p.memory, programWords*4)
	for _, word := range p.words {
		if word != want {
			p.bad++
		}
	}
	p.tick++
	if p.array != 0 {
		p.stepArray(p.tick - 1)
	}
	if p.graph == 0 {
		p.cuda.call("cuMemsetD32Async", p.memory, uintptr(p.tick), programWords, p.stream)
		p.cuda.call("cuStreamSynchronize", p.stream)
	}
	if p.device != 0 {
		memory := new([3]uint64)
		p.nvml.call("nvmlDeviceGetMemoryInfo", p.device, uintptr(unsafe.Pointer(memory)))
		if p.nvml.err != nil {
			return p.nvml.err
		}
	}
	if p.cuda.err != nil {
		return p.cuda.err
	}
	return p.report()
}

func (p *ownProgram) report() error {
	if err := p.publish("status", fmt.Sprintf(`{"pid":%d,"tick":%d,"gpus":[],"bad":%d}`, os.Getpid(), p.tick, p.bad)); err != nil {
		return err
	}
	request := filepath.Join(p.dir, "check")
	if _, err := os.Stat(request); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := p.publish("checked", fmt.Sprintf(`{"tick":%d,"bad":%d,"words":%d}`, p.tick, p.bad, len(p.words))); err != nil {
		return err
	}
	return os.Remove(request)
}

func (p *ownProgram) publish(name, text string) error {
	path := filepath.Join(p.dir, name)
	if err := os.WriteFile(path+".tmp", []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}
