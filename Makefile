# make help lists the targets. Everything is incremental, and nothing outside this directory is changed.

SHELL       := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS   += --no-print-directory
.DEFAULT_GOAL := build

VERSION ?= $(shell scripts/version.sh)

# The product is built and tested without cgo. It opens the driver library at run time, so one binary serves hosts with and
# without a GPU. git's state reaches the binary only through VERSION.
export CGO_ENABLED := 0
# The tests, too, are built with it, so that they share what the build has compiled.
export GOFLAGS := $(GOFLAGS) -trimpath
COVER   ?=
GOBUILD := go build $(COVER) -buildvcs=false -ldflags '-s -w -X cucriu/internal/kit/version.Version=$(VERSION)'

PKGS         ?= ./...
TESTFLAGS    ?=
TEST_TIMEOUT ?= 60m
BENCHFLAGS   ?=
SIZES        ?=
REPEAT       ?=
SUITES       ?=
SOAK         ?= 10m
SEED         ?= $(shell od -An -N3 -tu4 /dev/urandom | tr -d ' ')
SOAK_TESTS   ?= TestNoJobIsLostInACrowd|TestALongJobSurvivesEverything|TestNoMoveLosesAJob

# A Debian release whose CRIU is used instead of any other: trixie has 4.1.1.
export CRIU_RELEASE ?=

# The suites of commands that run on real GPUs, too: `run.sh` of the bundle names them.
GPU_SUITES := ./test/dump ./test/restore ./test/check ./test/suspend ./test/guest

# The packages whose tests `make gpu-bundle` takes along as test binaries.
GPU_TEST_PACKAGES ?= ./test/conformance $(GPU_SUITES) ./test/programs ./test/migrate

GOFUMPT     := mvdan.cc/gofumpt@v0.12.0
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOLANGCI    := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
NFPM        := github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.43.4

PREFIX  ?= /usr/local
DESTDIR ?=

##@ Build

.PHONY: build
build: need-go guest ## bin/cucriu, bin/cucriu-hook and bin/cuda-checkpoint, and for the tests build/test: the bench, and programs that fail on request
	$(GOBUILD) -o bin/ ./cmd/cucriu ./cmd/cucriu-hook ./cmd/cuda-checkpoint
	$(GOBUILD) -tags failpoint -o build/test/ ./cmd/cucriu ./cmd/cucriu-hook ./test/gocriu ./test/bench ./test/bench/serial-hook
	cd test/embed && $(GOBUILD) -tags failpoint -o ../../build/test/embed .
	scripts/build-older.sh

# Without a C compiler the programs have no library and no first process for jobs.
.PHONY: guest
guest: need-go
	if [[ -n "$$(type -P gcc)" ]]; then $(MAKE) -C internal/kit/guest/lib && $(MAKE) -C internal/kit/first/lib; fi

.PHONY: sim
sim: need-gcc ## the simulated driver, build/cudasim
	$(MAKE) -C test/cudasim

.PHONY: workload
workload: need-gcc ## the CUDA workload, build/workload
	$(MAKE) -C test/workload

.PHONY: tools
tools: need-tests ## CRIU >= 4.0, runc, OpenSSH and iptables: the system's, or unpacked ones in .tools
	@scripts/provide-criu.sh >/dev/null
	@scripts/provide-criu-plugin.sh >/dev/null
	@scripts/provide-runc.sh >/dev/null
	@scripts/provide-ssh.sh >/dev/null
	@scripts/provide-iptables.sh >/dev/null

.PHONY: which-criu
which-criu: ## print the path of the CRIU in use (with make -s)
	@scripts/provide-criu.sh

.PHONY: which-runc
which-runc: ## print the path of the runc in use (with make -s)
	@scripts/provide-runc.sh

.PHONY: which-ssh
which-ssh: ## print the directory of the OpenSSH in use (with make -s)
	@scripts/provide-ssh.sh

##@ Install

.PHONY: install
install: build install-files ## binaries, manual pages, completions, units, examples (PREFIX=/usr DESTDIR=…); activates nothing
	scripts/install.sh build/install "$(DESTDIR)" "$(PREFIX)"

.PHONY: uninstall
uninstall: install-files ## remove them again
	scripts/install.sh --uninstall build/install "$(DESTDIR)" "$(PREFIX)"

.PHONY: package
package: build install-files ## a deb and an rpm in build/package
	NFPM=$(NFPM) VERSION=$(VERSION) scripts/package.sh build/install

.PHONY: image
image: build ## an OCI image with CRIU, build/image/cucriu.tar
	VERSION=$(VERSION) scripts/image.sh

# The program that writes the manual pages is the product with one command more.
.PHONY: install-files
install-files: need-go
	rm -rf build/install && mkdir -p build/install/man
	$(GOBUILD) -tags man -o build/cucriu-man ./cmd/cucriu
	build/cucriu-man man build/install/man
	rm build/install/man/cucriu-completion-powershell.8
	for shell in bash zsh fish; do build/cucriu-man completion $$shell >build/install/cucriu.$$shell; done

##@ Run

.PHONY: demo
demo: build sim workload tools ## dump a CUDA job and restore it on another GPU; simulated ones where there are none
	CUCRIU_TEST_CRIU="$$(scripts/provide-criu.sh)" scripts/private-exec.sh scripts/demo.sh

.PHONY: bench
bench: build sim workload ## measure the downtime side by side, on simulated GPUs, into build/bench (BENCHFLAGS=--help)
	CUCRIU_TEST_CRIU="$$(scripts/provide-criu.sh)" scripts/private-exec.sh build/test/bench $(BENCHFLAGS)

.PHONY: bench-migrate
bench-migrate: build sim workload tools ## measure live migration beside iperf3, rsync and the way by hand, into build/bench/migrate.md (SIZES="0.25 4" REPEAT=3)
	mkdir -p build/bench && : >build/bench/migrate.md
	tail -f --pid=$$$$ build/bench/migrate.md & \
	CUCRIU_FIGURES=$(CURDIR)/build/bench/migrate.md CUCRIU_FIGURES_SIZES="$(SIZES)" CUCRIU_FIGURES_REPEAT="$(REPEAT)" \
		CUCRIU_BENCH_NET="$$(scripts/provide-net.sh)" CUCRIU_TEST_CRIU="$$(scripts/provide-criu.sh)" \
		CUCRIU_TEST_SSH="$$(scripts/provide-ssh.sh)" scripts/private-exec.sh \
		go test -count=1 -timeout 1h ./test/migrate/figures

# The tests of programs, in namespaces of their own, with what the project provides.
TESTED_WITH = CUCRIU_TEST_CRIU="$$(scripts/provide-criu.sh)" CUCRIU_TEST_CRIU_PLUGIN="$$(scripts/provide-criu-plugin.sh)" \
	CUCRIU_TEST_RUNC="$$(scripts/provide-runc.sh)" CUCRIU_TEST_SSH="$$(scripts/provide-ssh.sh)" \
	CUCRIU_TEST_IPTABLES="$$(scripts/provide-iptables.sh)" scripts/private-exec.sh --in-memory

.PHONY: test
test: build sim workload tools ## each capability once, and a kill for each promise (PKGS=./hooks TESTFLAGS='-run Dump -v')
	CUCRIU_TESTS=quick $(TESTED_WITH) go test -vet=off -count=1 -p 2 -timeout $(TEST_TIMEOUT) $(TESTFLAGS) $(PKGS)

# The packages of which `make test` runs some tests only.
FAULTS ?= $(patsubst %/quick.txt,%,$(shell find ./cudackpt ./internal ./test -name quick.txt))

.PHONY: faults
faults: build sim workload tools ## all other tests: every kill, fault and odd process (FAULTS=./test/run TESTFLAGS='-run Kill -v')
	CUCRIU_TESTS=others $(TESTED_WITH) go test -vet=off -count=1 -p 2 -timeout $(TEST_TIMEOUT) $(TESTFLAGS) $(FAULTS)

.PHONY: test-all
test-all: export CUCRIU_FAULTS := all
test-all: test faults lint image ## all faults, engines, schedulers, fresh machines and soaks, for hours; installs Debian packages where one of these lacks them
	go run $(GOLANGCI) run ./...
	for try in engines systemd slurm htcondor; do scripts/private-exec.sh scripts/try-$$try.sh; done
	for what in package demo test; do scripts/try-fresh.sh $$what; done
	$(MAKE) soak

.PHONY: soak
soak: build sim workload tools ## jobs are dumped, suspended, run, migrated side by side while all goes wrong (SOAK=1h SEED=n)
	status=0; \
	CUCRIU_TEST_CRIU="$$(scripts/provide-criu.sh)" CUCRIU_TEST_SSH="$$(scripts/provide-ssh.sh)" \
		SOAK=$(SOAK) SEED=$(SEED) scripts/private-exec.sh \
		go test -count=1 -p 3 -timeout 0 -v -run '^($(SOAK_TESTS))$$' ./test/soak ./test/run ./test/migrate >build/soak.log || status=$$?; \
	grep -e ' soak: ' -e '--- FAIL' build/soak.log; \
	exit $$status

# Packages whose tests are not of programs, which are built without cgo. Those that kill a program at every step only take longer here, and
# internal/migrate/commit, a search, has no goroutines.
RACE_PACKAGES := ./internal/migrate ./internal/migrate/delta ./internal/migrate/predict ./internal/migrate/prepare ./internal/migrate/wire \
	./internal/jobs/... ./internal/kit/pages ./internal/core/gpumap ./internal/core/journal ./internal/kit/jsonlines ./internal/kit/logging \
	./internal/core/session ./internal/core/engine ./internal/kit/imagedir ./cudackpt ./hooks/...

.PHONY: race
race: sim workload tools ## the unit tests under the race detector, which needs cgo
	CUCRIU_TEST_CRIU="$$(scripts/provide-criu.sh)" CGO_ENABLED=1 scripts/private-exec.sh \
		go test -race -skip 'Kill|AnyHistory' -count=1 -p 2 -timeout $(TEST_TIMEOUT) $(TESTFLAGS) $(RACE_PACKAGES)

.PHONY: cover
cover: build sim workload tools ## coverage by package, of the unit tests; with SUITES=./test/dump, of the programs that these run, too
	rm -rf build/cover && mkdir -p build/cover/unit build/cover/suites
	CUCRIU_TEST_CRIU="$$(scripts/provide-criu.sh)" scripts/private-exec.sh \
		go test -cover -p 2 ./cmd/... ./hooks/... ./cudackpt ./criuutil ./internal/... \
		-args -test.gocoverdir=$(CURDIR)/build/cover/unit >build/cover/log || { cat build/cover/log; exit 1; }
	[[ -z "$(SUITES)" ]] || GOCOVERDIR=$(CURDIR)/build/cover/suites $(MAKE) test COVER=-cover PKGS="$(SUITES)"
	go tool covdata percent -i=build/cover/unit,build/cover/suites | sort

.PHONY: lint
lint: need-go ## gofumpt, go vet, staticcheck, both architectures, and shellcheck where installed
	GOFUMPT=$(GOFUMPT) STATICCHECK=$(STATICCHECK) scripts/lint.sh $(PKGS)

##@ Machines with a GPU, without Go or a network

.PHONY: gpu-bundle
gpu-bundle: build sim workload ## build/gpu-bundle and its .tar.xz (GPU_TEST_PACKAGES='./cudackpt ...')
	scripts/gpu-bundle.sh $(GPU_TEST_PACKAGES)

.PHONY: test-gpu
test-gpu: gpu-bundle ## run the bundle here, on this machine's GPUs
	build/gpu-bundle/run.sh

##@ Housekeeping

.PHONY: clean
clean: ## remove build outputs
	rm -rf bin build internal/kit/guest/built/*.so internal/kit/first/built/first-*

.PHONY: distclean
distclean: clean ## and what was provided in .tools
	rm -rf .tools

.PHONY: help
help: ## this text
	@awk 'BEGIN { FS = ":.*## " } \
		/^##@/ { printf "\n%s\n", substr($$0, 5) } \
		/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

need-%:
	@scripts/need.sh $*
