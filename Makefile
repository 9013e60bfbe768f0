# `make up` runs the appliance, `make test` tests it; each sets itself up on a fresh machine.
# Options go through ARGS, as in: make up ARGS="--replicas 1 --data /srv/logboom"

.DEFAULT_GOAL := help
.NOTPARALLEL:

ARGS ?=
SEED ?= 1
MINUTES ?= 20
BENCH ?=
FAULT_S ?= 8
HEAL_S ?= 12
ROUNDS ?= 1
TIMES ?= 30
ONLY ?=
PYTHON := .venv/bin/python
PYTEST := $(PYTHON) -m pytest

# Any Python from 3.11 on can do the set-up; the packages are locked for 3.11, so that one is tried first.
BOOTSTRAP = for candidate in python3.11 python3.12 python3.13 python3.14 python3; do \
	if $$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	exec $$candidate -P webapp/appliance/bootstrap.py $(1); fi; done; \
	echo "set-up: Logboom needs Python 3.11 or newer; install Debian's python3 and python3-venv and run again"; exit 1

# Reads the old lock before it writes the new one, and keeps its versions.
LOCK = .venv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header pyproject.toml

help: ## what this Makefile can do
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

up: .venv/.installed ## run the appliance here until Ctrl-C (ARGS="--help" explains the options)
	@exec $(PYTHON) manage.py up $(ARGS)

status: .venv/.installed ## say whether the appliance is healthy (exit code 0, 1 degraded, 2 down)
	@exec $(PYTHON) manage.py status $(ARGS)

test: .venv/.installed-dev programs ## the whole test suite, by some more workers than there are processors (ARGS="-n 0": in one process)
	$(PYTEST) -n auto $(ARGS)

check: .venv/.installed-dev ## format, lint, types and the fast tests
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .
	$(PYTHON) -m mypy
	$(PYTEST) -n auto tests/test_tidy.py $(wildcard tests/unit tests/scenarios tests/contract tests/golden) $(ARGS)
	$(PYTHON) -m tests.sim --seeds 10

sim: .venv/.installed-dev ## replay one simulated cluster: make sim SEED=n
	$(PYTHON) -m tests.sim --seed $(SEED) $(ARGS)

sim-soak: .venv/.installed-dev ## simulate on, from where the last soak ended, and count: make sim-soak MINUTES=n
	$(PYTHON) -m tests.sim --minutes $(MINUTES) $(ARGS)

mutants: .venv/.installed-dev ## break each rule on purpose: the simulator must find every one
	$(PYTHON) -m tests.sim --mutants $(ARGS)

models: .venv/.installed-dev ## try what is tested with examples, or against a model, with more of them: make models TIMES=n
	EXAMPLES_TIMES=$(TIMES) $(PYTEST) -n auto $$(grep -rlE --include='test_*.py' '@given|RuleBasedStateMachine' tests/unit tests/web) $(ARGS)

fuzz: .venv/.installed-dev ## throw hostile input at a broker: make fuzz MINUTES=n SEED=n
	$(PYTHON) -m tests.fuzz --minutes $(MINUTES) --seed $(SEED) $(ARGS)

fuzz-turns: .venv/.installed-dev ## look for requests that keep a broker to themselves: make fuzz-turns MINUTES=n SEED=n
	$(PYTHON) -m tests.fuzz.turns --minutes $(MINUTES) --seed $(SEED) $(ARGS)

sanitized: .venv/.installed-dev ## the tests of what is in C, with a build that watches every access (ARGS="-x"; "--threads": what threads do to one another)
	$(PYTHON) -m tests.sanitized $(ARGS)

bench: .venv/.installed-dev bench-programs ## measure, in pairs, into one table (BENCH="sends failover" chooses; see docs/benchmarks.md)
	$(PYTHON) -m tests.bench $(BENCH) $(ARGS)

chaos: .venv/.installed-dev ## real processes under faults, in network namespaces; needs root (FAULT_S= HEAL_S= ROUNDS= SEED= ONLY="C1 X3")
	@exec $(PYTHON) -m tests.chaos --only "$(ONLY)" --seed $(SEED) --fault-s $(FAULT_S) --heal-s $(HEAL_S) --rounds $(ROUNDS) $(ARGS)

bench-replication: .venv/.installed-dev bench-programs ## three replicas against one, and against Apache RocketMQ (needs a JDK and Maven)
	$(PYTHON) -m tests.bench.replication $(ARGS)

bench-compare: .venv/.installed-dev bench-programs ## beside Apache RocketMQ, in pairs, about an hour (needs a JDK and Maven; ARGS="--help")
	$(PYTHON) -m tests.bench.compare $(ARGS)

soak: .venv/.installed-dev ## memory of every daemon over an hour of everything that clients do (make soak MINUTES=60)
	$(PYTHON) -m tests.bench.soak --minutes $(MINUTES) $(ARGS)

pop-soak: .venv/.installed-dev ## consumers of both protocols that crash, and masters that are killed: make pop-soak MINUTES=30
	$(PYTHON) -m tests.bench.pop_soak --minutes $(MINUTES) $(ARGS)

timer-soak: .venv/.installed-dev ## messages for any moment, a part of them recalled, and masters that are killed: make timer-soak MINUTES=30
	$(PYTHON) -m tests.bench.timer_soak --minutes $(MINUTES) $(ARGS)

tier: .venv/.installed-dev ## a tier whose object store fails while masters are killed, and a mount of what is left: make tier SEED=n (ARGS="--seconds 60 --kills 3 --faults 0.1")
	$(PYTHON) -m tests.tier --seed $(SEED) $(ARGS)

tier-soak: .venv/.installed-dev ## write, upload, let the local files go, read all again by offset, key and time: make tier-soak MINUTES=60
	$(PYTHON) -m tests.tier.soak --minutes $(MINUTES) --seed $(SEED) $(ARGS)

h2spec: .venv/.installed-dev ## HTTP/2 conformance of the gRPC endpoint (needs Go)
	$(PYTHON) -m tests.h2spec $(ARGS)

interop: .venv/.installed-dev ## brokers, controllers and tools of Apache RocketMQ against ours (needs a JDK and Maven)
	$(PYTEST) tests/interop --least-checks 355 $(ARGS)

lock: .venv/.installed-dev ## lock what pyproject.toml asks for, at the versions locked already where they fit (ARGS="--upgrade", "--upgrade-package NAME")
	$(LOCK) --extra dev $(ARGS) --output-file requirements-dev.lock
	$(LOCK) --constraint requirements-dev.lock $(ARGS) --output-file requirements.lock

sbom: .venv/.installed-dev ## what an appliance is made of, with hashes: build/sbom.cdx.json (CycloneDX)
	@mkdir -p build
	.venv/bin/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible --output-file build/sbom.cdx.json requirements.lock

audit: .venv/.installed-dev ## ask a database for known weaknesses of all that is locked (ARGS="--url URL": one of your own)
	@$(PYTHON) -m tests.audit $(ARGS)

bench-programs:
	@$(call BOOTSTRAP,programs h2load gcc)

programs:
	@$(call BOOTSTRAP,programs chromium java)

.venv/.installed: requirements.lock
	@$(call BOOTSTRAP,packages)

.venv/.installed-dev: requirements-dev.lock requirements.lock
	@$(call BOOTSTRAP,packages --dev)

.PHONY: help up status test check sim sim-soak mutants models fuzz fuzz-turns sanitized soak pop-soak timer-soak tier tier-soak bench bench-replication bench-compare chaos h2spec interop lock sbom audit programs bench-programs
