# Every target does the set-up it needs, and is quick when there is nothing to do.
# A fresh Debian machine needs nothing but a Rust toolchain, make and git; what is missing is installed.

export ISOLATOR_BIN ?= $(abspath $(or $(CARGO_TARGET_DIR),target))/release/isolator
CARGO ?= cargo
.DEFAULT_GOAL := help
# The tests in Rust of what an engine does; ISOLATOR_TEST_ENGINE chooses the engine.
ON_ENGINES := $(addsuffix ::,bad_input check_syntax cli execute_code files hits http images policies \
	pool preload sandbox test_code)
# The steps share a target directory and an engine; side by side they would only wait.
.NOTPARALLEL:

.PHONY: help run test bench soak lint fmt build bundle images engine engines toolchain unit fuzz pytest clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: images ## Set everything up, check it, and run programs in sandboxes over MCP
	"$(ISOLATOR_BIN)" --config isolator_config.json doctor && scripts/demo

test: lint unit fuzz pytest ## Set everything up and run all checks and tests

bench: engines ## Measure starts beside the plain Docker API, bursts, refills and layers
	$(CARGO) bench --locked

lint: ## Check formatting, lints and dependencies; needs no engine
	@scripts/toolchain fmt clippy
	$(CARGO) fmt --all --check && $(CARGO) fmt --all --check --manifest-path fuzz/Cargo.toml
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	scripts/deny

fmt: ## Format the code
	$(CARGO) fmt --all && $(CARGO) fmt --all --manifest-path fuzz/Cargo.toml

build: toolchain ## Build the release binary
	$(CARGO) build --release --locked

bundle: build ## Pack the release binary as an MCP bundle (.mcpb) for hosts that install those
	scripts/bundle

images: build ## Build the language images that are missing or whose description changed
	scripts/images

engines: engine build # Both engines with all images, and what else the tests need of a machine
	scripts/test-packages && scripts/images docker embedded

engine: ## Install and start a Docker engine where none answers
	scripts/engine

toolchain: # Stop early, and say what to do, where cargo or a linker is missing
	@scripts/toolchain

unit: engines # The tests in Rust, those of what an engine does on each
	$(CARGO) test --workspace --locked && ISOLATOR_TEST_ENGINE=embedded $(CARGO) test --locked --test it -- $(ON_ENGINES)

fuzz: toolchain ## Fuzz what strangers can reach, each target for FUZZ_SECONDS (20)
	scripts/fuzz

pytest: engines # The official clients and the conformance suite against the release binary, on each engine
	for engine in docker embedded; do ISOLATOR_TEST_ENGINE=$$engine scripts/python -m pytest tests/python || exit; done

soak: engines ## Run ordinary and hostile requests for long and hold the log to laws; SOAK="--time 8h --seed 7" says how
	for engine in $(or $(ISOLATOR_TEST_ENGINE),docker embedded); do \
		ISOLATOR_TEST_ENGINE=$$engine scripts/python tests/python/soak.py $(SOAK) || exit; done

clean: ## Remove what was built here; images stay on the engine
	$(CARGO) clean && rm -rf .venv tests/node/node_modules
