#!/usr/bin/env bash
# try-runc.sh: checkpoints and restores a runc container that uses a GPU, as docs/containers.md says: left running, ended and restored (on
# another GPU, where there are two), and refused with the reason. On NVIDIA's driver if there is one, else on the simulated driver, from
# build/cudasim beside scripts/. cucriu, criu (4.0 or newer) and runc are in PATH; the hook is installed, or beside cucriu. Needs root.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$repo"

if [[ ${1:-} != --inside ]]; then
	# A mount namespace of its own: for the control groups, and for /etc/criu/runc.conf, which nobody else is to see.
	exec unshare --mount bash "${BASH_SOURCE[0]}" --inside
fi

dir=$(mktemp -d)
id=try-runc-$$
runc=(runc --root "$dir/state" --log "$dir/runc.log")
say() { printf '%s  %s\n' "$(date -u +%H:%M:%S)" "$*"; }
fail() {
	printf 'FAILED: %s\n' "$*"
	grep -hEA3 "Error" "$dir"/images*/{dump,restore}.log 2>/dev/null | tail -n 12 || true
	exit 1
}
clean() {
	"${runc[@]}" delete --force "$id" >/dev/null 2>&1 || true
	rm -rf "$dir"
}
trap clean EXIT

# Control groups of version 2, whatever the machine has mounted.
mount -t tmpfs tmpfs /sys/fs/cgroup 2>/dev/null || true
umount /sys/fs/cgroup 2>/dev/null || true
mount -t cgroup2 cgroup2 /sys/fs/cgroup || fail "no cgroup2 can be mounted"

hook=/usr/libexec/cucriu/cucriu-hook
[[ -x $hook ]] || hook=$(dirname "$(command -v cucriu)")/cucriu-hook
mkdir -p /etc/criu "$dir/plugins"
mount -t tmpfs tmpfs /etc/criu
printf 'action-script %s\nlibdir %s\nmanage-cgroups=ignore\n' "$hook" "$dir/plugins" >/etc/criu/runc.conf
have iptables-restore || printf 'network-lock skip\n' >/etc/criu/default.conf

mounts=()
bind() { mounts+=("{\"source\": \"$1\", \"destination\": \"$2\", \"type\": \"bind\", \"options\": [\"bind\", \"$3\"]}"); }
mkdir -p "$dir"/{job,images,root/{proc,dev,job,tmp}}
nodes=(/dev/nvidia[0-9]* /dev/nvidiactl /dev/nvidia-uvm /dev/nvidia-uvm-tools)
environment='"PATH=/"'
if cucriu gpus >/dev/null 2>&1; then
	real=1
	driver=$(sed -n '1s/.*  \([0-9.]*\)  .*/NVIDIA \1/p' /proc/driver/nvidia/version)
	mapfile -t libraries < <(ldconfig -p | sed -n 's/.*=> \(.*\/lib\(cuda\|nvidia-ptxjitcompiler\|nvidia-nvvm[0-9]*\|nvidia-gpucomp\)\.so[^ ]*\)$/\1/p')
	for node in "${nodes[@]}"; do
		[[ -c $node ]] && cp -a "$node" "$dir/root/dev/"
	done
else
	eval "$(build/cudasim/cudasim-run --gpus 2 --root "$dir/host" 2>/dev/null)"
	real=0 driver=simulated
	libraries=("$LD_LIBRARY_PATH/libcuda.so.1")
	environment+=", \"CUDASIM_ROOT=$dir/host\""
	bind "$dir/host" "$dir/host" rw
	bind "$LD_LIBRARY_PATH" "$LD_LIBRARY_PATH" ro
	mkdir -p "$dir/root$dir/host" "$dir/root$LD_LIBRARY_PATH"
fi
# The container's root: the job, and the libraries that it needs.
cp build/workload/cudawork "$dir/root/"
while read -r library; do
	file=$(readlink -f "$library") # libcuda.so.1 is a link to libcuda.so.VERSION
	[[ -e $dir/root${library%/*}/${file##*/} ]] || install -D "$file" "$dir/root${library%/*}/${file##*/}"
	[[ -e $dir/root$library ]] || ln -s "${file##*/}" "$dir/root$library"
done < <({ ((real == 0)) || printf '%s\n' "${libraries[@]}"; } && ldd build/workload/cudawork "${libraries[@]}" | sed -n 's,^.*[[:space:]]\(/[^ ]*\) (0x.*,\1,p' | sort -u)
environment+=", \"LD_LIBRARY_PATH=${libraries[0]%/*}\""
bind "$dir/job" /job rw
mounts+=('{"source": "proc", "destination": "/proc", "type": "proc"}')
cat >"$dir/config.json" <<EOF
{"ociVersion": "1.0.2",
 "process": {"cwd": "/", "user": {"uid": 0, "gid": 0}, "env": [$environment], "args": ["/cudawork", "--dir", "/job", "--mib", "64"]},
 "root": {"path": "root"},
 "mounts": [$(IFS=,; echo "${mounts[*]}")],
 "linux": {"cgroupsPath": "/$id", "resources": {"devices": [{"allow": true, "access": "rwm"}]},
  "namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}, {"type": "network"}]}}
EOF

status() { sed -n "s/.*\"$1\": *\"*\([^\",}]*\).*/\1/p" "$dir/job/status" 2>/dev/null || true; }
# ticks waits until the job has counted N further, and found its GPU memory right.
ticks() {
	local from until=$((SECONDS + 120))
	from=$(status tick)
	while (($(status tick)+0 < ${from:-0} + $1)); do
		((SECONDS < until)) || fail "the job does not count: $(cat "$dir/job/status" 2>/dev/null)"
		sleep 0.05
	done
	[[ $(status bad) == 0 ]] || fail "the job finds its GPU memory changed"
}

say "driver $driver; $("${runc[@]}" --version | head -1); criu $(criu_version criu); cucriu $(cucriu version | cut -d' ' -f2)"
"${runc[@]}" run --detach --bundle "$dir" "$id" </dev/null >/dev/null 2>&1 || fail "runc run: $(cat "$dir/runc.log")"
ticks 5
pid=$("${runc[@]}" state "$id" | sed -n 's/.*"pid": \([0-9]*\).*/\1/p')
say "the container's job is pid $pid, and counts on $(status uuid)"

cucriu check -t "$pid" >"$dir/check" 2>&1 && fail "check -t lets a container's process be dumped beside its engine"
grep -q container "$dir/check" || fail "check -t of the host does not name the container: $(cat "$dir/check")"
say "cucriu check -t from the host: $(tr -s " \n" "  " <"$dir/check" | grep -o "container is in[^,]*")"

"${runc[@]}" checkpoint --leave-running --image-path "$dir/images-running" --work-path "$dir/images-running" "$id" >"$dir/out" 2>&1 ||
	fail "runc checkpoint --leave-running: $(cat "$dir/out")"
ticks 5
say "checkpointed and left running"

before=$(status tick) on=$(status uuid)
begun=${EPOCHREALTIME/./}
"${runc[@]}" checkpoint --image-path "$dir/images" --work-path "$dir/images" "$id" >"$dir/out" 2>&1 || fail "runc checkpoint: $(cat "$dir/out")"
say "checkpointed in $(((${EPOCHREALTIME/./} - begun) / 1000)) ms"

mapfile -t uuids < <(cucriu gpus --json | sed -n 's/.*"uuid": "\(GPU-[^"]*\)".*/\1/p' | sort -u)
to=$on
for uuid in "${uuids[@]}"; do
	[[ $uuid == "$on" ]] || to=$uuid
done
printf 'version: 1\ngpus:\n  map:\n  - {from: %s, to: GPU-11111111-2222-3333-4444-555555555555}\n' "$on" >"$dir/config.yaml"
CUCRIU_CONFIG=$dir/config.yaml "${runc[@]}" restore --detach --bundle "$dir" --image-path "$dir/images" --work-path "$dir/images" "$id" \
	</dev/null >/dev/null 2>&1 && fail "a GPU map that fits nothing is not refused"
why=$(CUCRIU_CONFIG=$dir/config.yaml cucriu status -D "$dir/images" 2>&1 || true)
grep -q 'GPU-11111111' "$dir/images/restore.log" || fail "restore.log does not say why: $why"
say "refused: $(grep -m1 -o 'Error (cucriu-hook): .*' "$dir/images/restore.log")"

printf 'version: 1\ngpus:\n  map:\n  - {from: %s, to: %s}\n' "$on" "$to" >"$dir/config.yaml"
begun=${EPOCHREALTIME/./}
CUCRIU_CONFIG=$dir/config.yaml "${runc[@]}" restore --detach --bundle "$dir" --image-path "$dir/images" --work-path "$dir/images" "$id" \
	</dev/null >/dev/null 2>&1 || fail "runc restore: $(cat "$dir/runc.log")"
say "restored in $(((${EPOCHREALTIME/./} - begun) / 1000)) ms"
ticks 5
[[ $(status uuid) == "$to" ]] || fail "the job is on $(status uuid), not on $to"
say "it counted to $before on $on, and goes on at $(status tick) on $(status uuid); every sample is right"
