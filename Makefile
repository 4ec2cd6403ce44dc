# Every target does the set-up that it needs, and is quick when there is nothing to do.
# A fresh Debian machine only needs a Rust toolchain, make and git. Everything else is installed.

export ISOLATOR_BIN ?= $(abspath $(or $(CARGO_TARGET_DIR),target))/release/isolator
CARGO ?= cargo
.DEFAULT_GOAL := help
NEXTEST := scripts/tool cargo-nextest nextest run --release --workspace --locked
# The Rust tests for which the engine can make a difference.
ON_DOCKER ?= package(isolator) & binary(it) & test(/^(cli|execute_code|images|package_sets|pool|preload|sandbox|warm_starts)::/)
TIMED := scripts/timed
# Newer compilers have new warnings. They must not fail what has passed before, so warnings are errors for this version only.
WARNINGS = $(if $(findstring rustc 1.95.,$(shell rustc --version)),-D warnings)
# Those of the workspace, and of what is built apart from it.
MANIFESTS := Cargo.toml fuzz/Cargo.toml template/Cargo.toml
# The steps share a target directory and an engine, so in parallel they would only wait for each other.
.NOTPARALLEL:

.PHONY: help run test test-all bench soak flood lint advisories fmt build bundle deb wheel container container-node test-kubernetes images engine engines toolchain unit fuzz \
	pytest suites suites-apis test-ray beside-apis beside-notebook suite-ipython sbom lock clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: images ## Set everything up, check it, and run a demo: programs in sandboxes, over MCP
	"$(ISOLATOR_BIN)" --config isolator_config.json doctor && scripts/demo

test: CHECKS = lint unit fuzz pytest
test: ## Set everything up and run all checks and tests
test-all: CHECKS = lint unit fuzz pytest suites
test-all: export ISOLATOR_TEST_ALL = 1
test-all: export ON_DOCKER = package(isolator) & binary(it)
test-all: ## The same with every test on both engines and over every transport, and the public suites; use it before a release
test test-all:
	@$(TIMED) --begin
	@status=0; $(MAKE) --no-print-directory $(CHECKS) || status=$$?; $(TIMED) --end; exit $$status

bench: engines ## Measure starts and throughput (compared with the plain Docker API), bursts, refills, layers and CPU time by process; options: BENCH="python --svg FILE"
	$(CARGO) run --release --locked -p isolator-bench -- $(BENCH)
	$(CARGO) bench --locked -p isolator-bench

lint: ## Check formatting, lints and dependencies; needs no engine
	@scripts/toolchain fmt clippy
	for manifest in $(MANIFESTS); do $(CARGO) fmt --all --check --manifest-path $$manifest || exit; done
	$(TIMED) "lint: clippy" $(CARGO) clippy --release --workspace --all-targets --locked -- $(WARNINGS)
	$(TIMED) "lint: clippy of the template" $(CARGO) clippy --release --manifest-path template/Cargo.toml \
		--target-dir $(or $(CARGO_TARGET_DIR),target)/template --locked -- $(WARNINGS)
	$(TIMED) "lint: dependencies" scripts/deny licenses bans sources

advisories: ## Check the dependencies for known vulnerabilities and withdrawn versions; needs the network
	scripts/deny advisories

fmt: ## Format the code
	for manifest in $(MANIFESTS); do $(CARGO) fmt --all --manifest-path $$manifest || exit; done

build: toolchain ## Build the release binary
	$(TIMED) "build: release" $(CARGO) build --release --locked -p isolator

bundle: build ## Pack the release binary as an MCP bundle (.mcpb), for hosts that install bundles
	scripts/bundle

deb: build ## Pack it as a Debian package, with a service for systemd
	scripts/deb

wheel: build ## Pack it as a Python wheel, for pip and uv
	scripts/wheel

container: engine build ## Pack it as a container image: isolator-server
	scripts/container

container-node: engine build ## Pack it with the language images for the embedded engine, which needs no Docker: isolator-node
	scripts/images embedded
	scripts/container-node

test-kubernetes: engine build ## Run Kubernetes with two nodes on this machine, and test contrib/kubernetes in it; the first time it builds Kubernetes
	scripts/images embedded
	scripts/python tests/kubernetes/run.py

images: build ## Build the language images that are missing or have changed
	$(TIMED) "build: images" scripts/images

engines: engine build # Set up both engines with all images, and install what else the tests need
	$(TIMED) "build: images of both engines" sh -c 'scripts/test-packages && scripts/images embedded docker'

engine: ## Install and start a Docker engine, if none answers
	scripts/engine

toolchain: # Stop early if cargo or a linker is missing, and say what to do
	@scripts/toolchain

unit: engines # Run the Rust tests: all of them on the embedded engine, and on Docker those that can differ there
	$(TIMED) "Rust: compile the tests" $(NEXTEST) --no-run
	@status=0; $(TIMED) "Rust: on the embedded engine" scripts/suite rust embedded || status=$$?; \
		$(TIMED) "Rust: on Docker" scripts/suite rust docker -E '$(ON_DOCKER)' || status=$$?; exit $$status
	$(TIMED) "Rust: examples of the documentation" $(CARGO) test --release --workspace --locked --doc
	@scripts/slowest rust

fuzz: toolchain ## Fuzz the code that parses input from strangers, FUZZ_SECONDS (10) for each target
	$(TIMED) "fuzz" scripts/fuzz

pytest: engines # Run the official clients and the conformance suite against the release binary, on each engine
	@status=0; for engine in docker embedded; do \
		$(TIMED) "pytest: on $$engine" scripts/suite python $$engine || status=$$?; done; scripts/slowest python; exit $$status

suites: export ISOLATOR_TEST_ENGINE = embedded
suites: engines ## Run the tests of CPython and Node.js in interpreters that were started ahead and in plain ones, and compare
	$(TIMED) "suite: CPython" scripts/python tests/python/suites.py cpython
	$(TIMED) "suite: Node.js" scripts/python tests/python/suites.py node

suites-apis: export ISOLATOR_TEST_ENGINE = embedded
suites-apis: engines ## Fetch E2B's own tests and run them against a server; options: APIS="--from FOLDER python-sync"
	scripts/python tests/python/apis_suites.py $(APIS)

beside-apis: engines ## Measure the APIs of other systems next to MCP, and check the verdicts on a thousand programs; options: APIS="--seconds 30"
	scripts/python tests/python/beside_mcp.py $(APIS)
	scripts/python tests/python/beside_e2b.py

beside-notebook: export ISOLATOR_TEST_ENGINE = embedded
beside-notebook: engines ## Run a table of inputs in kernels of Jupyter and in sessions, and compare; BOOKS=FOLDER: notebooks; options: NOTEBOOK="--section Errors"
	scripts/python tests/python/$(if $(BOOKS),notebooks.py $(BOOKS),beside_notebook.py) $(NOTEBOOK)

suite-ipython: export ISOLATOR_TEST_ENGINE = embedded
suite-ipython: engines ## Run IPython's own tests in kernels of sessions and in plain interpreters, and compare; options: NOTEBOOK="history"
	scripts/python tests/python/suite_ipython.py $(NOTEBOOK)

test-ray: export ISOLATOR_TEST_ENGINE = embedded
test-ray: engines ## Run 1,000 programs on two nodes of Ray, of which one loses its Isolator; options: RAY="--programs 10000"
	scripts/ray tests/ray/two_nodes.py $(RAY)

soak: engines ## Run ordinary and hostile requests for a long time and check the log; options: SOAK="--time 8h --seed 7"
	for engine in $(or $(ISOLATOR_TEST_ENGINE),docker embedded); do \
		ISOLATOR_TEST_ENGINE=$$engine scripts/python tests/python/soak.py $(SOAK) || exit; done

flood: engines ## Send messages that are made to take much memory, from eight clients at once; options: FLOOD="--time 1h"
	ISOLATOR_TEST_ENGINE=embedded scripts/python tests/python/flood.py $(FLOOD)

sbom: images ## Write the SBOMs of the binary and of the language images to target/sbom, and check them
	scripts/sbom/make

lock: ## Write the locks of the packages from PyPI and npm; take the newest versions: LOCK=--upgrade
	scripts/lock $(LOCK)

clean: ## Remove what was built here, except for the images on the engine
	$(CARGO) clean && rm -rf .venv .clients tests/node/node_modules tests/kubernetes/node_modules tests/clients/node/node_modules tests/apis/*/node_modules
