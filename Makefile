# Choir: two commands for a new user, the rest for developers. `make help` lists them.

SHELL := /bin/bash
.DEFAULT_GOAL := help
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
NEXTEST_VERSION := 0.9.143
CARGO_FUZZ_VERSION := 0.13.2

# What `make fuzz` runs, and for how long each.
TARGET := $(basename $(notdir $(wildcard fuzz/fuzz_targets/*.rs)))
SECONDS := 60

# The native Postgres that tests and the demo use unless DATABASE_URL names another.
POSTGRES := $(or $(CHOIR_POSTGRES_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/choir/postgres-18.6.3)

.PHONY: help demo test test-fast bench fuzz interop interop-speed lint fmt fetch-postgres tools-for-tests clean

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 18

demo: fetch-postgres ## build, start everything in a private folder, and chat (ARGS="--script --json" plays it by itself)
	cargo build --release --locked -p choir-host -p choir-agent
	@exec $(TARGET_DIR)/release/choirctl demo $(ARGS)

test: fetch-postgres tools-for-tests ## everything that must pass
	cargo build --locked --workspace --bins --tests
	cargo nextest run --locked --workspace

lint: ## formatting, clippy, and the dependency rules if cargo-deny is installed
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	@if command -v cargo-deny >/dev/null; then cargo deny check; else echo "cargo-deny is not installed: cargo install cargo-deny --locked"; fi

bench: fetch-postgres ## every benchmark; prints, asserts nothing
	cargo build --release --locked -p choir-host -p choir-agent
	cargo bench --locked --workspace

interop: ## the CHAP reference's own packages against our Coordinator (SEQUENCES=300)
	interop/run

interop-speed: fetch-postgres ## calls per second of the CHAP reference and of ours, side by side (ROUNDS=400 EACH=500 TIMES=3)
	interop/speed

fuzz: ## every fuzz target in turn, SECONDS=60 each, or one of them (TARGET=guard); needs a nightly toolchain
	@command -v cargo-fuzz >/dev/null || cargo install cargo-fuzz --locked --version $(CARGO_FUZZ_VERSION)
	@for target in $(TARGET); do scripts/fuzz $$target $(SECONDS) || exit 1; done

fetch-postgres: ## the pinned native Postgres with pgvector, if neither DATABASE_URL nor CHOIR_POSTGRES_BIN is set
	@if [ -z "$$DATABASE_URL$$CHOIR_POSTGRES_BIN" ]; then scripts/fetch-postgres "$(POSTGRES)" >/dev/null; fi

tools-for-tests:
	@command -v cargo-nextest >/dev/null || cargo install cargo-nextest --locked --version $(NEXTEST_VERSION)
	@command -v bwrap >/dev/null || { echo "make test needs bubblewrap: sudo apt-get install bubblewrap" >&2; exit 1; }

fmt: ## format everything
	cargo fmt --all

clean: ## remove what builds made
	cargo clean
