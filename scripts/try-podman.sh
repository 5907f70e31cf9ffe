#!/usr/bin/env bash
# try-podman.sh: proves what docs/containers.md says of Podman. It makes a Debian 13 with Podman and runc in build/podman-root (by
# debootstrap), and from it two hosts in namespaces of their own, each with its own storage of containers and its own simulated GPUs. A
# container with the CUDA workload goes from one to the other and back, comes to a host that cannot take it, and is lost there; the script
# checks each time what became of the job, and fails if that is not what it should be. The hosts send files through a directory that
# both have. Nothing is left running. Needs root. Build first: make build sim workload tools
#
#   scripts/try-podman.sh [--keep]     --keep keeps the directory with all logs
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
. "$repo/scripts/try-common.sh"

debian=$repo/build/podman-root
sim=$repo/build/cudasim

# make_debian makes the root directory, once.
make_debian() {
	if [[ -e $debian/made ]]; then
		return
	fi
	have debootstrap || die "debootstrap is missing" "apt-get install debootstrap"
	note "making a Debian 13 with Podman in $debian"
	rm -rf "$debian"
	debootstrap --variant=minbase trixie "$debian" "$("$repo/scripts/debian-mirror.sh" | head -1)" >&2
	printf '#!/bin/sh\nexit 101\n' >"$debian/usr/sbin/policy-rc.d" # no daemon is started by its package
	chmod 0755 "$debian/usr/sbin/policy-rc.d"
	unshare --mount --pid --fork --mount-proc="$debian/proc" chroot "$debian" sh -c 'apt-get update -qq &&
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends podman runc criu busybox-static procps iproute2 util-linux zstd' >&2
	touch "$debian/made"
}

# inside_host NAME is the first process of a host. Its root is the Debian 13; what is written there is gone afterwards.
inside_host() {
	local name=$1 root=$dir/$1/root
	mount -t tmpfs -o mode=0755 tmpfs "$dir/$name/changes"
	mkdir "$dir/$name/changes/upper" "$dir/$name/changes/work"
	mount -t overlay -o "lowerdir=$debian,upperdir=$dir/$name/changes/upper,workdir=$dir/$name/changes/work" overlay "$root"
	mkdir -p "$root/.old" "$root$repo" "$root/wire" "$root/var/lib/containers"
	mount -t proc proc "$root/proc"
	mount --rbind /dev "$root/dev"
	mount -t sysfs sysfs "$root/sys"
	mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
	mount --bind "$repo" "$root$repo"
	mount --bind "$dir/wire" "$root/wire"
	mount -t tmpfs -o mode=0755 tmpfs "$root/run"
	mkdir "$root/run/nvidia"
	mount --bind "$dir/$name/sim" "$root/run/nvidia"
	mount -t tmpfs -o mode=0755 tmpfs "$root/var/lib/containers"
	cd "$root"
	pivot_root . .old
	cd /
	umount --lazy /.old
	hash -r
	mount -t tmpfs -o mode=1777 tmpfs /dev/shm
	hostname "$name"
	ip link set lo up # CRIU tries a connection
	configure
	touch "/wire/$name.ready"
	exec sleep infinity
}

configure() {
	local program
	mkdir -p /etc/criu /etc/cucriu /usr/lib/cucriu/criu-plugins
	# Podman hands no environment down to the hook, and the simulated driver needs some.
	for program in cucriu cucriu-hook; do
		cat >"/usr/local/bin/$program" <<-END
			#!/bin/sh
			export CUDASIM_ROOT=/run/nvidia LD_LIBRARY_PATH=$sim
			exec $repo/bin/$program "\$@"
		END
		chmod 0755 "/usr/local/bin/$program"
	done
	cat >/etc/cucriu/config.yaml <<-END
		version: 1
		driver: {library: $sim/libcuda.so.1, root: /run/nvidia}
	END
	# Not runc.conf, which CRIU 4.1.1 reads twice.
	cat >/etc/criu/default.conf <<-END
		action-script /usr/local/bin/cucriu-hook
		libdir /usr/lib/cucriu/criu-plugins
		network-lock skip
		manage-cgroups=ignore
	END
	cat >/etc/containers/containers.conf <<-END
		[containers]
		pids_limit = 0
		[engine]
		runtime = "runc"
		cgroup_manager = "cgroupfs"
		events_logger = "file"
	END
}

# start_host NAME
start_host() {
	mkdir -p "$dir/$1/root" "$dir/$1/changes"
	"$sim/cudasim-run" --gpus 2 --mib-per-gpu 64 --root "$dir/$1/sim" >/dev/null 2>&1
	unshare --mount --pid --uts --ipc --net --fork --kill-child -- "$BASH" "$repo/scripts/try-podman.sh" --host "$dir" "$1" >>"$dir/$1.log" 2>&1 &
	local unshare=$!
	await 20 "host $1 is made" test -e "$dir/wire/$1.ready"
	first[$1]=$(pgrep -P "$unshare")
}

# on HOST COMMAND: runs a command of the shell on a host.
on() {
	nsenter --target "${first[$1]}" --all env -i PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root timeout 60 bash -o pipefail -c "$2" 2>>"$dir/$1.log"
}

state() {
	local name
	for name in a b; do
		on "$name" "podman ps --all; cucriu status; grep -hE 'Error|cucriu-hook' /var/lib/containers/storage/overlay-containers/*/userdata/{dump,restore}.log" || true
	done
}

# make_image makes a container image with the workload on host a, and takes it to host b.
make_image() {
	on a "mkdir -p /tmp/image/bin /tmp/image/lib/x86_64-linux-gnu /tmp/image/lib64 /tmp/image/job && cd /tmp/image &&
		cp /bin/busybox bin && ln -s busybox bin/sh && ln -s busybox bin/cat && ln -s busybox bin/ls && cp $workload . &&
		cp -L /lib/x86_64-linux-gnu/lib{c.so.6,m.so.6,dl.so.2,pthread.so.0,rt.so.1,gcc_s.so.1} lib/x86_64-linux-gnu && cp -L /lib64/ld-linux-x86-64.so.2 lib64 &&
		tar -c . | podman import - localhost/train && podman save -o /wire/image.tar localhost/train" >&2
	on b "podman load -i /wire/image.tar" >&2
}

# run_container HOST OPTION...: starts the container, and waits until the workload ticks.
run_container() {
	local host=$1
	shift
	on "$host" "podman run --detach --name train --cgroup-parent /${dir##*/} --network none --volume /run/nvidia:/run/nvidia --volume $sim:$sim:ro \
		--env CUDASIM_ROOT=/run/nvidia --env LD_LIBRARY_PATH=$sim $* localhost/train /cudawork --dir /job --mib 8" >&2
	await 20 "the workload ticks on host $host" ticks "$host"
}

status_of() { on "$1" "podman exec train cat /job/status" || true; }

tick_of() { status_of "$1" | sed -n 's/.*"tick":\([0-9]*\).*/\1/p'; }

ticks() { (($(tick_of "$1") > 5)); }

# beyond_on HOST: the workload has gone on from where it was noted.
beyond_on() { (($(tick_of "$1") > before)); }

# goes_on_at HOST WHAT
goes_on_at() {
	await 20 "the job goes on on host $1" beyond_on "$1"
	status_of "$1" | grep -q '"bad":0' || fail "wrong content: $(status_of "$1")"
	say "$2: tick $before before, and on host $1 $(status_of "$1")"
	before=$(tick_of "$1")
}

# outcome HOST: what cucriu says of the container's image.
outcome() {
	# shellcheck disable=SC2016 # the host's shell expands it
	on "$1" 'cucriu status -D "$(podman inspect --format "{{.StaticDir}}" train)/checkpoint" 2>&1' >"$dir/outcome"
}

# checkpoint HOST: as the page has it.
checkpoint() {
	before=$(tick_of "$1")
	on "$1" "podman container checkpoint --export=/var/tmp/train.tar.zst train && sync /var/tmp/train.tar.zst && podman rename train train-kept" >&2 ||
		fail "the container on host $1 is not checkpointed"
}

# send FROM TO, and check there.
send() {
	on "$1" "cp /var/tmp/train.tar.zst /wire"
	on "$2" "cp /wire/train.tar.zst /var/tmp && rm -rf /var/tmp/look && mkdir /var/tmp/look && tar -C /var/tmp/look -xf /var/tmp/train.tar.zst checkpoint &&
		cucriu check -D /var/tmp/look/checkpoint" >"$dir/check"
}

restore() { on "$1" "podman container restore --import=/var/tmp/train.tar.zst" >&2; }

# move FROM TO
move() {
	checkpoint "$1"
	send "$1" "$2" || fail "host $2 cannot take it: $(cat "$dir/check")"
	restore "$2" || fail "Podman does not restore it on host $2"
	outcome "$2" || fail "cucriu says that the restore failed: $(cat "$dir/outcome")"
	goes_on_at "$2" "moved from host $1 to host $2"
	on "$1" "podman rm train-kept && rm /var/tmp/train.tar.zst" >&2
}

# back TO: what is there is ended, and the container kept on host a goes on.
back() {
	on "$1" "podman rm --force --ignore --time 0 train && rm -f /var/tmp/train.tar.zst" >&2
	on a "podman rename train-kept train && podman container restore train" >&2
	outcome a || fail "$(cat "$dir/outcome")"
	goes_on_at a "$2"
}

nodes() { printf -- '--device /run/nvidia/dev/%s ' nvidiactl nvidia-uvm nvidia-memory "nvidia$1"; }

# own_dev HOST N: makes a directory with the nodes for a container, as the page has it.
own_dev() {
	on "$1" "mkdir -p /gpu/pts /gpu/shm /gpu/mqueue && cd /gpu && cp -a /dev/{null,zero,full,random,urandom,tty} . &&
		ln -s pts/ptmx ptmx && ln -s /proc/self/fd fd && cp -a /run/nvidia/dev/nvidia{ctl,-uvm,-memory,$2} ."
}

# uuid HOST N
uuid() { sed -n 's/^GPU UUID:[[:space:]]*//p' "$dir/$1"/sim/proc/driver/nvidia/gpus/*/information | sed -n "$(($2 + 1))p"; }

inside() {
	mount --make-rprivate /
	mkdir "$dir/wire"
	declare -gA first
	start_host a
	start_host b
	say "$(on a "podman --version"); $(on a "runc --version | head -1"); CRIU $(on a "criu --version" | sed -n 's/^Version: //p'), on two hosts"
	make_image

	# The engine's nodes in a tmpfs, as in the /dev that engines make.
	# shellcheck disable=SC2046 # several options
	run_container a --tmpfs /run/nvidia/dev:rw,dev,notmpcopyup $(nodes 0)
	move a b
	move b a

	before=$(tick_of a)
	sed -i.whole 's/580\.159\.04/580.95.05/' "$dir/b/sim/proc/driver/nvidia/version"
	checkpoint a
	if send a b; then fail "host b, which has another driver, could take it"; fi
	grep -q driver-version "$dir/check" || fail "it is not said why: $(cat "$dir/check")"
	if restore b; then fail "Podman restores it under another driver"; fi
	back b "refused on host b, which has another driver"
	mv "$dir/b/sim/proc/driver/nvidia/version.whole" "$dir/b/sim/proc/driver/nvidia/version"

	checkpoint a
	send a b || fail "$(cat "$dir/check")"
	echo "restore return 999" >"$dir/b/sim/faults"
	if restore b; then fail "Podman says that a container is restored whose GPU state did not come back"; fi
	if outcome b; then fail "so says cucriu"; fi
	tail -1 "$dir/outcome" >&2
	rm "$dir/b/sim/faults"
	back b "its GPU state did not come back on host b"

	checkpoint a
	on a "podman rename train-kept train"
	echo "restore return 999" >"$dir/a/sim/faults"
	if on a "podman container restore train" >&2; then fail "Podman says that it is restored"; fi
	rm "$dir/a/sim/faults"
	on a "podman container restore train" >&2 || fail "the checkpoint is gone after a restore that failed"
	goes_on_at a "its GPU state did not come back on host a itself, and then it did"

	checkpoint a
	on a "podman rename train-kept train && podman start train" >&2
	await 20 "the workload ticks" ticks a
	(($(tick_of a) < before)) || fail "podman start goes on with a checkpointed container: tick $(tick_of a)"
	say "podman start begins a checkpointed container anew, at tick $(tick_of a) after $before"
	on a "podman rm --force --time 0 train" >&2

	# A /dev of each host's own: with GPU 0 on host a, with GPU 1 on host b.
	own_dev a 0
	own_dev b 1
	run_container a --interactive --volume /gpu:/dev --volume /gpu:/run/nvidia/dev --device-cgroup-rule "'c *:* rwm'"
	move a b
	status_of b | grep -q "$(uuid b 1)" || fail "it is not on GPU 1 of host b, $(uuid b 1)"
	say "it was on GPU 0 of host a, and is on GPU 1 of host b, whose node it sees there"
}

# remove_groups removes the control groups of the containers, which are gone.
remove_groups() {
	unshare --mount sh -c 'mount -t cgroup2 cgroup2 /mnt && cd /mnt && if [ -d "$1" ]; then find "$1" -depth -type d -exec rmdir {} +; fi' sh "${dir##*/}"
}

case ${1:-} in
--inside) ;;
--host)
	dir=$2
	inside_host "$3"
	;;
*)
	((EUID == 0)) || die "this needs root"
	make_debian
	dir=
	trap 'if [[ -n $dir ]]; then remove_groups; fi' EXIT
	;;
esac
run_in_namespaces "" "" "$@"
