#!/usr/bin/env bash
# lint.sh PACKAGES...: checks formatting, vet and staticcheck, with the versions that the Makefile pins (GOFUMPT, STATICCHECK),
# fetched through the Go module proxy. All checks run even if one fails, so that one call shows everything.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$repo"

: "${GOFUMPT:?run through make lint}" "${STATICCHECK:?run through make lint}"
failed=()

mapfile -t sources < <(find . \( -path ./.tools -o -path ./build -o -path ./.git \) -prune -o -name '*.go' -print)
if ((${#sources[@]} > 0)); then
	note "lint: gofumpt"
	unformatted=$(go run "$GOFUMPT" -l "${sources[@]}") || failed+=(gofumpt)
	if [[ -n $unformatted ]]; then
		note "$unformatted"
		note "not formatted; remedy: go run $GOFUMPT -w FILE"
		failed+=(gofumpt)
	fi
fi

# Lines of before may be wider, until somebody touches them: there are no more of them than there were. Lower the number.
wide_at_most=2479
note "lint: 120 columns"
wide=$(LC_ALL=C.UTF-8 grep -hE '^.{121}' "${sources[@]}" | wc -l)
if ((wide > wide_at_most)); then
	note "$wide lines of Go are wider than 120 columns, where $wide_at_most were: break the new ones"
	failed+=(columns)
fi

note "lint: go vet"
go vet "$@" || failed+=("go vet")
go vet -tags man ./cmd/cucriu || failed+=("go vet -tags man")
case $(go env GOARCH) in amd64) other=arm64 ;; *) other=amd64 ;; esac
GOARCH=$other go build -o /dev/null ./cmd/... || failed+=("go build for $other")
GOARCH=$other go vet ./cmd/... ./hooks/... ./cudackpt/... ./criuutil/... ./internal/... || failed+=("go vet for $other")

note "lint: staticcheck"
go run "$STATICCHECK" "$@" || failed+=(staticcheck)

note "lint: scripts"
scripts=(scripts/*.sh .ci/run configs/*/cucriu-condor configs/*/cucriu-slurm configs/*/*.sh configs/slurm/job.sbatch test/programs/testdata/*.sh)
for script in "${scripts[@]}"; do
	bash -n "$script" || failed+=("$script")
done
if have shellcheck; then
	# SC2015: is A && is B || fail; fail ends the script. SC2016: what stands in single quotes is for another shell, or for sed.
	shellcheck --exclude=SC2015,SC2016 --external-sources --source-path=scripts "${scripts[@]}" || failed+=(shellcheck)
fi

((${#failed[@]} == 0)) || die "failed: ${failed[*]}"
