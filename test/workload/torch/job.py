"""What the PyTorch workloads share: the files a test looks at, and which GPU the job is on.

Nothing stays open between steps. Torch itself is imported by the workloads, after
`prepare` has set what must be in the environment before.
"""

import ctypes
import json
import os
import signal
import sys

CUDA_SUCCESS = 0


def prepare():
    """Environment for repeatable results. To be called before torch is imported."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # NVLink multicast objects belong to no single process: not checkpointable, and a
    # program that dies with one can leave shared GPUs out of service.
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
    os.environ.setdefault("NVSHMEM_DISABLE_NVLS", "1")


def deterministic(torch, seed):
    """The same bits in every run with this seed, on every GPU of the same model."""
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    if not torch.cuda.is_available():
        torch.set_num_threads(1)


def die_with_parent():
    """No rank outlives its tree, however the parent ends."""
    parent = os.getppid()
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(3)


class Gpu:
    """Asks the driver for the UUID each time: torch remembers the one it saw first,
    and after a restore the job can be on another GPU."""

    def __init__(self, device):
        self.handle = None
        if device.type != "cuda":
            return
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.handle = ctypes.c_int()
        self._must(self.cuda.cuDeviceGet(ctypes.byref(self.handle), device.index or 0), "cuDeviceGet")

    def uuid(self):
        if self.handle is None:
            return "cpu"
        raw = (ctypes.c_ubyte * 16)()
        self._must(self.cuda.cuDeviceGetUuid_v2(raw, self.handle), "cuDeviceGetUuid")
        text = bytes(raw).hex()
        return "GPU-" + "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))

    @staticmethod
    def _must(result, call):
        if result != CUDA_SUCCESS:
            raise RuntimeError(f"{call}: CUDA error {result}")


def write_atomic(path, text):
    """path is always complete: the old content or the new."""
    tmp = path + ".tmp"
    with open(tmp, "w") as f:
        f.write(text)
    os.rename(tmp, path)


class Log:
    """DIR/loss and DIR/status. A full disk is reported, never the end of the job: lines
    that could not be written follow when there is room again."""

    def __init__(self, directory, gpu):
        os.makedirs(directory, exist_ok=True)
        self.dir = directory
        self.gpu = gpu
        self.pending = b""
        self.failed = None

    def step(self, number, *values):
        """One line for a step: its number and the values as exact hexadecimal floats."""
        self.pending += (" ".join([str(number), *(v.hex() for v in values)]) + "\n").encode()
        try:
            self._append()
            self.status(number)
            self.failed = None
        except OSError as e:
            if e.errno != self.failed:
                print(f"{self.dir}: cannot write step {number}: {e.strerror}; going on", file=sys.stderr, flush=True)
            self.failed = e.errno

    def status(self, number):
        fields = {"pid": os.getpid(), "step": number, "uuid": self.gpu.uuid()}
        write_atomic(os.path.join(self.dir, "status"), json.dumps(fields) + "\n")

    def done(self, **fields):
        """The job ran to its end; written last."""
        self._append()
        write_atomic(os.path.join(self.dir, "done"), json.dumps(fields) + "\n")

    def stop_wanted(self):
        return os.path.exists(os.path.join(self.dir, "stop"))

    def _append(self):
        fd = os.open(os.path.join(self.dir, "loss"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            while self.pending:
                n = os.write(fd, self.pending)
                self.pending = self.pending[n:]
        finally:
            os.close(fd)


def digest(tensors):
    """SHA-256 over the exact content of tensors, in order."""
    import hashlib

    h = hashlib.sha256()
    for t in tensors:
        h.update(t.detach().cpu().contiguous().numpy().tobytes())
    return h.hexdigest()


class Ballast:
    """GPU memory with known content that takes no part in the training."""

    CHUNK = 1 << 24  # elements

    def __init__(self, torch, mib, device):
        self.torch = torch
        self.data = torch.arange(mib << 18, dtype=torch.int32, device=device)

    def intact(self):
        for at in range(0, self.data.numel(), self.CHUNK):
            part = self.data[at : at + self.CHUNK]
            want = self.torch.arange(at, at + part.numel(), dtype=self.torch.int32, device=part.device)
            if not self.torch.equal(part, want):
                return False
        return True
