#!/usr/bin/env bash
# Prints a directory with OpenSSH for the tests with two hosts (sshd, ssh, scp and ssh-keygen), and provides it first if there is none:
#   1. CUCRIU_TEST_SSH, used as it is
#   2. links to those in PATH, if all of them are there
#   3. Debian's with their libraries, unpacked into .tools/ssh: nothing is installed in the system
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

programs=(sshd ssh scp ssh-keygen)

if [[ -n ${CUCRIU_TEST_SSH:-} ]]; then
	for program in "${programs[@]}"; do
		[[ -x $CUCRIU_TEST_SSH/$program ]] || die "CUCRIU_TEST_SSH=$CUCRIU_TEST_SSH has no $program"
	done
	realpath -s "$CUCRIU_TEST_SSH"
	exit
fi

# link_system fills .tools/ssh-system with links, since sshd must be started by an absolute path.
link_system() {
	local program path
	for program in "${programs[@]}"; do
		path=$(PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin type -P "$program") || return 1
		mkdir -p "$tools/ssh-system"
		ln -sfn "$path" "$tools/ssh-system/$program"
	done
}

lock_tools
if link_system; then
	dir=$tools/ssh-system
else
	dir=$tools/ssh
	provide_unpacked ssh usr/sbin/sshd "trixie sid bookworm" \
		"Install OpenSSH (Fedora: dnf install openssh-server openssh-clients), or set CUCRIU_TEST_SSH=/path/to/a/directory." \
		openssh-server openssh-client
	# sshd-session and sshd-auth are parts of sshd since 9.8 and 10.0.
	for binary in usr/bin/ssh usr/bin/scp usr/bin/ssh-keygen usr/lib/openssh/sshd-session usr/lib/openssh/sshd-auth; do
		# Whatever is older than sshd was made for the place where this directory was before.
		if [[ -e $dir/root/$binary && ! $dir/${binary##*/} -nt $dir/sshd ]]; then
			"$repo/scripts/relocate.sh" "$dir" "$binary" >&2
		fi
	done
fi
"$dir/ssh" -V 2>/dev/null ||
	die "$dir/ssh does not run" "Install another, or where it is in $tools: rm -rf $tools/ssh && make tools"
printf '%s\n' "$dir"
