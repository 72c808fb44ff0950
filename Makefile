# `make help` lists what there is to type.
SHELL       := bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS   += --no-print-directory
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PROGRAMS := api worker outboxctl
CACHE    := $(CURDIR)/.cache
TOOLS    := $(CACHE)/bin
MAILPIT_VERSION := v1.33.1

# What `make dev` and `make test` hand on: make dev ARGS=--fresh,
# make test PKGS=./outbox TESTFLAGS='-run Enqueue -v'.
ARGS      ?=
PKGS      ?= ./...
TESTFLAGS ?=

# Git refuses a tree that another user owns, and Go then refuses to build; the
# version comes in by the linker instead. Without this tree's path in it, what was
# compiled here need not be compiled again in another clone. A go.work above this
# tree is not ours.
export GOFLAGS := $(strip $(filter-out -buildvcs=% -trimpath,$(GOFLAGS)) -buildvcs=false -trimpath)
export GOWORK  := off
VERSION ?= $(shell git -c safe.directory='$(CURDIR)' describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS  = -X github.com/outboxd/outboxd/cmd/internal/app.Version=$(VERSION)

# $(call step,NAME,COMMAND): a progress line, the command, what it took.
step = @printf '==> %s\n' '$(1)'; SECONDS=0; $(2); printf '    %s: %ss\n' '$(1)' "$$SECONDS"

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: dev
dev: build ## start everything on this machine (ARGS=--fresh: with an empty database)
	@exec bin/outboxctl dev $(ARGS)

.PHONY: test
test: ci-complete check $(CACHE)/mailpit-$(MAILPIT_VERSION) ## what CI runs: check, then all tests with a real Postgres
	$(call step,test,$(GO_TEST) || { bash .ci/left-out; exit 1; })
	@bash .ci/left-out

# Without a C compiler there is no race detector; .ci/left-out says so. The programs
# that tests start are built without it unless OUTBOXD_TEST_RACE is set: under it they
# take twice the processor time. The linter vets; go test would read all dependencies
# once more for it. Nothing is taken from the test cache, which does not see another
# server behind DATABASE_URL. The race detector would have each process sleep for a
# second before it ends.
RACE    = $(shell command -v "$$(go env CC)" >/dev/null && echo -race)
GO_TEST = GORACE="$${GORACE:-atexit_sleep_ms=0}" OUTBOXD_TEST_MAILPIT='$(TOOLS)/mailpit' go run ./internal/localpg/run -- \
	go test $(RACE) -vet=off -count=1 -timeout 14m $(TESTFLAGS) $(PKGS)

# In CI nothing may be left out; say so before the long part.
.PHONY: ci-complete
ci-complete: need-go
	@if [ "$${CI:-}" = true ]; then bash .ci/left-out --strict; fi

# The cheap ones first. Building the linter takes longer than all else, so a
# first `make test` on a laptop does without it; .ci/left-out says so.
.PHONY: check
check: need-go ## format, module files; lint, vet included, in CI and where `make lint` has built the linter
	$(call step,gofmt,$(GOFMT))
	$(call step,go mod tidy,$(TIDY))
	@if [ "$${CI:-}" = true ] || [ -x '$(TOOLS)/golangci-lint' ]; then $(MAKE) lint; fi

.PHONY: lint
lint: need-go $(TOOLS)/golangci-lint ## golangci-lint, vet included (builds it once: minutes when nothing is cached)
	$(call step,golangci-lint,'$(TOOLS)/golangci-lint' run)

GOFMT = files=$$("$$(go env GOROOT)/bin/gofmt" -l .); \
	if [ -n "$$files" ]; then printf 'not formatted (make fmt does it):\n%s\n' "$$files"; exit 1; fi

TIDY = if ! diff=$$(go mod tidy -diff 2>&1); then \
	head -n 20 <<<"$$diff"; echo 'go.mod and go.sum are not what "go mod tidy" makes'; exit 1; fi

.PHONY: crash
crash: need-go ## the crash matrix and its mutants, into docs/crash-matrix.md (about 20 minutes)
	@mkdir -p docs
	@go run ./crash -mutants -report docs/crash-matrix.md $(ARGS)

.PHONY: bench bench-quick
bench: need-go ## speed against baselines in the same run, into docs/benchmarks.md (about 14 minutes, on a quiet machine)
	@go run ./bench $(ARGS)
bench-quick: need-go ## the same in two minutes, to the screen: a look, not a figure to publish
	@go run ./bench -quick -report - -json "" $(ARGS)

.PHONY: soak
soak: need-go ## half an hour of load, a worker killed every 30 s, Postgres restarted every 5 minutes
	@go run ./bench -soak 30m -samples soak.csv $(ARGS)
	@if command -v gnuplot >/dev/null; then gnuplot -e "samples='soak.csv'; picture='docs/soak.png'" bench/soak.gp; \
	else echo 'soak.csv holds the samples; with gnuplot, bench/soak.gp draws them'; fi

# The test's own output is the tool's input; what failed is in the tool's last lines.
.PHONY: providers
providers: need-go ## the conformance suite of all adapters, into docs/providers.md
	@go test -json -count=1 -run '^TestConformance$$' ./providers/... ./examples/... | go run ./internal/providersdoc docs/providers.md

# Each finding is kept as a seed in testdata/fuzz of its package, where make test
# runs it too.
FUZZTIME  ?= 30s
FUZZFLAGS ?= -parallel 2 -fuzzminimizetime 2s

.PHONY: fuzz
fuzz: need-go ## all fuzzers, one after the other, FUZZTIME=30s each
	@go run ./internal/localpg/run -- bash -euo pipefail -c '\
		grep -rE --include="*_test.go" --exclude-dir=.cache "^func Fuzz" . | sed -E "s#^(.*)/[^/]+:func (Fuzz[A-Za-z0-9]*).*#\1 \2#" | sort | \
		while read -r pkg name; do \
			echo "==> $$pkg $$name"; \
			go test "$$pkg" -run "^$$" -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) $(FUZZFLAGS); \
		done'

.PHONY: fmt
fmt: need-go $(TOOLS)/golangci-lint ## format all Go files
	@'$(TOOLS)/golangci-lint' fmt

.PHONY: vuln
vuln: need-go $(TOOLS)/govulncheck ## known vulnerabilities in what is linked (asks the Go vulnerability database)
	$(call step,govulncheck,'$(TOOLS)/govulncheck' ./...)

.PHONY: build
build: need-go ## the programs, static, in bin/
	$(call step,build,$(call BUILD,bin/))
BUILD = CGO_ENABLED=0 go build -ldflags '$(LDFLAGS)' -o $(1) $(PROGRAMS:%=./cmd/%)

# What is linked into the programs, read from the programs.
.PHONY: sbom
sbom: build $(TOOLS)/cyclonedx-gomod ## what each program is made of, as CycloneDX, in bin/*.cdx.json
	$(call step,sbom,for p in $(PROGRAMS); do '$(TOOLS)/cyclonedx-gomod' bin -json -version '$(VERSION)' \
		-output "bin/$$p.cdx.json" "bin/$$p"; done)

# Once more from another folder with nothing compiled before, which is where a
# path, a time or an order that got into a program would show.
.PHONY: rebuild
rebuild: build ## build again elsewhere and compare, and check the modules against go.sum
	$(call step,go mod verify,go mod verify)
	$(call step,build elsewhere,$(REBUILD))
	@cd bin && sha256sum $(PROGRAMS)
REBUILD = elsewhere=$$(mktemp -d); trap 'rm -rf "$$elsewhere"' EXIT; bin=$$PWD/bin; \
	tar -c --exclude=./.cache --exclude=./bin --exclude=./.git . | tar -x -C "$$elsewhere"; \
	(cd "$$elsewhere" && export GOCACHE="$$elsewhere/.cache" && $(call BUILD,out/)); \
	for p in $(PROGRAMS); do cmp "$$elsewhere/out/$$p" "$$bin/$$p"; done

.PHONY: clean
clean: ## remove what make built (the data of make dev stays: make dev ARGS=--fresh)
	@rm -rf bin '$(TOOLS)' '$(CACHE)'/mailpit-* '$(CACHE)/npm'

.PHONY: need-go
need-go:
	@command -v go >/dev/null || { echo 'Go is missing; go.mod says which version, https://go.dev/doc/install how.'; exit 1; }

# Developer tools, built once from the versions in tools/go.mod.
$(TOOLS)/golangci-lint:   TOOL = github.com/golangci/golangci-lint/v2/cmd/golangci-lint
$(TOOLS)/govulncheck:     TOOL = golang.org/x/vuln/cmd/govulncheck
$(TOOLS)/cyclonedx-gomod: TOOL = github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod
$(TOOLS)/golangci-lint $(TOOLS)/govulncheck $(TOOLS)/cyclonedx-gomod: tools/go.mod tools/go.sum
	$(call step,build $(@F) (once; a few minutes when nothing is cached),GOBIN='$(TOOLS)' go install -C tools $(TOOL))
	@touch $@

# A real SMTP server for the end-to-end test. The stamp carries the version.
$(CACHE)/mailpit-$(MAILPIT_VERSION): | need-go
	$(call step,build mailpit (once; a minute or two when nothing is cached),GOBIN='$(TOOLS)' go install github.com/axllent/mailpit@$(MAILPIT_VERSION))
	@rm -f '$(CACHE)'/mailpit-*; touch $@
