# make test    everything that fits in 20 minutes on two idle cores; installs what a bare Debian machine lacks
# make deep    the long runs: release build, valgrind, Address- and ThreadSanitizer, fuzzing, the whole parity matrix
# make header  update include/eliza_inference.h from the sources
# make bench   speed and memory beside llama.cpp as npm has it; make jvm-bench: what Java adds to a token
# make eliza-host   the library that elizaOS's loader opens, in target/eliza-host (docs/eliza-host.md)
# make install, make uninstall   for C and C++ hosts; PREFIX=/usr/local, LIBDIR=lib, DESTDIR= (docs/c.md)
# make clean
#
# Each section says its name first and stops the run when it fails. What a machine cannot offer is skipped in plain
# words: the folder ../shared (or ELIZA_SHARED) with models and the peer's tools, a nightly compiler, the network.

SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.NOTPARALLEL:
.SUFFIXES:

CARGO  ?= cargo
# GPU tests fail where there is no adapter, unless this is set to nothing.
export ELIZA_REQUIRE_GPU ?= 1
# Most of a GPU test's time is Mesa's software driver compiling shaders: half as wide vectors halve that.
export LP_NATIVE_VECTOR_WIDTH ?= 128

START  := $(shell date +%s)
SHARED := $(abspath $(or $(ELIZA_SHARED),../shared))
C_DIR  := target/c
# Runs of each fuzz target, 10^7 and more in sum; a divisor makes it a quick look.
FUZZ := gguf=2000000 trie=1500000 trie_state=2000000 chain=1500000 tokenize=1500000 vocab=1000000 saved=300000 \
	grammar=500000 model=100000 calls=100000
FUZZ_DIVIDE ?= 1
# Exports that only tests call, of all members.
TESTING := eliza-inference/remote,eliza-inference/testing,eliza-inference-jni/testing,eliza-inference-node/testing

# Messages of these two hold no comma: make would take it for the end of the argument.
# The peer's program and libraries, where there are any, for the tests that compare with them or drive them.
with_peer = if test -d "$(SHARED)/tools/peer"; then eval "$$(python3 tools/peer.py "$(SHARED)")"; fi
section = @printf '\n== %s (%d s after the start)\n' $(1) $$(($$(date +%s) - $(START)))
skip    = printf 'skipped: %s\n' $(1)

.PHONY: install uninstall install-test
.PHONY: test deep header bench clean tools lint unit cpu-only c-harness js js-deep jvm parity-quick decoders-quick readme \
	page unit-deep lark gpu-variants gpu-matrices decoders isa-deep trie-tsan c-valgrind c-asan android aarch64 musl targets more-targets fuzz parity \
	built-for-c jvm-bench dxc gpu-lab eliza-host host-test host-lint crate windows real-servers

test: tools lint targets unit cpu-only c-harness js jvm install-test parity-quick decoders-quick readme page host-test
	$(call section,"all of make test passed")

deep: test more-targets host-lint crate unit-deep lark gpu-variants gpu-matrices dxc gpu-lab isa-deep trie-tsan c-valgrind c-asan js-deep android aarch64 musl windows real-servers fuzz parity decoders
	$(call section,"all of make deep passed")

# ---------------------------------------------------------------------------------------------------------- make test

tools:
	$(call section,"tools this machine lacks")
	@tools/install.sh

lint:
	$(call section,"formatting and lints")
	@if $(CARGO) fmt --version >/dev/null 2>&1; then $(CARGO) fmt --all --check; else $(call skip,"no rustfmt"); fi
	@if $(CARGO) clippy --version >/dev/null 2>&1; then \
	  $(CARGO) clippy --locked --workspace --all-targets --features $(TESTING),eliza-inference/llguidance -- -D warnings; \
	else $(call skip,"no clippy"); fi

# What no test here runs is compiled at least, and a warning is an error; in `make deep` with the GPU, which each system has in code
# of its own. All targets in one go, so that they share the machine.
# The code tells the second list from the first nowhere: same system, other linker or processor.
TARGETS := x86_64-pc-windows-msvc aarch64-apple-darwin aarch64-linux-android x86_64-unknown-linux-musl
MORE_TARGETS := x86_64-pc-windows-gnu aarch64-apple-ios aarch64-unknown-linux-musl
targets:
	$(call section,"the library for other systems")
	$(call check_for,$(TARGETS),--no-default-features)
more-targets:
	$(call section,"the library for more systems and with the GPU")
	$(call check_for,$(TARGETS) $(MORE_TARGETS),)

define check_for
@added=(); for target in $(1); do \
  if rustup target add $$target >/dev/null 2>&1; then added+=(--target $$target); \
  else printf 'skipped: Rust has no target %s here and it could not be added\n' $$target; fi; \
done; \
if ! $(CARGO) clippy --version >/dev/null 2>&1; then $(call skip,"no clippy"); \
elif (($${#added[@]})); then \
  $(CARGO) clippy --locked --lib $(2) "$${added[@]}" -- -D warnings; \
fi
endef

# The header test compares include/eliza_inference.h with what the sources say. Random cases are the same in every run;
# make deep draws new ones. Built with the members and features that built-for-c needs, so that everything compiles once.
# The library's own tests compile many shaders and run each a few times: Mesa's software driver takes 0.6 of the time for that
# where it leaves out its optimisations. The tests of whole engines run them longer, and are faster with them.
# Most programs of integration tests keep less than one core busy, so they run in two rows at once; what the second row says
# comes when both have ended.
FIRST_ROW  := cli engine grammar memory model session
SECOND_ROW := $(filter-out $(FIRST_ROW),$(patsubst tests/%/main.rs,%,$(wildcard tests/*/main.rs)))
unit:
	$(call section,"unit and integration tests on the fixture models")
	GALLIVM_PERF=nopt PROPTEST_RNG_SEED=1 $(CARGO) test --locked --workspace --features $(TESTING) --lib --bins
	$(CARGO) test --locked --workspace --features $(TESTING) --test '*' --no-run
	@export PROPTEST_RNG_SEED=1; failed=0; row() { $(CARGO) test --locked --workspace --features $(TESTING) "$$@"; }; \
	row $(addprefix --test ,$(SECOND_ROW)) >target/second_row.log 2>&1 & second=$$!; \
	row $(addprefix --test ,$(FIRST_ROW)) || failed=1; \
	wait $$second || failed=1; \
	cat target/second_row.log; \
	exit $$failed

cpu-only:
	$(call section,"the library alone: CPU only and without the command line")
	$(CARGO) check --locked --no-default-features --features cli

# A model to load, then the library as a host loads it and the bindings in Rust, with the exports that only tests call; all with
# the same members and features as the tests, since each such set has builds of its own. Any other cargo command would put the
# ordinary library in its place.
built-for-c:
	$(call section,"what the C harness loads")
	ELIZA_FIXTURES="$(CURDIR)/target/fixtures" $(CARGO) test --locked --workspace --features $(TESTING) --test model fixtures:: -q
	$(CARGO) build --locked --workspace --features $(TESTING) --lib --bins --test model

c-harness: built-for-c
	$(call section,"C harness: the library opened as a host opens it")
	@if test -f tests/c/CMakeLists.txt; then \
	  cmake -S tests/c -B $(C_DIR)/plain -DELIZA_LIBRARY_DIR="$(CURDIR)/target/debug" >/dev/null; \
	  cmake --build $(C_DIR)/plain; \
	  $(with_peer); \
	  ctest --test-dir $(C_DIR)/plain --output-on-failure --timeout 300; \
	else $(call skip,"tests/c is not there"); fi

js: built-for-c
	$(call section,"JavaScript: the npm package in Bun and Node")
	@tools/js.sh test

SUFFIX := $(shell uname | sed 's/Darwin/dylib/;t;s/.*/so/')
JVM_LIBRARY := libelizainference_jni.$(SUFFIX)
jvm: built-for-c
	$(call section,"the Java package on this machine's Java: every JNI call checked")
	@if ! command -v javac >/dev/null 2>&1; then $(call skip,"no Java compiler and none could be installed"); else \
	  if $(CARGO) tree --locked -p eliza-inference --edges all --target all --prefix none | grep -q '^jni v'; then \
	    echo "the core depends on jni" >&2; exit 1; \
	  fi; \
	  python3 tools/jvm_tests.py target/debug/$(JVM_LIBRARY) target/fixtures/llama-f32.gguf; \
	fi

install-test: built-for-c
	$(call section,"what make install gives to C and C++ hosts")
	@rm -rf target/prefix target/install-test
	@$(MAKE) --no-print-directory install PREFIX="$(CURDIR)/target/prefix" DESTDIR= LIBDIR=lib
	@cmake -S tests/install -B target/install-test >/dev/null; \
	$(with_peer); \
	ctest --test-dir target/install-test --output-on-failure --timeout 600

# In a folder of its own: its core is without the C interface, whose names it has for its own functions. The tests compile that
# core without optimising it, in a quarter of the time: they run small models for seconds.
HOST := --locked -p eliza-inference-host --features exports --target-dir target/eliza-host
host-test: built-for-c
	$(call section,"the library of ABI 15: a host in C and one in Bun")
	@export ELIZA_CORE_LIBRARY="$(CURDIR)/target/debug/libelizainference.$(SUFFIX)" ELIZA_FIXTURES="$(CURDIR)/target/fixtures" \
	  CARGO_PROFILE_DEV_OPT_LEVEL=0; \
	$(CARGO) build $(HOST) --no-default-features --lib --test host; \
	$(CARGO) test $(HOST) --no-default-features --test host; \
	ELIZA_HOST_LIBRARY="$(CURDIR)/target/eliza-host/debug/libelizainference_host.$(SUFFIX)" tools/js.sh host

# Without the feature `exports`, as in `lint`, there is nothing in the member.
host-lint:
	$(call section,"lints of the library of ABI 15")
	$(CARGO) clippy $(HOST) --all-targets -- -D warnings

eliza-host:
	$(CARGO) build --release $(HOST)
	@cp target/eliza-host/release/libelizainference_host.$(SUFFIX) target/eliza-host/libelizainference.$(SUFFIX)
	@printf 'target/eliza-host/libelizainference.%s\n' $(SUFFIX)

parity-quick:
	$(call section,"parity with the peer: a sample")
	@if test -d "$(SHARED)/tools/peer"; then \
	  $(with_peer); \
	  $(CARGO) test --locked --workspace --features $(TESTING) --test gguf --test vocab -q -- peer::; \
	  python3 tools/parity.py --quick --shared "$(SHARED)"; \
	else $(call skip,"the folder with the peer's tools is not there"); fi

decoders-quick:
	$(call section,"logits of a sample of architectures against a slow forward pass")
	@if test -d "$(SHARED)/tools/peer"; then \
	  python3 tools/decoders.py --quick --shared "$(SHARED)"; \
	  python3 tools/hybrids.py --quick --shared "$(SHARED)"; \
	else $(call skip,"the folder with the peer's tools is not there"); fi

readme:
	$(call section,"the commands of README.md")
	@python3 tools/readme_commands.py

page:
	$(call section,"docs/demo.html in a headless browser")
	@python3 tools/page_check.py

# ---------------------------------------------------------------------------------------------------------- make deep

crate:
	$(call section,"the crate: packed and added to an empty one")
	@tools/crate.sh

unit-deep:
	$(call section,"long random comparisons in the release build")
	@$(with_peer); \
	$(CARGO) test --locked --release -- --include-ignored

lark:
	$(call section,"grammars in Lark")
	@$(CARGO) test --locked --release --features llguidance --test grammar --test session --test cli -- lark
	@$(CARGO) build --locked --release --features llguidance
	@! nm -D --defined-only target/release/libelizainference.so | grep ' llg_'

# Engines with the kernels that the software driver does not ask for by itself.
gpu-variants:
	$(call section,"engines on a GPU with the kernels that other GPUs get")
	@for limits in dots=on registers=medium,dots=on registers=few; do \
	  ELIZA_GPU_RESTRICT=$$limits $(CARGO) test --locked --workspace --features $(TESTING) --test gpu -q; \
	done
	@if test -d "$(SHARED)/tools/peer"; then \
	  ELIZA_GPU_RESTRICT=dots=on python3 tools/parity.py --shared "$(SHARED)" --gpu-layers -1; \
	fi

# The software driver of most systems has no matrix instructions: a newer one is unpacked, with its C library.
gpu-matrices:
	$(call section,"prompts by matrix instructions")
	@python3 tools/gpu_lab.py matrices

# Needs the source package of compushady (pip), which has DXC inside.
dxc:
	$(call section,"every shader through DXC")
	@rm -rf target/hlsl
	ELIZA_DUMP_SHADERS="$(CURDIR)/target/hlsl" $(CARGO) test --locked --release --lib gpu::
	ELIZA_DUMP_SHADERS="$(CURDIR)/target/hlsl" $(CARGO) test --locked --release --test gpu -- \
	  --ignored every_shader_of_the_fixtures_can_be_translated
	@python3 tools/dxc.py target/hlsl

# What a driver refuses or spills more than it may is an error; a compiler that cannot be had is skipped.
gpu-lab:
	$(call section,"every shader through the compilers of real GPUs")
	@tools/install.sh --deep >/dev/null
	@python3 tools/gpu_lab.py check

isa-deep:
	$(call section,"logits on every instruction set this machine has")
	@for isa in portable avx2 avxvnni; do ELIZA_CPU_ISA=$$isa $(CARGO) test --locked --release --test model logits::; done

# The sanitizer has to see the standard library too, so that is built with it: nightly and its sources are needed.
TSAN_TARGET := $(shell rustc -vV 2>/dev/null | sed -n 's/^host: //p')
trie-tsan:
	$(call section,"the cache of token tries under ThreadSanitizer")
	@if ! $(CARGO) +nightly --version >/dev/null 2>&1; then $(call skip,"no nightly compiler"); \
	elif ! test -f "$$(rustc +nightly --print sysroot)/lib/rustlib/src/rust/library/Cargo.lock" && \
	  ! rustup component add rust-src --toolchain nightly >/dev/null 2>&1; then \
	  $(call skip,"the nightly compiler has no rust-src and it could not be installed"); \
	else \
	  RUSTFLAGS=-Zsanitizer=thread TSAN_OPTIONS=halt_on_error=1 $(CARGO) +nightly test --locked --release \
	    -Zbuild-std --target $(TSAN_TARGET) --target-dir target/tsan --no-default-features \
	    --test trie --test session -- --include-ignored cache::threads tries::sixteen_threads; \
	fi

c-valgrind: built-for-c
	$(call section,"C harness under valgrind")
	@if test -f tests/c/CMakeLists.txt; then \
	  cmake -S tests/c -B $(C_DIR)/plain -DELIZA_LIBRARY_DIR="$(CURDIR)/target/debug" >/dev/null; \
	  cmake --build $(C_DIR)/plain; \
	  $(with_peer); \
	  python3 tools/valgrind_ctest.py $(C_DIR)/plain; \
	else $(call skip,"tests/c is not there"); fi

c-asan: built-for-c
	$(call section,"C harness under AddressSanitizer")
	@if test -f tests/c/CMakeLists.txt; then \
	  cmake -S tests/c -B $(C_DIR)/asan -DELIZA_LIBRARY_DIR="$(CURDIR)/target/debug" -DCMAKE_BUILD_TYPE=Debug \
	    -DCMAKE_C_FLAGS="-fsanitize=address -fno-omit-frame-pointer" \
	    -DCMAKE_CXX_FLAGS="-fsanitize=address -fno-omit-frame-pointer" >/dev/null; \
	  cmake --build $(C_DIR)/asan; \
	  $(with_peer); \
	  ASAN_OPTIONS=detect_leaks=1:abort_on_error=0 ctest --test-dir $(C_DIR)/asan --output-on-failure --timeout 900; \
	else $(call skip,"tests/c is not there"); fi

js-deep: built-for-c
	$(call section,"JavaScript: long lives and sudden ends and 1000 random texts")
	@tools/js.sh deep

# The library as a process of musl opens it, a C program and Bun; the npm package is the one that the section `js` compiled.
musl: js
	$(call section,"musl: the library in a C program and in Bun")
	@tools/install.sh --deep >/dev/null
	@if command -v rustup >/dev/null 2>&1; then tools/musl.sh; else $(call skip,"no rustup"); fi

# The Windows build, as far as Wine has what it needs.
windows: built-for-c
	$(call section,"Windows under Wine: unit tests; the C harness; C++ examples; a model on the CPU and on software Vulkan")
	@tools/install.sh --deep >/dev/null
	@if command -v rustup >/dev/null 2>&1; then tools/windows.sh; else $(call skip,"no rustup"); fi

# Servers where they are; `tools/remote.py` takes others, and vLLM.
real-servers:
	$(call section,"models on real servers")
	@$(CARGO) test --locked --features remote,testing --test remote same::scores -q
	@python3 tools/remote.py llama-server "$${LLAMA_SERVER:-llama-server}" --model target/tmp/demo-f32.gguf

# Shippable libraries where there is an NDK; else what stubs of the system's libraries can prove.
android:
	$(call section,"Android: both libraries for arm64 and x86_64")
	@if command -v rustup >/dev/null 2>&1; then tools/android_build.sh; else $(call skip,"no rustup"); fi

# Another architecture; qemu's speed says nothing. Every kernel runs on a core with i8mm, on one with dot products alone and on one
# with plain NEON, the logits on each level. The slow forward pass in double precision that they are compared with is computed
# by the host. Two tests are left out: one has a limit of time for 400 prefills, which is no fault to exceed here; one starts its own
# program once more, which the host cannot run.
AARCH64 := aarch64-unknown-linux-gnu
aarch64:
	$(call section,"the core as aarch64 under qemu")
	@tools/install.sh --deep >/dev/null
	@if ! command -v qemu-aarch64 >/dev/null 2>&1 || ! command -v aarch64-linux-gnu-gcc >/dev/null 2>&1; then \
	  $(call skip,"no qemu-aarch64 or no aarch64-linux-gnu-gcc"); \
	elif ! rustup target add $(AARCH64) >/dev/null 2>&1; then \
	  $(call skip,"Rust has no target $(AARCH64) here and it could not be added"); \
	else \
	  export ELIZA_REQUIRE_GPU= CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc; \
	  export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu"; \
	  in_release="--locked --release --target $(AARCH64) --no-default-features"; \
	  no_limits="--skip a_cancel_at_any_moment_ends_the_prefill_on_every_thread"; \
	  export ELIZA_REFERENCES="$(CURDIR)/target/references"; rm -rf target/references; \
	  $(CARGO) test --locked --release --test model -- logits:: $$no_limits; \
	  $(CARGO) test $$in_release --lib -- --skip l15_the_first_call_may_come_from_a_destructor; \
	  for core in neoverse-n1 cortex-a72; do QEMU_CPU=$$core $(CARGO) test $$in_release --lib -- simd:: cpu::kernels::; done; \
	  for isa in portable neon dotprod; do \
	    ELIZA_CPU_ISA=$$isa $(CARGO) test $$in_release --test model -- logits:: --skip listed_logits $$no_limits; \
	  done; \
	  $(CARGO) test $$in_release --test gguf --test model --test session -- quant:: logits:: streams:: tries:: $$no_limits; \
	fi

fuzz:
	$(call section,"fuzzing: every target from the inputs in fuzz/seeds")
	@if $(CARGO) +nightly --version >/dev/null 2>&1 && ! $(CARGO) +nightly fuzz --version >/dev/null 2>&1; then \
	  $(CARGO) install --locked cargo-fuzz || $(call skip,"cargo-fuzz could not be installed"); \
	fi
	@if $(CARGO) +nightly fuzz --version >/dev/null 2>&1; then \
	  test "$$(printf '%s\n' $(FUZZ) | sed 's/=.*//' | sort)" = "$$($(CARGO) +nightly fuzz list | sort)"; \
	  for entry in $(FUZZ); do \
	    name=$${entry%=*} runs=$$(($${entry#*=} / $(FUZZ_DIVIDE))); \
	    mkdir -p "target/fuzz/$$name" "fuzz/seeds/$$name"; \
	    $(CARGO) +nightly fuzz run "$$name" "target/fuzz/$$name" "fuzz/seeds/$$name" -- -runs="$$runs" -max_len=4096 \
	      -timeout=20 -rss_limit_mb=2048 -print_final_stats=1 >"target/fuzz/$$name.log" 2>&1 || \
	      { tail -n 60 "target/fuzz/$$name.log"; exit 1; }; \
	    sed -n "s/^stat::number_of_executed_units: */$$name runs: /p" "target/fuzz/$$name.log"; \
	  done; \
	  sed -n 's/^stat::number_of_executed_units: *//p' $(patsubst %,target/fuzz/%.log,$(foreach e,$(FUZZ),$(firstword \
	    $(subst =, ,$(e))))) | awk '{ sum += $$1 } END { print "in sum: " sum }'; \
	else $(call skip,"no fuzz targets or no nightly compiler with cargo-fuzz"); fi

parity:
	$(call section,"parity with the peer: the whole matrix")
	@if test -d "$(SHARED)/tools/peer"; then \
	  python3 tools/parity.py --shared "$(SHARED)"; \
	  python3 tools/parity.py --shared "$(SHARED)" --gpu-layers -1; \
	else $(call skip,"the folder with the peer's tools is not there"); fi

# First the logits, everything on the CPU, on the GPU, and one layer on the GPU; then what an engine does beside prompts.
decoders:
	$(call section,"every architecture against a slow forward pass")
	@if test -d "$(SHARED)/tools/peer"; then \
	  python3 tools/decoders.py --shared "$(SHARED)" --gpu-layers 0 --gpu-layers -1 --gpu-layers 1; \
	  python3 tools/hybrids.py --shared "$(SHARED)" --gpu-layers 0 --gpu-layers -1; \
	  python3 tools/decoders.py --shared "$(SHARED)" --make; \
	  test ! -d target/decoders || ELIZA_DECODERS="$(CURDIR)/target/decoders" $(CARGO) test --locked --release --test engine architectures::; \
	else $(call skip,"the folder with the peer's tools is not there"); fi

# ------------------------------------------------------------------------------------------------------------ the rest

PREFIX ?= /usr/local
LIBDIR ?= lib
install:
	$(CARGO) build --locked --release
	@DESTDIR="$(DESTDIR)" PREFIX="$(PREFIX)" LIBDIR="$(LIBDIR)" tools/package.sh install

uninstall:
	@DESTDIR="$(DESTDIR)" PREFIX="$(PREFIX)" LIBDIR="$(LIBDIR)" tools/package.sh uninstall

header:
	ELIZA_UPDATE_HEADER=1 $(CARGO) test --locked --test house header:: -q

bench:
	python3 tools/bench_vs_peer.py

# In a folder of its own: a release build never holds what only tests call.
jvm-bench: built-for-c
	$(CARGO) build --locked --release -p eliza-inference-jni --no-default-features --features testing \
	  --target-dir target/jvm-bench
	python3 tools/jvm_tests.py target/jvm-bench/release/$(JVM_LIBRARY) target/fixtures/llama-f32.gguf --bench

clean:
	$(CARGO) clean
