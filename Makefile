# The two commands of the project are `make demo` and `make test`; everything they do is done
# by the lab, a Rust program: `cargo run --release -p lab -- --help`.

LAB = cargo run --quiet --release -p lab --

# What `make demo` compares, ten minutes' worth; `lab ab` without a name takes all there is.
SCENARIOS ?= reap
# Rounds of `make faceoff`.
RUNS ?= 5

.PHONY: help demo faceoff test lint series clean

help:
	@echo "make demo     build both kernels, compare them in QEMU, write target/lab/report.html"
	@echo "              SCENARIOS=\"reap oom-select\" says what in; see lab ab --help"
	@echo "make faceoff  compare low-memory killers in a Debian guest, write target/lab/faceoff.html"
	@echo "              RUNS=5 says how often; some hours; needs root once, for the guest's image"
	@echo "make test     every check: lints, unit tests, KUnit and selftests in guests, smoke run"
	@echo "make lint     formatting, Rust lints, topics apply, checkpatch and sparse"
	@echo "make series   export the kernel topics as patches for git am to series/"
	@echo "make clean    remove what was built here (the caches: cargo run -p lab -- clean-cache)"

demo:
	$(LAB) host-setup
	$(LAB) ab $(SCENARIOS) --expect

faceoff:
	$(LAB) host-setup
	$(LAB) faceoff --runs $(RUNS)

test:
	@$(LAB) test

lint:
	@$(LAB) test fmt clippy topics static

series:
	@$(LAB) series --out series

clean:
	cargo clean
	rm -rf series
