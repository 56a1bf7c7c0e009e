# SPDX-License-Identifier: GPL-2.0-only
# The two commands of the project are `make demo` and `make test`; everything they do is done
# by the lab, a Rust program: `cargo run --release -p lab -- --help`.

# The first time the lab itself takes minutes to compile, which cargo then shows.
LAB = cargo run $(if $(wildcard target/release/lab),--quiet) --release -p lab --

# What `make demo` compares, and in how many pairs of boots; `lab ab` without a name takes all there is.
SCENARIOS ?= storm-phone memcg-exit reap release
# Only their guests that count instructions: they are fast, and other programs on the host do not matter.
GUEST ?= icount
PAIRS ?= 6
# Rounds of `make faceoff`.
RUNS ?= 3
# The kernel series that `make patches` is for.
SERIES ?= 6.12

.PHONY: help demo faceoff check test test-full lint patches dist clean

help:
	@echo "make demo     build both kernels, compare them in QEMU, write target/lab/report.html"
	@echo "              SCENARIOS=\"reap oom-select\" GUEST= says what in, PAIRS=8 how often; see lab ab --help"
	@echo "make faceoff  compare low-memory killers in a Debian guest, write target/lab/faceoff.html"
	@echo "              RUNS=3 says how often; many hours; needs root once, for the guest's image"
	@echo "make check    for every edit, six minutes: lints, unit tests, KUnit, selftests in the slim kernel"
	@echo "make test     what a stranger needs: also Linux 7.3, checkpatch and sparse, a comparison; an hour"
	@echo "make test-full everything, and nothing from memory: selftests with lockdep and KASAN, KCSAN, a soak; hours"
	@echo "make lint     formatting, Rust lints, topics apply, checkpatch and sparse"
	@echo "make patches  export the kernel topics as patches for git am to patches/; SERIES=7.3 for that kernel"
	@echo "make dist     make the packages: .deb, and static tarballs for x86-64 and aarch64"
	@echo "make clean    remove what was built here (the caches: cargo run -p lab -- clean-cache)"

demo:
	$(LAB) host-setup
	$(LAB) ab $(SCENARIOS) $(if $(GUEST),--guest $(GUEST)) --pairs $(PAIRS) --no-aa --expect

faceoff:
	$(LAB) host-setup
	$(LAB) faceoff --runs $(RUNS)

check:
	@$(LAB) test --tier check

test:
	@$(LAB) test

test-full:
	@$(LAB) test --tier full

lint:
	@$(LAB) test fmt clippy topics static

patches:
	@$(LAB) --series $(SERIES) patches --out patches

dist:
	packaging/dist.sh

clean:
	cargo clean
	rm -rf patches
