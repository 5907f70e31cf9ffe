#!/usr/bin/env bash
# try-podman.sh
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
. "$repo/scripts/try-common.sh"

debian=$repo/build/podman-root

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
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends podman crun runc criu busybox-static procps iproute2 util-linux' >&2
	touch "$debian/made"
}

state() { :; }

# host NAME: makes a host of its own in new namespaces, whose root is a Debian 13 with storage of its own, and leaves a process there.
host() {
	local name=$1 root=$dir/$1/root
	mkdir -p "$root" "$dir/$name/changes"
	"$repo/build/cudasim/cudasim-run" --gpus 2 --mib-per-gpu 64 --root "$dir/$name/sim" >"$dir/$name/environment" 2>/dev/null
	unshare --mount --pid --uts --ipc --net --fork --kill-child -- "$BASH" "$repo/scripts/try-podman.sh" --host "$dir" "$name" "$criu" &
	await 20 "host $name is made" test -e "$dir/$name/pid"
}

# inside_host runs as the first process of a host.
inside_host() {
	local name=$2 root path
	dir=$1 criu=$3
	root=$dir/$name/root
	mount --make-rprivate /
	mount -t tmpfs -o mode=0755 tmpfs "$dir/$name/changes"
	mkdir "$dir/$name/changes/upper" "$dir/$name/changes/work"
	mount -t overlay -o "lowerdir=$debian,upperdir=$dir/$name/changes/upper,workdir=$dir/$name/changes/work" overlay "$root"
	mkdir -p "$root/.old" "$root$repo" "$root/wire" "$root/run/nvidia"
	mount -t proc proc "$root/proc"
	mount --rbind /dev "$root/dev"
	mount -t sysfs sysfs "$root/sys"
	mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
	mount --bind "$repo" "$root$repo"
	mount --bind "$dir/wire" "$root/wire"
	mount -t tmpfs -o mode=0755 tmpfs "$root/run"
	mkdir "$root/run/nvidia"
	mount --bind "$dir/$name/sim" "$root/run/nvidia"
	mkdir -p "$root/var/lib/containers"
	mount -t tmpfs -o mode=0755 tmpfs "$root/var/lib/containers"
	cd "$root"
	pivot_root . .old
	cd /
	umount --lazy /.old
	hash -r
	hostname "$name"
	ip link set lo up
	mount -t tmpfs -o mode=1777 tmpfs /dev/shm
	configure
	sleep infinity &
	echo $$ >/wire/pid-$name
	wait
}

configure() {
	local sim=$repo/build/cudasim
	mkdir -p /etc/criu /etc/cucriu /usr/lib/cucriu/criu-plugins
	# Podman hands no environment down to the hook, and the simulated driver needs some.
	cat >/usr/local/bin/cucriu-hook <<-END
		#!/bin/sh
		export CUDASIM_ROOT=/run/nvidia LD_LIBRARY_PATH=$sim
		exec $repo/bin/cucriu-hook "\$@"
	END
	cat >/usr/local/bin/cucriu <<-END
		#!/bin/sh
		export CUDASIM_ROOT=/run/nvidia LD_LIBRARY_PATH=$sim CUCRIU_CRIU=$criu
		exec $repo/bin/cucriu "\$@"
	END
	chmod 0755 /usr/local/bin/*
	cat >/etc/cucriu/config.yaml <<-END
		version: 1
		driver: {library: $sim/libcuda.so.1, root: /run/nvidia}
	END
	cat >/etc/criu/default.conf <<-END
		action-script /usr/local/bin/cucriu-hook
		libdir /usr/lib/cucriu/criu-plugins
		network-lock skip
		manage-cgroups=ignore
	END
	cat >/etc/containers/containers.conf <<-END
		[containers]
		pids_limit = 0
		seccomp_profile = "unconfined"
		[engine]
		cgroup_manager = "cgroupfs"
		events_logger = "file"
		[network]
	END
}
inside() {
	mkdir -p "$dir/wire"
	for name in a b; do host2 $name; done
	bash -x /tmp/rdy-pod/hand.sh "$dir" "$repo" 2>&1
}
host2() {
	local name=$1
	mkdir -p "$dir/$name/root" "$dir/$name/changes"
	"$repo/build/cudasim/cudasim-run" --gpus 2 --mib-per-gpu 64 --root "$dir/$name/sim" >/dev/null 2>&1
	unshare --mount --pid --uts --ipc --net --fork --kill-child -- "$BASH" "$repo/scripts/try-podman.sh" --host "$dir" "$name" "$criu" &
	echo $! > $dir/$name/unshare
	await 20 "host $name is made" test -e "$dir/wire/pid-$name"
}
if [[ ${1:-} == --host ]]; then shift; inside_host "$@"; exit; fi
if [[ ${1:-} != --inside ]]; then
	((EUID == 0)) || die "this needs root"
	make_debian
fi
run_in_namespaces "" "" "$@"
