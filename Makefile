# The everyday commands. Needed on the machine: Python 3.11 or later with its C headers, git, make.
# Zig and everything else come from PyPI into .venv. How it all works: docs/internals/HACKING.md.
#
#   make demo                 train one model on four peers, lose one, gain one (demo_out/);
#                             FRAMEWORK=torch: under DistributedDataParallel; =jax: jitted
#   make test                 style, unit tests, Python tests
#   make test-long            what is long and rarely broken: simulator, threads, chaos, docs
#   make build                the editable install in .venv; about a second when nothing changed
#   make check                format, lint, types
#   make sim SEEDS=5000       simulate so many seeds;  make sim SEED=123  replays one
#   make fuzz SECONDS=600     decoders, state machines and worlds under fresh bytes for so long
#   make mutants              hold hundreds of mistakes against tests, transcripts and seeds
#   make soak MINUTES=60      real processes killed, frozen and cut off for so long
#   make bench                compare with gloo on this machine (installs torch; bench_out/)
#   make flaky                each Python test, the long ones too, ten times on a busy machine
#   make test-threads         engine/net and engine/abi under ThreadSanitizer
#   make test-threads-python  the bindings under ThreadSanitizer
#   make test-torch           torch.distributed on PCCL, with all of PyTorch's own tests that run,
#                             and the programs of docs/guides/FRAMEWORKS.md
#   make test-aarch64         the kernels of aarch64, under qemu-user
#   make test-windows         all layers that know no sockets, built for Windows, under wine
#   make test-avx512          the kernels on an emulated CPU with AVX-512 (Bochs), 20 minutes
#   make wheels               wheels for x86-64 and aarch64 in dist/, checked and tried
#   make release              wheels, source, site, bill of materials and checksums in dist/
#   make house                lines, files, messages, fields and words of this project
#   make docs                 the site of the documentation in build/site
#   make test-portable        those of aarch64 and Windows, golden digests on AVX-512, macOS
#   make clean                remove what was built, .venv too

PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$python && break; done)
VENV := .venv
RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip --disable-pip-version-check --quiet
ZIG := $(RUN) -m ziglang build
SIM_SECONDS ?= 30
CRASH_SECONDS ?= 10
FUZZ_SECONDS ?= 15
SECONDS ?= 600
SEEDS ?= 1000
MUTANT_SEEDS ?= 2000
MINUTES ?= 20
ROUNDS ?= 10
# Python tests wait more than they work, so there are more workers than cores.
WORKERS ?= 8
# The step of build.zig that runs under qemu-user; AARCH64=golden takes a sixth of the time.
AARCH64 ?= test-kernels
PYTEST := $(RUN) -m pytest -n $(WORKERS) --dist loadgroup
# All but net and abi, which Windows lacks.
WINDOWS_LAYERS ?= base kernels wire protocol collective session sim

# The editable install depends on these; a change to the sources needs no new install.
INSTALL_INPUTS := pyproject.toml hatch_build.py

.PHONY: build test unit-test installed-tests simulator python-test test-long check style demo
.PHONY: sanitized-and-emulated long-tests bench sim soak test-torch fuzz flaky mutants test-threads
.PHONY: test-threads-python test-aarch64 test-windows test-avx512 test-portable wheels docs
.PHONY: house release clean
.DELETE_ON_ERROR:

build: $(VENV)/.installed
	@$(RUN) hatch_build.py

# Python tests wait more than they work, so unit tests and style run beside them. Those that
# measure come last, when nothing else runs. All that `check` compiles is compiled for the tests, so
# only the rest of it is here.
test:
	$(MAKE) $(VENV)/.tools
	$(MAKE) -j3 unit-test installed-tests

unit-test: $(VENV)/.tools
	$(ZIG) test --summary new

# Pip does one thing at a time in an environment.
installed-tests: $(VENV)/.native $(VENV)/.packages
	$(MAKE) -j1 build $(VENV)/.with-dev $(VENV)/.with-test
	$(MAKE) -j2 style python-test

# Each commit draws seeds that nobody has run before: they begin at a number of its tree, so another
# run of that tree repeats them. Without git they begin at a number that the clock draws.
TREE := $(shell git rev-parse --verify --quiet 'HEAD^{tree}' | cut -c 1-9)
SEEDS_OF_TREE := $(if $(TREE),--start $(shell printf %d 0x$(TREE)),--fresh)

# The one with mutations. They are switched on one after the other, to see whether the checkers do
# their work, and are off in what follows.
simulator: $(VENV)/.tools
	$(ZIG) mutated-sim
	zig-out/mutants/pccl-sim canaries
	zig-out/mutants/pccl-sim --seconds $(SIM_SECONDS) $(SEEDS_OF_TREE)
	zig-out/mutants/pccl-sim --profile crashes --seconds $(CRASH_SECONDS) $(SEEDS_OF_TREE)
	zig-out/mutants/pccl-sim fuzz --seconds $(FUZZ_SECONDS) $(SEEDS_OF_TREE)

python-test: build $(VENV)/.with-test
	$(PYTEST) -m "not long"

# As in `test`, the Python tests run beside what is compiled.
test-long:
	$(MAKE) $(VENV)/.tools
	$(MAKE) -j4 sanitized-and-emulated simulator long-tests

sanitized-and-emulated: $(VENV)/.tools
	$(MAKE) test-threads
	$(MAKE) test-aarch64 AARCH64=golden

long-tests: $(VENV)/.native $(VENV)/.packages
	$(MAKE) -j1 build $(VENV)/.with-test $(VENV)/.with-release docs
	$(RUN) release/try_readme.py
	# What tests would compile under their time limit.
	$(ZIG) wan
	$(ZIG) coordinator-bench -Doptimize=ReleaseFast
	$(PYTEST) -m long

# The tests of torch.distributed, with all of PyTorch's own that a backend of CPU tensors can run,
# and the programs of docs/guides/FRAMEWORKS.md under Accelerate, flax and others.
test-torch: build $(VENV)/.with-recipes
	PCCL_TORCH_ALL=1 $(RUN) -m pytest tests/pytorch tests/jax/test_jax_recipes.py --durations=20

# ThreadSanitizer on what has threads; how long: STRESS=100.
test-threads: $(VENV)/.tools
	$(ZIG) test-net test-abi -Dtsan --summary new $(if $(STRESS),-Dstress-rounds=$(STRESS))

# The same for the bindings, with an interpreter that is not built with it.
test-threads-python: $(VENV)/.with-test
	$(RUN) tests/threads/under_tsan.py

check: style
	$(ZIG) check

style: build $(VENV)/.with-dev $(VENV)/.with-test
	$(RUN) -m ziglang fmt --check build.zig engine kernels tests bench
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	$(VENV)/bin/basedpyright

demo: build $(VENV)/.with-demo$(if $(filter torch jax,$(FRAMEWORK)),-$(FRAMEWORK))
	$(RUN) -m examples.demo $(if $(FRAMEWORK),--framework $(FRAMEWORK))

bench: build $(VENV)/.with-bench
	$(RUN) -m bench loopback

sim: $(VENV)/.installed
	$(ZIG) sim
	zig-out/bin/pccl-sim $(if $(SEED),--seed $(SEED) --trace,--seeds $(SEEDS))

# Half of the time without guidance, with fresh seeds, and half guided by coverage.
fuzz: $(VENV)/.installed
	$(ZIG) sim
	zig-out/bin/pccl-sim fuzz --seconds $$(($(SECONDS) / 2)) --fresh
	$(RUN) tests/fuzz/guided.py --seconds $$(($(SECONDS) / 2))

# ONLY=tests/python/test_cli_run.py takes one file.
flaky: build $(VENV)/.with-test
	$(RUN) tests/flaky.py --rounds $(ROUNDS) $(if $(SEED),--seed $(SEED)) $(ONLY)

# Every mutation of tests/mutants must be caught, or be listed with its reason.
mutants: $(VENV)/.installed
	$(ZIG) mutants
	$(RUN) tests/mutants/run.py --seeds $(MUTANT_SEEDS) $(if $(ONLY),--only $(ONLY))

soak: build $(VENV)/.with-test
	PYTHONPATH=tests/processes $(RUN) tests/chaos/soak.py --minutes $(MINUTES) \
	$(if $(SEED),--seed $(SEED)) $(if $(NAMESPACES),--namespaces)

test-aarch64: $(VENV)/.tools
	@command -v qemu-aarch64 >/dev/null || { \
	echo "make: qemu-aarch64 is missing: apt install qemu-user (dnf install qemu-user)"; exit 1; }
	$(ZIG) $(AARCH64) -Dtarget=aarch64-linux-musl -fqemu --summary new

# Wine keeps its world in the build cache; without the overrides it asks to download Mono.
test-windows: $(VENV)/.installed
	@command -v wine >/dev/null || { \
	echo "make: wine is missing: apt install --no-install-recommends wine wine64 (dnf install wine)"; \
	exit 1; }
	@mkdir -p .zig-cache/wine
	WINEPREFIX=$(CURDIR)/.zig-cache/wine WINEDLLOVERRIDES="mscoree,mshtml=" \
	$(ZIG) $(WINDOWS_LAYERS:%=test-%) -Dtarget=x86_64-windows -fwine --summary new

test-avx512: $(VENV)/.installed
	@command -v bochs >/dev/null || { \
	echo "make: bochs is missing: apt install --no-install-recommends bochs bochs-term"; exit 1; }
	$(ZIG) machine kernel-tests -Demulated -Doptimize=ReleaseSafe -Dtarget=x86_64-linux-musl \
	--prefix .zig-cache/emulated $(if $(FILTER),-Dtest-filter=$(FILTER))
	$(RUN) tests/emulated/emulate.py .zig-cache/emulated/bin/machine \
	.zig-cache/emulated/bin/kernel-tests --minutes 90

test-portable: test-aarch64 test-windows
	$(MAKE) test-avx512 FILTER=golden
	$(ZIG) check -Dtarget=aarch64-macos

wheels: $(VENV)/.with-release
	@command -v qemu-aarch64 >/dev/null || { \
	echo "make: qemu-aarch64 is missing: apt install qemu-user"; exit 1; }
	$(RUN) release/wheels.py $(PYTHONS:%=--python %)

# All that is uploaded: no file of another release is left in dist.
release: $(VENV)/.with-release $(VENV)/.with-test
	rm -rf dist
	$(MAKE) wheels docs
	$(RUN) release/bundle.py

docs: build $(VENV)/.with-docs
	$(RUN) release/make_site.py

house:
	@$(PYTHON) tests/house.py

clean:
	rm -rf $(VENV) .zig-cache zig-out dist demo_out bench_out chaos_out mutants_out build \
	pccl_py/include
	rm -f pccl_py/*.so pccl_py/*.dylib fuzz_crash
	rm -rf .pytest_cache .hypothesis .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The packages that pyproject.toml names for building come first: without build isolation they are
# downloaded once. Zig is among them.
$(VENV)/.tools: $(INSTALL_INPUTS)
	@test -n "$(PYTHON)" || { \
	echo "make: no Python 3.11 or later found; install one, or say make PYTHON=/path/to/python3"; \
	exit 1; }
	@$(PYTHON) -c 'import os, sys, sysconfig; \
	sys.exit(not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")))' || { \
	echo "make: Python.h is missing: apt install python3-dev (Fedora: dnf install python3-devel)"; \
	exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(RUN) -c 'import tomllib; \
	print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' \
	> $(VENV)/build-requirements.txt
	$(PIP) install -r $(VENV)/build-requirements.txt
	@touch $@

# Before the install, so that its errors are not inside a traceback of pip.
$(VENV)/.native: $(VENV)/.tools
	@echo "make: compiling the native library; the first time this takes minutes"
	$(RUN) hatch_build.py
	@touch $@

$(VENV)/.installed: $(VENV)/.native
	$(PIP) install --no-build-isolation --editable .
	@touch $@

# All packages that `make test` needs, which are installed while the native library is compiled.
$(VENV)/.packages: $(VENV)/.tools
	$(RUN) -c 'import sys, tomllib; \
	project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	extras = [project["optional-dependencies"][extra] for extra in sys.argv[1].split(",")]; \
	print(*project["dependencies"], *sum(extras, []), sep="\n")' $(EXTRAS_test),$(EXTRAS_dev) \
	> $(VENV)/requirements.txt
	$(PIP) install -r $(VENV)/requirements.txt
	@touch $@

$(VENV)/.with-%: $(VENV)/.installed
	$(PIP) install --no-build-isolation --editable '.[$(EXTRAS_$*)]'
	@touch $@

EXTRAS_test := test,numpy,demo
EXTRAS_demo := demo
# With the torch that is tested: of any other, pip takes the newest, with gigabytes for CUDA.
EXTRAS_demo-torch := demo,test
EXTRAS_demo-jax := demo,test
EXTRAS_recipes := recipes,$(EXTRAS_test)
EXTRAS_bench := bench
EXTRAS_dev := dev
EXTRAS_release := release
EXTRAS_docs := docs
