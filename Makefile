# `make help` prints every target. A fresh machine needs Go, git and make; the
# tools and test servers are built once, from pinned versions, into .tools/.

SHELL   := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
# go builds and tests in parallel by itself.
.NOTPARALLEL:

GO      ?= go
MODULES := proto libs services
TOOLS   := $(CURDIR)/.tools/bin
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X github.com/nova-stream/nova/libs/config.Version=$(VERSION)

# Passed to go test, for example: make test TESTFLAGS='-run Append -v'
TESTFLAGS ?= -timeout 25m
FUZZTIME  ?= 10s
BENCH     ?= .

# Only the race detector needs a C compiler; that target says so itself.
export CGO_ENABLED ?= 0
# Where tests find the real servers (oxia, consul, versitygw).
export NOVA_TOOLS := $(TOOLS)

# each-module COMMAND: runs COMMAND in every module, and fails after the last
# one if any failed. `go test ./...` at the root would skip them all.
each-module = @rc=0; for module in $(MODULES); do (cd $$module && $(1)) || rc=1; done; exit $$rc

##@ Use

.PHONY: help
help: ## print this list
	@awk 'BEGIN { FS = ":.*## " } \
		/^##@ / { printf "\n%s\n", substr($$0, 5) } \
		/^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## build every program into bin/
	@mkdir -p bin
	cd services && $(GO) build -trimpath -buildvcs=false -ldflags '$(LDFLAGS)' -o ../bin/ ./cmd/...

.PHONY: demo
demo: build ## show the whole system at work on this machine
	@deploy/demo/run

.PHONY: run
run: build ## start one durable node on ./nova-data
	@exec bin/novad --dir ./nova-data

.PHONY: clean
clean: ## remove what was built; tools and data stay
	rm -rf bin

##@ Change

.PHONY: generate
generate: tools-generate ## write the Go code and documents made from other files
	@$(TOOLS)/buf generate
	$(call each-module,$(GO) generate ./...)

.PHONY: fmt
fmt: tools-check ## format Go and .proto files
	@$(TOOLS)/buf format -w
	@gofmt -w $(MODULES) tools

.PHONY: tidy
tidy: ## tidy every go.mod
	$(call each-module,GOWORK=off $(GO) mod tidy)

##@ Test

.PHONY: test
test: tools ## every test of every module, real servers included
	$(call each-module,$(GO) test $(TESTFLAGS) ./...)

.PHONY: race
race: tools ## the tests, long ones shortened, under the race detector (needs gcc)
	$(call each-module,CGO_ENABLED=1 $(GO) test -race -short $(TESTFLAGS) ./...)

.PHONY: mutants
mutants: tools ## break each guarded rule and see its test fail
	@if [ -d services/tests/mutants ]; then \
		cd services && $(GO) test -tags mutants -count=1 $(TESTFLAGS) -timeout 50m ./tests/mutants/...; \
	else echo "mutants: none yet"; fi

.PHONY: soak
soak: tools ## load and faults for NOVA_SOAK (1h), judged for correctness, then kills, timed
	cd services && $(GO) test -tags soak -run Soak -count=1 -p 1 -v $(TESTFLAGS) -timeout 0 ./tests/failover ./tests/retention

.PHONY: bench
bench: tools ## the benchmarks behind docs/performance.md
	cd services && $(GO) test -run '^$$' -bench '$(BENCH)' -benchmem -timeout 0 $(TESTFLAGS) ./tests/bench/...

.PHONY: fuzz
fuzz: ## every fuzz target for FUZZTIME (10s) each
	@tools/fuzz $(FUZZTIME) $(MODULES)

##@ Check

.PHONY: check
check: check-generated lint breaking test race mutants ## everything that CI runs

.PHONY: lint
lint: tools-check ## golangci-lint and buf: style, imports, formatting
	@$(TOOLS)/buf lint
	@$(TOOLS)/buf format --diff --exit-code
	$(call each-module,$(TOOLS)/golangci-lint run --config $(CURDIR)/.golangci.yml ./...)

.PHONY: check-generated
check-generated: tools-generate ## generated files and go.mod are current
	@tools/check-generated $(MODULES)

.PHONY: check-clients
check-clients: build tools-grpcurl ## a Python client and grpcurl against a running node (needs python3-grpc-tools)
	@services/tests/clients/run bin $(TOOLS)/grpcurl

.PHONY: breaking
breaking: tools-generate ## .proto files stay compatible with the last release
	@tools/breaking

##@ Tools

# A server on PATH whose version fits is used instead of building it.
.PHONY: tools
tools: ## the real servers that tests start
	@tools/install oxia v0.14.0 ./tools/oxia
	@NOVA_ON_PATH=1 tools/install versitygw v1.8.0 github.com/versity/versitygw/cmd/versitygw
	@NOVA_ON_PATH=1 tools/install consul v1.14.0 ./tools/consul

.PHONY: tools-generate
tools-generate:
	@tools/install protoc-gen-go v1.36.12 google.golang.org/protobuf/cmd/protoc-gen-go
	@tools/install protoc-gen-go-grpc v1.6.2 google.golang.org/grpc/cmd/protoc-gen-go-grpc
	@tools/install buf v1.75.0 github.com/bufbuild/buf/cmd/buf

.PHONY: tools-check
tools-check: tools-generate tools-grpcurl ## what only make check and make generate need
	@tools/install golangci-lint v2.15.0 github.com/golangci/golangci-lint/v2/cmd/golangci-lint

.PHONY: tools-grpcurl
tools-grpcurl:
	@tools/install grpcurl v1.9.4 github.com/fullstorydev/grpcurl/cmd/grpcurl
