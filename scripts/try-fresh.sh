#!/usr/bin/env bash
# try-fresh.sh [demo|test|package] [RELEASE...]: proves that a fresh machine suffices. In bare Debian roots (debootstrap; bookworm and trixie,
# kept in build/fresh-RELEASE), it installs what scripts/need.sh asks for and nothing else, and runs make demo or make test in a clone of this
# commit; or it installs, uses, upgrades and removes the package. Needs root, debootstrap, and Go in PATH.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$repo"

what=${1:-demo}
shift || true
releases=("$@")
((${#releases[@]} > 0)) || releases=(bookworm trixie)
have debootstrap || die "debootstrap is missing" "apt-get install debootstrap"
mkdir -p build
goroot=$(go env GOROOT)
go mod download
modules=$(go env GOMODCACHE)

say() { printf '%s  %s: %s\n' "$(date -u +%H:%M:%S)" "${release:-}" "$*"; }

# inside runs a command in the root, with pid and mount namespaces of its own.
inside() {
	unshare --mount --pid --fork --kill-child bash -euc '
		root=$1; shift
		mount --make-rprivate /
		mount --bind "$root" "$root"
		mount -t proc proc "$root/proc"
		mount --rbind /dev "$root/dev"
		mount --rbind /sys "$root/sys"
		mount -t tmpfs tmpfs "$root/run"
		cd "$root"; mkdir -p old; pivot_root . old; umount -l /old
		exec /usr/bin/env -i HOME=/root TERM=dumb PATH=/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
			GOMODCACHE=/root/modules GOFLAGS=-modcacherw GOTOOLCHAIN=local "$@"
	' inside "$root" "$@"
}

make_root() {
	root=$repo/build/fresh-$release
	if [[ ! -e $root/done ]]; then
		say "debootstrap"
		rm -rf "$root"
		debootstrap --variant=minbase "$release" "$root" "$(scripts/debian-mirror.sh | head -1)" >"$root.log"
		touch "$root/done"
	fi
	touch "$root/go.mod" # so that ./... does not take the root's own Go for a part of this module
	rm -rf "$root/work"
	mkdir -p "$root/work"
	cp /etc/resolv.conf "$root/etc/resolv.conf"
	if [[ -d /usr/local/share/ca-certificates ]]; then # a proxy's, where there is one
		mkdir -p "$root/usr/local/share"
		cp -r /usr/local/share/ca-certificates "$root/usr/local/share/"
	fi
	# How this machine reaches its mirror.
	grep -lsE 'Proxy|Check-Valid-Until' /etc/apt/apt.conf.d/* | xargs -r cp -t "$root/etc/apt/apt.conf.d/" || true
}

# source_tree puts this commit, Go and the modules there. Go is the only thing that Debian does not have new enough.
source_tree() {
	mkdir -p "$root/usr/local/go" "$root/root/modules"
	[[ -x $root/usr/local/go/bin/go ]] || cp -r "$goroot/." "$root/usr/local/go/"
	cp -r --update "$modules/." "$root/root/modules/"
	git clone --quiet --no-hardlinks "$repo" "$root/work/cucriu"
}

# satisfy runs the line that need.sh prints. make and git are what everybody needs to come as far.
satisfy() {
	inside apt-get update -qq
	inside apt-get install -y -qq --no-install-recommends make git >/dev/null
	local line
	for _ in 1 2 3 4; do
		if line=$(inside bash -c 'cd /work/cucriu && scripts/need.sh go gcc tests' 2>&1); then
			return
		fi
		say "$line"
		line=$(sed -nE 's/.*(apt-get install) /\1 -y -qq --no-install-recommends /p; s/^ *Run: //p' <<<"$line")
		[[ -n $line ]] || die "need.sh names no line that installs what is missing"
		inside bash -c "$line" >/dev/null
	done
	die "need.sh is not satisfied by what it asks for"
}

try_make() {
	source_tree
	satisfy
	say "make $1"
	inside bash -c "cd /work/cucriu && make $1"
}

# A long job runs on while the package is upgraded, and obeys the new one; its checkpoints are the new one's, too.
upgrade='
	dpkg --install /work/old.deb >/dev/null
	cd /work/try
	eval "$(build/cudasim/cudasim-run --gpus 1 --root /work/host 2>/dev/null)"
	mkdir -p /work/job
	tick() { sed -n "s/.*\"tick\": *\([0-9]*\).*/\1/p" /work/job/status 2>/dev/null || true; }
	ticks() {
		local from until=$((SECONDS + 120))
		from=$(tick)
		while (($(tick) + 0 < ${from:-0} + $1)); do
			((SECONDS < until)) || { cat /work/run.log; cucriu jobs list; exit 1; }
			sleep 0.05
		done
	}
	run() { cucriu run --name train --dir /work/train --every 1s -- /work/try/build/workload/cudawork --dir /work/job --mib 16 >>/work/run.log 2>&1 & }
	run
	old=$(cucriu version)
	ticks 50
	apt-get install -y -qq /work/cucriu.deb >/dev/null 2>&1
	[[ $(cucriu version) != "$old" ]]
	ticks 50
	cucriu jobs list
	cucriu jobs checkpoint train
	cucriu jobs stop train
	wait $! || true
	before=$(tick)
	run
	ticks 20
	(($(tick) > before))
	cucriu jobs verify train
	touch /work/job/stop
	wait $!
	echo "$old was upgraded to $(cucriu version) while the job ran; stopped at $before and resumed by the new one"
'

# try_package follows docs/containers.md: install, three lines of configuration, a runc container checkpointed and restored on another GPU.
try_package() {
	cp build/fresh-old.deb "$root/work/old.deb"
	cp build/package/*.deb "$root/work/cucriu.deb"
	mkdir -p "$root/work/try/scripts" "$root/work/try/build" "$root/work/criu"
	cp -r build/cudasim build/workload "$root/work/try/build/"
	cp scripts/{try-engines,try-common,common,clean-exec}.sh "$root/work/try/scripts/"
	UNPACKED=$(dirname "$(scripts/provide-criu.sh --unpacked)")/root scripts/relocate.sh "$root/work/criu" usr/sbin/criu /work/criu # Debian 12 has 3.17
	inside apt-get update -qq
	inside apt-get install -y -qq --no-install-recommends /work/cucriu.deb runc man-db >/dev/null
	say "installed: $(inside cucriu version), $(inside runc --version | head -1)"
	inside bash -euc '
		dpkg -L cucriu | grep -q /usr/libexec/cucriu/cucriu-hook
		/usr/libexec/cucriu/cuda-checkpoint --help >/dev/null
		[[ ! $(type -P cuda-checkpoint) ]]
		[[ ! -e /etc/criu/default.conf && ! -e /etc/cucriu ]] || { echo "installing has activated something"; exit 1; }
		man -P cat cucriu-dump | grep -q "cucriu dump -t PID"
		source /usr/share/bash-completion/completions/cucriu
		cucriu completion bash | cmp - /usr/share/bash-completion/completions/cucriu
	'
	inside env PATH=/work/criu:/usr/sbin:/usr/bin:/sbin:/bin /work/try/scripts/try-engines.sh runc here
	inside env PATH=/work/criu:/usr/sbin:/usr/bin:/sbin:/bin bash -euc "$upgrade"
	inside dpkg --remove cucriu >/dev/null
	inside bash -euc '
		[[ -z $(find / -xdev -path "/usr/*cucriu*" -not -path "/work/*" -print -quit) ]] || { find / -xdev -path "/usr/*cucriu*"; exit 1; }
	'
	say "removed without a trace"
}

if [[ $what == package ]]; then
	make package VERSION=v0.0.1 >/dev/null
	cp build/package/*.deb build/fresh-old.deb
	make sim workload tools package VERSION=v0.0.2 >/dev/null
fi
for release in "${releases[@]}"; do
	make_root
	case $what in
	demo | test) try_make "$what" ;;
	package) try_package ;;
	*) die "unknown: $what" "try-fresh.sh [demo|test|package] [RELEASE...]" ;;
	esac
	say "$what is good"
done
