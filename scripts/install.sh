#!/usr/bin/env bash
# install.sh FILES DESTDIR PREFIX: installs bin/ and what belongs to it below DESTDIR. FILES is build/install, with the manual pages and
# completions. Nothing is activated: criu's and systemd's configuration is left alone. With --uninstall as the first argument, what would be
# installed is removed.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$repo"

uninstall=
if [[ ${1:-} == --uninstall ]]; then
	uninstall=1
	shift
fi
files=$1 destdir=$2 prefix=$3
[[ $prefix == /* ]] || die "PREFIX must be an absolute path, not $prefix"

# put MODE SOURCE PATH: paths that name the program are made to name where it is installed.
put() {
	local to=$destdir$3
	if [[ $uninstall ]]; then
		rm -f -- "$to"
		rmdir --ignore-fail-on-non-empty -p -- "${to%/*}" 2>/dev/null || true
		return
	fi
	install -D -m "$1" -- "$2" "$to"
	if [[ $prefix != /usr && $1 == 0644 && $3 != */man/* ]]; then
		sed -i "s,/usr/bin/cucriu,$prefix/bin/cucriu,g; s,/usr/libexec/cucriu,$prefix/libexec/cucriu,g; s,/usr/lib/cucriu,$prefix/lib/cucriu,g; s,/usr/share/cucriu,$prefix/share/cucriu,g" "$to"
	fi
}

put 0755 bin/cucriu "$prefix/bin/cucriu"
put 0755 bin/cucriu-hook "$prefix/libexec/cucriu/cucriu-hook"
# Not in PATH: there it would switch criu's own CUDA plugin on.
put 0755 bin/cuda-checkpoint "$prefix/libexec/cucriu/cuda-checkpoint"
for page in "$files"/man/*.8; do
	put 0644 "$page" "$prefix/share/man/man8/${page##*/}"
done
put 0644 "$files/cucriu.bash" "$prefix/share/bash-completion/completions/cucriu"
put 0644 "$files/cucriu.zsh" "$prefix/share/zsh/site-functions/_cucriu"
put 0644 "$files/cucriu.fish" "$prefix/share/fish/vendor_completions.d/cucriu.fish"
for unit in configs/cucriu-recover.service configs/cucriu-recover.timer configs/systemd/cucriu-job@.service; do
	put 0644 "$unit" "$prefix/lib/systemd/system/${unit##*/}"
done
for example in configs/{config.yaml,criu.conf,runc.conf} configs/systemd/train.env configs/{htcondor/{job.sub,sudoers},kubernetes/job.yaml,slurm/{job.sbatch,sudoers}}; do
	put 0644 "$example" "$prefix/share/cucriu/${example#configs/}"
done
for script in configs/{htcondor/cucriu-condor,slurm/cucriu-slurm}; do
	put 0755 "$script" "$prefix/share/cucriu/${script#configs/}"
done
for text in README.md CHANGELOG.md SECURITY.md LICENSE docs/*.md; do
	put 0644 "$text" "$prefix/share/doc/cucriu/$text"
done
# criu.conf names it, so that criu finds no plugin of its own.
if [[ $uninstall ]]; then
	rmdir --ignore-fail-on-non-empty -p -- "$destdir$prefix/lib/cucriu/criu-plugins" 2>/dev/null || true
else
	install -d -m 0755 -- "$destdir$prefix/lib/cucriu/criu-plugins"
fi
