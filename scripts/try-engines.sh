#!/usr/bin/env bash
# try-engines.sh [--keep] [ENGINE...] [RELEASE...]: checkpoints and restores containers with Debian's engines, as docs/containers.md says, and
# prints a table of what works, and whose fault it is if something does not. ENGINE is runc, crun or podman (on runc), RELEASE is bookworm,
# trixie, sid or here; without them, all but here. Of each release the script makes a root (by debootstrap, once, build/engines-RELEASE), and
# from it two hosts in namespaces of their own, with control groups v2, and v1 where this machine has it; each has two simulated GPUs.
# here is this machine, with the engine, criu and cucriu of its PATH, and NVIDIA's driver if there is one. Nothing is left running. It fails if
# what does not work is unexplained. --keep keeps the directory with all logs. Needs root. Build first: make build sim workload tools image
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
. "$repo/scripts/try-common.sh"
cd "$repo"

self=$repo/scripts/${BASH_SOURCE[0]##*/}
sim=$repo/build/cudasim

# make_debian makes the root directory of a release, once.
make_debian() {
	local debian=$repo/build/engines-$1 criu
	if [[ ! -e $debian/made ]]; then
		have debootstrap || die "debootstrap is missing" "apt-get install debootstrap"
		note "making a Debian $1 with runc, crun and Podman in $debian"
		rm -rf "$debian"
		debootstrap --variant=minbase "$1" "$debian" "$("$repo/scripts/debian-mirror.sh" | head -1)" >&2
		printf '#!/bin/sh\nexit 101\n' >"$debian/usr/sbin/policy-rc.d" # no daemon is started by its package
		chmod 0755 "$debian/usr/sbin/policy-rc.d"
		unshare --mount --pid --fork --mount-proc="$debian/proc" chroot "$debian" sh -c 'apt-get update -qq -o Acquire::Check-Valid-Until=false &&
			DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends podman runc crun criu $(apt-cache pkgnames libcriu2) procps iproute2 util-linux zstd' >&2
		touch "$debian/made"
	fi
	if [[ $1 == bookworm && ! -L $debian/usr/local/sbin/criu ]]; then # its criu is 3.17
		criu=$(scripts/provide-criu.sh --unpacked)
		mkdir -p "$debian/opt/criu"
		UNPACKED=${criu%/*}/root scripts/relocate.sh "$debian/opt/criu" usr/sbin/criu /opt/criu
		ln -s /opt/criu/criu "$debian/usr/local/sbin/criu"
	fi
}

# inside_host is the first process of a host. Its root is that of the release; what is written there is gone afterwards.
inside_host() {
	local root=$dir/$name/root program
	mount -t tmpfs -o mode=0755 tmpfs "$dir/$name/changes"
	mkdir "$dir/$name/changes/upper" "$dir/$name/changes/work"
	mount -t overlay -o "lowerdir=$repo/build/engines-$release,upperdir=$dir/$name/changes/upper,workdir=$dir/$name/changes/work" overlay "$root"
	mkdir -p "$root/.old" "$root$repo" "$root/wire" "$root/var/lib/containers" "$root$srv"
	mount -t proc proc "$root/proc"
	mount --rbind /dev "$root/dev"
	mount -t sysfs sysfs "$root/sys"
	if ((cgroup == 2)); then
		mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
	else
		mount --rbind /sys/fs/cgroup "$root/sys/fs/cgroup"
		umount "$root/sys/fs/cgroup/unified" 2>/dev/null || true # crun takes no hybrid
	fi
	mount --bind "$repo" "$root$repo"
	mount --bind "$dir/wire" "$root/wire"
	mount --bind "$dir/$name/srv" "$root$srv"
	mount --bind "$dir/rootfs" "$root$srv/rootfs"
	mount -t tmpfs -o mode=0755 tmpfs "$root/run"
	mkdir "$root$nvidia"
	mount --bind "$dir/$name/sim" "$root$nvidia"
	mount -t tmpfs -o mode=0755 tmpfs "$root/var/lib/containers"
	cd "$root"
	pivot_root . .old
	cd /
	umount --lazy /.old
	hash -r
	mount -t tmpfs -o mode=1777 tmpfs /dev/shm
	hostname "$name"
	ip link set lo up # CRIU tries a connection
	# Podman hands no environment down to the hook, and the simulated driver needs some.
	mkdir -p /usr/libexec/cucriu
	for program in bin/cucriu libexec/cucriu/cucriu-hook; do
		cat >"/usr/$program" <<-END
			#!/bin/sh
			export CUDASIM_ROOT=$nvidia LD_LIBRARY_PATH=$sim
			exec $repo/bin/${program##*/} "\$@"
		END
		chmod 0755 "/usr/$program"
	done
	if [[ -d /etc/containers ]]; then
		printf '%s\n' '[containers]' 'pids_limit = 0' '[engine]' 'runtime = "runc"' 'cgroup_manager = "cgroupfs"' 'events_logger = "file"' >/etc/containers/containers.conf
	fi
	mkdir -p /etc/criu /etc/cucriu /usr/lib/cucriu/criu-plugins
	touch "/wire/$name.ready"
	sleep infinity &
	wait # the first process reaps
}

# configure HOST FILE: names the hook in that file, as the page has it; with it, what this machine needs.
configure() {
	on "$1" "rm -f /etc/criu/*.conf
		printf 'action-script $hook\nlibdir /usr/lib/cucriu/criu-plugins\nmanage-cgroups=ignore\n' >/etc/criu/$2
		command -v iptables-restore >/dev/null || echo network-lock skip >>/etc/criu/default.conf"
}

# start_host NAME
start_host() {
	mkdir -p "$dir/$1/root" "$dir/$1/changes" "$dir/$1/srv/rootfs"
	"$sim/cudasim-run" --gpus 2 --mib-per-gpu 64 --root "$dir/$1/sim" >/dev/null 2>&1
	unshare --mount --pid --uts --ipc --net --fork --kill-child -- "$BASH" "$self" --host "$1" "$dir" "$release" "$cgroup" >>"$dir/$1.log" 2>&1 &
	local unshare=$!
	await 60 "host $1 is made" test -e "$dir/wire/$1.ready"
	first[$1]=$(pgrep -P "$unshare")
}

# on HOST COMMAND: runs a command of the shell on a host.
on() {
	local enter=()
	if [[ $release != here ]]; then
		enter=(nsenter --target "${first[$1]}" --all /usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root)
	fi
	"${enter[@]}" timeout 120 bash -o pipefail -c "$2" 3>&-
}

state() { :; }

# make_rootfs makes the root directory of the containers: the job, and the libraries that it needs.
make_rootfs() {
	local library file root=$dir/rootfs libraries=("$sim/libcuda.so.1")
	mkdir -p "$root"/{proc,dev,job,tmp,"$nvidia","$sim"}
	if [[ $driver != simulated ]]; then
		mapfile -t libraries < <(ldconfig -p | sed -n 's/.*=> \(.*\/lib\(cuda\|nvidia-ptxjitcompiler\|nvidia-nvvm[0-9]*\|nvidia-gpucomp\)\.so[^ ]*\)$/\1/p')
		for file in /dev/nvidia[0-9]* /dev/nvidiactl /dev/nvidia-uvm /dev/nvidia-uvm-tools; do
			if [[ -c $file ]]; then cp -a "$file" "$root/dev/"; fi
		done
	fi
	cp build/workload/cudawork "$root/"
	while read -r library; do
		file=$(readlink -f "$library") # libcuda.so.1 is a link to libcuda.so.VERSION
		[[ -e $root${library%/*}/${file##*/} ]] || install -D "$file" "$root${library%/*}/${file##*/}"
		[[ -e $root$library ]] || ln -s "${file##*/}" "$root$library"
	done < <({ [[ $driver == simulated ]] || printf '%s\n' "${libraries[@]}"; } && ldd build/workload/cudawork "${libraries[@]}" | sed -n 's,^.*[[:space:]]\(/[^ ]*\) (0x.*,\1,p' | sort -u)
	library_path=${libraries[0]%/*}
}

# bundle HOST NAME ARG...: makes the bundle of a container for runc and crun.
bundle() {
	local at=$dir/$1/srv/$2 args mounts
	args=$(printf ', "%s"' "${@:3}")
	mounts='{"source": "proc", "destination": "/proc", "type": "proc"}'
	mounts+=$(printf ', {"source": "%s", "destination": "%s", "type": "bind", "options": ["bind"]}' "$srv/$2/job" /job)
	if [[ $driver == simulated ]]; then
		mounts+=$(printf ', {"source": "%s", "destination": "%s", "type": "bind", "options": ["bind"]}' "$nvidia" "$nvidia" "$sim" "$sim")
	fi
	mkdir -p "$at/job"
	cat >"$at/config.json" <<-END
		{"ociVersion": "1.0.2",
		 "process": {"cwd": "/", "user": {"uid": 0, "gid": 0}, "args": ["/cudawork", "--dir", "/job"$args],
		  "env": ["PATH=/", "CUDASIM_ROOT=$nvidia", "LD_LIBRARY_PATH=$library_path"]},
		 "root": {"path": "$rootfs"},
		 "mounts": [$mounts],
		 "linux": {"cgroupsPath": "/$group-$2", "resources": {"devices": [{"allow": true, "access": "rwm"}]},
		  "namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}, {"type": "network"}]}}
	END
}

# The commands of the engines. A container that runs must not have files of this script as its standard output.

run() { # HOST NAME ARG...: starts a container with the workload
	if [[ $engine == podman ]]; then
		podman_run "$1" "$2" "--volume $nvidia:$nvidia --device-cgroup-rule 'c *:* rwm'" "${@:3}"
	else
		bundle "$@"
		quietly "$1" "run --detach --bundle $srv/$2 $2"
	fi
}

# quietly HOST COMMAND: as the page has it for runc, with its error from a log instead.
quietly() {
	on "$1" "rm -f $srv/log; $oci --log $srv/log $2 </dev/null >/dev/null 2>&1 || { cat $srv/log; exit 1; }"
}

# podman_run HOST NAME OPTIONS ARG...
podman_run() {
	on "$1" "podman run --detach --name $2 --cgroup-parent /$group --network none $3 --volume $sim:$sim:ro \
		--env CUDASIM_ROOT=$nvidia --env LD_LIBRARY_PATH=$sim localhost/train /cudawork --dir /job ${*:4}"
}

checkpoint() { # HOST NAME [--leave-running]
	if [[ $engine == podman ]]; then
		on "$1" "podman container checkpoint ${3:-} $2"
	else
		on "$1" "rm -rf $srv/$2/image; $oci checkpoint --image-path $srv/$2/image ${3:-} $2"
	fi
}

restore() { # HOST NAME
	if [[ $engine == podman ]]; then
		on "$1" "podman container restore $2"
	else
		quietly "$1" "restore --detach --bundle $srv/$2 --image-path $srv/$2/image $2"
	fi
}

# restore_refused HOST NAME: prints what the user sees of a restore that must fail.
restore_refused() {
	if [[ $engine == podman ]]; then
		on "$1" "! podman container restore $2 2>&1"
	else
		on "$1" "! $oci restore --detach --bundle $srv/$2 --image-path $srv/$2/image $2 2>&1 </dev/null" && forget "$1" "$2" &&
			on "$1" "find /sys/fs/cgroup/*/$group-$2 -depth -type d -exec rmdir {} + 2>/dev/null || true" # crun leaves v1's groups
	fi
}

# image HOST NAME
image() {
	if [[ $engine == podman ]]; then
		on "$1" "podman inspect --format '{{.StaticDir}}/checkpoint' $2"
	else
		echo "$srv/$2/image"
	fi
}

pid() { # HOST NAME
	if [[ $engine == podman ]]; then
		on "$1" "podman inspect --format '{{.State.Pid}}' $2"
	else
		on "$1" "$oci state $2" | sed -n 's/.*"pid": \([0-9]*\).*/\1/p'
	fi
}

# forget HOST NAME: removes what the engine remembers of a container that has ended, and the container if it has not.
forget() {
	if [[ $engine == podman ]]; then
		on "$1" "podman rm --force --ignore --time 0 $2" >/dev/null
	else
		on "$1" "$oci delete --force $2" >/dev/null 2>&1 || true
		eventually 20 gone "$@"
	fi
}

gone() { ! on "$1" "$oci state $2" >/dev/null 2>&1; }

# status HOST NAME: what the workload says of itself.
status() {
	if [[ $engine == podman ]]; then
		on "$1" "cat /proc/\$(podman inspect --format '{{.State.Pid}}' $2)/root/job/status" 2>/dev/null || true
	else
		cat "$dir/$1/srv/$2/job/status" 2>/dev/null || true
	fi
}

tick_of() { status "$1" "$2" | sed -n 's/.*"tick": *\([0-9]*\).*/\1/p'; }

uuid_of() { status "$1" "$2" | sed -n 's/.*"uuid": *"\([^"]*\)".*/\1/p'; }

beyond() { (($(tick_of "$1" "$2") + 0 > $3)); }

eventually() { # SECONDS COMMAND...
	local end=$((SECONDS + $1))
	until "${@:2}"; do
		((SECONDS < end)) || return 1
		sleep 0.1
	done
}

# counts HOST NAME [TICK]: the workload counts further, and finds its memory right.
counts() {
	local from=${3:-}
	[[ $from ]] || from=$(tick_of "$1" "$2")
	if ! eventually "${limit:-60}" beyond "$1" "$2" $((${from:-0} + 3)); then
		printf 'the job does not count further than %s: %s\n' "$from" "$(status "$1" "$2")"
		[[ $engine != podman ]] || on "$1" "podman ps --all; podman logs $2" || true
		return 1
	fi
	status "$1" "$2" | grep -q '"bad": *0' || { status "$1" "$2"; return 1; }
}

# use_map HOST [FROM TO]...: sets the map of that host.
use_map() {
	local host=$1 map=
	shift
	while (($# > 0)); do
		map+="{from: $1, to: $2}, "
		shift 2
	done
	on "$host" "printf '%s\n' '$config' 'gpus: {map: [$map]}' >/etc/cucriu/config.yaml"
}

# attempt STEP COMMAND...: notes in the row whether it works, and if not, why.
attempt() {
	local begun=${EPOCHREALTIME/./}
	if "${@:2}" >"$dir/out" 2>&1; then
		row[$1]=yes
		say "$title: $1: works ($(((${EPOCHREALTIME/./} - begun) / 1000)) ms)"
		return
	fi
	row[$1]=no
	cat "$dir/out" "$dir"/a/srv/c0/image/{dump,restore}.log >>"$dir/why" 2>/dev/null || true
	say "$title: $1: does not work: $(grep -v '^[[:space:]]*$' "$dir/out" | tail -n 3 | cut -c -400)"
	if [[ $release == here ]]; then grep -hE "Error \(" "$dir"/a/srv/c*/image/{dump,restore}.log 2>/dev/null | tail -n 8 || true; fi
	return 1
}

left_running() { checkpoint a c0 --leave-running && counts a c0; }

ended() {
	local name
	for name in "${names[@]}"; do
		before[$name]=$(tick_of a "$name")
		gpu_of[$name]=$(uuid_of a "$name")
		checkpoint a "$name" || return
		[[ $engine == podman ]] || forget a "$name"
	done
}

# refused_dump: a checkpoint that the driver refuses, whose job runs on.
refused_dump() {
	run a managed --mib "$mib" --managed && counts a managed 0 || return
	if checkpoint a managed >"$dir/said" 2>&1; then
		echo "managed memory is checkpointed"
		return 1
	fi
	said checkpoint
	counts a managed && forget a managed
}

# refused_restore: a map that fits nothing. The checkpoint stays.
refused_restore() {
	use_map a "${gpu_of[c0]}" GPU-11111111-2222-3333-4444-555555555555
	restore_refused a c0 >"$dir/said" 2>&1 || { cat "$dir/said"; return 1; }
	said restore
	on a "cucriu status -D $(image a c0)" >"$dir/outcome" 2>&1 && { echo "cucriu status says that it is restored"; return 1; }
	grep -q GPU-11111111 "$dir/outcome" || { cat "$dir/outcome"; return 1; }
}

# said WHAT: notes what the user sees of a refusal: the hook's reason, or where CRIU's log is.
said() {
	local text
	if text=$(grep -m1 'Error (cucriu-hook)' "$dir/said"); then
		refusal+=("shown")
	else
		text=$(grep -m1 "criu failed" "$dir/said" || head -1 "$dir/said")
		refusal+=("in the log")
	fi
	printf '%s: %s refused: %s\n' "$title" "$1" "$(cut -c -300 <<<"$text")" >>"$texts"
}

# mapped: two containers are restored on each other's GPU, a single one on another if there is one.
mapped() {
	local name other map=()
	for name in "${names[@]}"; do
		to[$name]=${gpu_of[$name]}
		for other in "${gpu_of[@]}" "${uuids[@]}"; do
			if [[ $other != "${gpu_of[$name]}" ]]; then
				to[$name]=$other
				break
			fi
		done
		map+=("${gpu_of[$name]}" "${to[$name]}")
	done
	use_map a "${map[@]}"
	for name in "${names[@]}"; do
		restore a "$name" || return
	done
	for name in "${names[@]}"; do
		counts a "$name" "${before[$name]}" || return
		[[ $(uuid_of a "$name") == "${to[$name]}" ]] || { echo "$name is on $(uuid_of a "$name"), not on ${to[$name]}"; return 1; }
		say "$title: $name counted to ${before[$name]} on ${gpu_of[$name]}, and goes on at $(tick_of a "$name") on $(uuid_of a "$name")" >&3
	done
	use_map a
}

# moved: the checkpoint is copied to another host, and restored there.
moved() {
	local tick
	tick=$(tick_of a c0)
	checkpoint a c0 || return
	forget a c0
	on a "tar -C $srv -cS --exclude=rootfs --numeric-owner -f /wire/c0.tar c0" &&
		on b "tar -C $srv -xSf /wire/c0.tar && cucriu check -D $srv/c0/image" && restore b c0 && counts b c0 "$tick" || return
	[[ $(uuid_of b c0) != "$(uuid_of a c0)" ]] || { echo "it is on the GPU of the other host"; return 1; }
	forget b c0
}

# no_beside: cucriu itself does not dump the process of a container.
no_beside() {
	if on a "cucriu check -t $(pid a c0)" >"$dir/check" 2>&1; then
		echo "check -t lets a container's process be dumped beside its engine"
		return 1
	fi
	grep -q container "$dir/check" || { cat "$dir/check"; return 1; }
	say "$title: cucriu check -t from the host: $(tr -s " \n" "  " <"$dir/check" | grep -o "container is in[^,]*")" >&3
}

# started: the first container is on the first GPU, the second, where there are two, on the second.
started() {
	local name gpu=0
	[[ $engine != podman ]] || podman_image || return
	for name in "${names[@]}"; do
		run a "$name" --mib "$mib" --gpus "$((gpu++))" && counts a "$name" 0 || return
	done
}

steps() {
	attempt start started && attempt "check -t" no_beside && attempt "leave running" left_running && attempt "refused checkpoint" refused_dump &&
		attempt checkpoint ended && attempt "refused restore" refused_restore && attempt "GPU map" mapped || return
	if [[ $release != here ]]; then
		if [[ $engine != podman ]]; then
			attempt move moved
			return
		fi
		attempt move podman_moves || return
		if [[ -e build/image/cucriu.tar ]]; then attempt "image of cucriu" hosted; fi
	fi
}

# whose: whose fault it is, from what was said.
whose() {
	case $(cat "$dir/why") in
	*"unknown command checkpoint"*) echo "Debian: crun is built without CRIU" ;;
	*"write to cgroup.subtree_control"*) echo "crun: CRIU restores v2's control groups beside v1's, and crun reads no runc.conf that forbids it" ;;
	*Unseizable*) echo "crun: with CRIU's manage-cgroups=ignore, a restored job is in no control group of its own" ;;
	*) return 1 ;;
	esac
}

try_engine() {
	local version criu fault=
	version=$(on a "$engine --version" | sed -n '1s/[a-z ]*//p')
	if [[ $engine == podman ]]; then version+=" on runc $(on a "runc --version" | sed -n '1s/[a-z ]*//p')"; fi
	criu=$(on a "criu --no-default-config --version" | sed -n 's/^Version: *//p')
	title="$engine $version, $release, cgroup v$cgroup"
	say "$title, CRIU $criu, driver $driver, cucriu $(on a "cucriu version" | cut -d' ' -f2)"
	: >"$dir/why"
	names=(c0)
	local host conf=runc.conf
	for host in "${hosts[@]}"; do use_map "$host"; done
	mapfile -t uuids < <(on a "cucriu gpus --json" | sed -n 's/.*"uuid": "\(GPU-[^"]*\)".*/\1/p' | awk '!seen[$0]++')
	if [[ $engine != crun ]] || on a "grep -q /etc/criu/runc.conf \$(command -v crun)"; then
		if ((${#uuids[@]} > 1)); then names+=(c1); fi
	else
		# CRIU then restores control groups, too. With v1 beside v2, it gives each container the CPUs exclusively, and fails on the second.
		conf=default.conf fault="crun reads no runc.conf: where v1 lies beside v2, one container only"
	fi
	for host in "${hosts[@]}"; do
		configure "$host" "$conf"
	done
	if ! steps; then
		fault=$(whose) || { fault=unexplained && touch "$failed"; }
	fi
	printf '| %s %s | %s | %s | v%s' "$engine" "$version" "$release" "$criu" "$cgroup" >>"$rows"
	for step in "leave running" checkpoint "GPU map" move; do
		printf ' | %s' "${row[$step]:--}" >>"$rows"
	done
	printf ' | %s | %s | %s |\n' "${refusal[0]:--}" "${refusal[1]:--}" "$fault" >>"$rows"
}

# podman_image makes the container image, and takes it to the other host.
podman_image() {
	on a "tar -C $srv/rootfs -c . | podman import - localhost/train && podman save -o /wire/image.tar localhost/train" &&
		on b "podman load -i /wire/image.tar"
}

# podman_moves moves a container as the page has it: there and back, to a host that cannot take it, and to one that loses it; and to one whose
# nodes differ.
podman_moves() (
	stop() {
		printf '%s\n' "$*"
		exit 1
	}

	send() { # FROM TO, and check there
		tick=$(tick_of "$1" train)
		on "$1" "podman container checkpoint --export=/var/tmp/train.tar.zst train && sync /var/tmp/train.tar.zst && podman rename train train-kept &&
			cp /var/tmp/train.tar.zst /wire" || stop "the container on host $1 is not checkpointed"
		on "$2" "cp /wire/train.tar.zst /var/tmp && rm -rf /var/tmp/look && mkdir /var/tmp/look && tar -C /var/tmp/look -xf /var/tmp/train.tar.zst checkpoint &&
			cucriu check -D /var/tmp/look/checkpoint"
	}

	import() { on "$1" "podman container restore --import=/var/tmp/train.tar.zst"; }

	outcome() { on "$1" "cucriu status -D \$(podman inspect --format '{{.StaticDir}}' train)/checkpoint"; }

	goes_on() { # HOST WHAT
		outcome "$1" || stop "$2: cucriu says that the restore failed"
		counts "$1" train "$tick" || stop "$2"
		say "$title: $2: at $tick before, and at $(tick_of "$1" train) on host $1" >&3
	}

	move() { # FROM TO
		send "$1" "$2" || stop "host $2 cannot take it"
		import "$2" || stop "Podman does not restore it on host $2"
		goes_on "$2" "moved from host $1 to host $2"
		on "$1" "podman rm train-kept && rm /var/tmp/train.tar.zst"
	}

	back() { # TO WHAT: what is there is ended, and the container kept on host a goes on
		on "$1" "podman rm --force --ignore --time 0 train && rm -f /var/tmp/train.tar.zst"
		on a "podman rename train-kept train && podman container restore train"
		goes_on a "$2"
	}

	# The engine's nodes in a tmpfs, as in the /dev that engines make.
	nodes=$(printf -- '--device %s ' "$nvidia"/dev/nvidia{ctl,-uvm,-memory,0})
	podman_run a train "--volume $nvidia:$nvidia --tmpfs $nvidia/dev:rw,dev,notmpcopyup $nodes" --mib 8
	counts a train 0 || stop "no start"
	move a b
	move b a

	sed -i.whole 's/580\.159\.04/580.95.05/' "$dir/b/sim/proc/driver/nvidia/version"
	if send a b >"$dir/check" 2>&1; then stop "host b, which has another driver, could take it"; fi
	grep -q driver-version "$dir/check" || stop "it is not said why: $(cat "$dir/check")"
	if import b; then stop "Podman restores it under another driver"; fi
	back b "refused on host b, which has another driver"
	mv "$dir/b/sim/proc/driver/nvidia/version.whole" "$dir/b/sim/proc/driver/nvidia/version"

	send a b || stop "host b cannot take it"
	echo "restore return 999" >"$dir/b/sim/faults"
	if import b; then stop "Podman says that a container is restored whose GPU state did not come back"; fi
	if outcome b; then stop "so says cucriu"; fi
	rm "$dir/b/sim/faults"
	back b "its GPU state did not come back on host b"

	tick=$(tick_of a train)
	checkpoint a train
	echo "restore return 999" >"$dir/a/sim/faults"
	if restore a train; then stop "Podman says that it is restored"; fi
	rm "$dir/a/sim/faults"
	restore a train || stop "the checkpoint is gone after a restore that failed"
	goes_on a "its GPU state did not come back on host a itself, and then it did"

	tick=$(tick_of a train)
	checkpoint a train
	on a "podman start train"
	counts a train 0 || stop "it does not start anew"
	(($(tick_of a train) < tick)) || stop "podman start goes on with a checkpointed container: tick $(tick_of a train)"
	say "$title: podman start begins a checkpointed container anew, at tick $(tick_of a train) after $tick" >&3
	forget a train

	# A /dev of each host's own: with GPU 0 on host a, with GPU 1 on host b.
	own_dev a 0
	own_dev b 1
	podman_run a train "--interactive --volume $nvidia:$nvidia --volume /gpu:/dev --volume /gpu:$nvidia/dev --device-cgroup-rule 'c *:* rwm'" --mib 8
	counts a train 0 || stop "no start"
	move a b
	[[ $(uuid_of b train) == $(on b "cucriu gpus --json" | sed -n 's/.*"uuid": "\(GPU-[^"]*\)".*/\1/p' | awk '!seen[$0]++' | sed -n 2p) ]] || stop "it is not on GPU 1 of host b"
	say "$title: it was on GPU 0 of host a, and is on GPU 1 of host b, whose node it sees there" >&3
	forget b train
)

# hosted: a job of the host, dumped and restored by a container of cucriu's own image, as the page has it; it outlives the container, which Podman's
# monitor keeps as long as the job, its child.
hosted() (
	local job=$srv/hosted status=$dir/a/srv/hosted/status from
	tick() { sed -n 's/.*"tick": *\([0-9]*\).*/\1/p' "$status" 2>/dev/null; }
	# shellcheck disable=SC2317 # eventually runs it
	further() { (($(tick) + 0 > $1 + 3)); }
	in_container() { on a "podman run $1 --cgroup-parent /$group --privileged --pid=host --network=host --cgroupns=host --env CUDASIM_ROOT=$nvidia --env LD_LIBRARY_PATH=$sim localhost/cucriu ${*:2}"; }
	on a "podman load -i $repo/build/image/cucriu.tar && mkdir $job &&
		{ CUDASIM_ROOT=$nvidia LD_LIBRARY_PATH=$sim setsid $repo/build/workload/cudawork --dir $job --mib 8 </dev/null >/dev/null 2>&1 & echo \$! >$job/pid; }"
	eventually 30 further 0 || exit
	from=$(tick)
	in_container --rm dump -t "$(cat "$dir/a/srv/hosted/pid")" -D "$job/image" || exit
	in_container "--detach --name restore" restore -D "$job/image" && eventually 30 further "$from" || exit
	from=$(tick)
	on a "podman rm --force --time 0 restore" && eventually 30 further "$from" || exit
	grep -q '"bad": *0' "$status" || exit
	say "$title: a container of the image has dumped a job of the host at $from and restored it: at $(tick)" >&3
	on a "touch $job/stop"
)

# own_dev HOST N: makes a directory with the nodes for a container, as the page has it.
own_dev() {
	on "$1" "mkdir -p /gpu/pts /gpu/shm /gpu/mqueue && cd /gpu && cp -a /dev/{null,zero,full,random,urandom,tty} . &&
		ln -s pts/ptmx ptmx && ln -s /proc/self/fd fd && cp -a $nvidia/dev/nvidia{ctl,-uvm,-memory,$2} ."
}

# inside ENGINE...: in namespaces of its own, for one release and one version of control groups.
inside() {
	mount --make-rprivate /
	declare -gA first
	declare -ga hosts=(a b)
	driver=simulated mib=8 srv=/srv/try nvidia=/run/nvidia rootfs=/srv/try/rootfs hook=/usr/libexec/cucriu/cucriu-hook
	config="version: 1
driver: {library: $sim/libcuda.so.1, root: $nvidia}"
	if [[ $release == here ]]; then
		srv=$dir/a/srv nvidia=$dir/a/sim rootfs=$dir/rootfs config="version: 1" hosts=(a)
		mkdir -p "$srv" /etc/criu /etc/cucriu /usr/lib/cucriu/criu-plugins
		mount -t tmpfs tmpfs /etc/criu
		mount -t tmpfs tmpfs /etc/cucriu
		umount --lazy /sys/fs/cgroup 2>/dev/null || true
		mount -t cgroup2 cgroup2 /sys/fs/cgroup || fail "no cgroup2 can be mounted"
		if cucriu gpus >/dev/null 2>&1; then
			mib=512 driver=$(sed -n '1s/.*  \([0-9.]*\)  .*/NVIDIA \1/p' /proc/driver/nvidia/version)
		else
			eval "$("$sim/cudasim-run" --gpus 2 --root "$nvidia" 2>/dev/null)"
		fi
		[[ -x $hook ]] || hook=$(dirname "$(type -P cucriu)")/cucriu-hook
		make_rootfs
	else
		make_rootfs
		mkdir -p "$dir/wire"
		start_host a
		start_host b
	fi
	local engine
	for engine in "$@"; do
		(
			oci=$engine group+=-$engine
			if [[ $release == here ]]; then oci="$engine --root $dir/state"; fi
			trap 'for name in c0 c1 managed train; do forget a "$name" >/dev/null 2>&1 || true; done' EXIT
			declare -A row=() before=() gpu_of=() to=()
			refusal=()
			try_engine
		)
	done
}

# remove_groups removes the control groups of the containers, which are gone.
remove_groups() {
	local group=/${dir##*/}
	# shellcheck disable=SC2016 # the shell inside expands it
	unshare --mount bash -c 'find /sys/fs/cgroup/*"$1"* -depth -type d -exec rmdir {} + 2>/dev/null
		mount -t cgroup2 cgroup2 /mnt && find "/mnt$1"* -depth -type d -exec rmdir {} + 2>/dev/null' bash "$group" || true
}

exec 3>&1
if [[ ${1:-} == --host ]]; then
	name=$2 dir=$3 release=$4 cgroup=$5 srv=/srv/try nvidia=/run/nvidia
	inside_host
elif [[ ${1:-} == --inside ]]; then
	dir=$2 release=$3 cgroup=$4
	group=${dir%/*} group=${group##*/}-${dir##*/} rows=${dir%/*}/rows texts=${dir%/*}/texts failed=${dir%/*}/failed
	inside "${@:5}"
	exit
fi

((EUID == 0)) || die "this needs root"
keep=no engines=() releases=()
for word in "$@"; do
	case $word in
	--keep) keep=yes ;;
	runc | crun | podman) engines+=("$word") ;;
	here | bookworm | trixie | sid) releases+=("$word") ;;
	*) die "unknown: $word" "try-engines.sh [--keep] [runc|crun|podman...] [here|bookworm|trixie|sid...]" ;;
	esac
done
if [[ " ${releases[*]} " == *" here "* ]]; then
	((${#engines[@]} > 0)) || engines=(runc)
	[[ " ${engines[*]} " != *" podman "* ]] || die "Podman is not tried on this machine itself, where it has its own containers"
fi
((${#engines[@]} > 0)) || engines=(runc crun podman)
((${#releases[@]} > 0)) || releases=(bookworm trixie sid)
dir=$(mktemp -d /tmp/cucriu-try.XXXXXX)
trap 'remove_groups; [[ $keep == yes ]] || rm -rf "$dir"' EXIT
: >"$dir/rows"
: >"$dir/texts"
for release in "${releases[@]}"; do
	[[ $release == here ]] || make_debian "$release"
	for cgroup in 2 1; do
		if ((cgroup == 1)); then
			[[ $release != here ]] || continue
			grep -q ' - cgroup ' /proc/self/mountinfo || { note "this machine has no cgroup v1"; continue; }
		fi
		mkdir "$dir/$release-$cgroup"
		namespaces="--mount" # with a /proc of its own, this machine might have other GPUs
		[[ $release == here ]] || namespaces="--pid --mount --mount-proc --ipc --uts --fork --kill-child"
		# shellcheck disable=SC2086 # a list
		scripts/clean-exec.sh unshare $namespaces -- "$BASH" "$self" --inside "$dir/$release-$cgroup" "$release" "$cgroup" "${engines[@]}" || touch "$dir/failed"
	done
done
cat - "$dir/rows" <<END

$(uname -sr), $(date -u +%F)
| engine | release | CRIU | cgroup | leave running | checkpoint | restore, GPU map | move | refused checkpoint: reason | refused restore: reason | whose fault |
|---|---|---|---|---|---|---|---|---|---|---|
END
printf '\n'
cat "$dir/texts"
[[ ! -e $dir/failed ]]
