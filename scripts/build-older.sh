#!/usr/bin/env bash
# Builds build/test/older: cucriu for the tests as if it were an earlier one. It calls itself so, gives jobs version 8 of its
# library, and knows no newer one. Without a C compiler there is no library.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

arch=$(go env GOARCH) dir=build/test/older
library=build/test/small-v8-$arch.so
[[ -e $library ]] || exit 0
mkdir -p $dir
sed -E 's/^(\tversion +)= [0-9]+/\1= 8/' internal/core/agent/agent.go >$dir/agent.txt
cat >$dir/overlay.json <<-END
	{"Replace": {
		"$PWD/internal/core/agent/agent.go": "$PWD/$dir/agent.txt",
		"$PWD/internal/kit/guest/built/small-$arch.so": "$PWD/$library"
	}}
END
go build -buildvcs=false -ldflags '-s -w -X cucriu/internal/kit/version.Version=older' -overlay $dir/overlay.json \
	-tags failpoint -o $dir/ ./cmd/cucriu ./cmd/cucriu-hook
