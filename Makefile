# NoETL. `make` alone prints this help.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
# Tests start hundreds of processes: each would compile its modules anew.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
UV = $(shell command -v uv 2>/dev/null || echo .uv/bin/uv)
# Of the wheels and the images; without it, wheels have that of the tag, and images that of the Dockerfile.
VERSION ?=
MEMBERS := $(wildcard libs/* services/*) cli workloads/pft
SOURCES := libs services cli workloads tests scripts
K ?=
ARGS ?=
# `make test/simulation SEEDS=2000` runs so many seeds on every core, SEED=n one with its trace.
SEED ?=
SEEDS ?=
# The first 40 are tests of pytest; a change plays 300 in all, a landing 1,000.
SEEDS_OF_A_CHANGE := --first 40 --seeds 260
SEEDS_OF_A_LANDING := --first 300 --seeds 700
EXPLORE = $(BIN)/python -m tests.simulation.explore
# `make test/property PROFILE=long` plays thousands of random workflows.
PROFILE ?=
# `make bench ONLY="w1 w2"` runs these series and prints them, PEERS=1 other engines beside ours,
# COMPARE=ref measures this tree and a commit in turn.
ONLY ?=
PEERS ?=
COMPARE ?=
UPGRADE_FROM ?=
PYTEST = $(BIN)/pytest $(if $(K),-k "$(K)") $(if $(PROFILE),--hypothesis-profile=$(PROFILE) --timeout=7200)

.PHONY: help
help: ## Print the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z\/]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: setup ## Run the PFT workload end to end on real embedded servers, verify it, clean up
	@$(BIN)/python scripts/demo.py $(ARGS)

# `make test` takes less than half an hour on two cores; `make test/stacks` is what takes longer: Spark, whole
# stacks that are killed and cut off, and many more seeds. `make test/all` is both.
# Two files at a time, three of those with servers and stacks, for these also wait; the long ones first
# (tests/support/lanes.py), so that no process ends with one while the others are idle. What holds the engine to
# a number of seconds, and a Spark cluster, which takes every core, has the machine for itself. No test that fails
# is run again: one that is red now and then is a defect, of the test or of what it tests.
COMPUTING := unit property replay architecture simulation
SERVED := conformance integration security
SPARK := tests/integration/spark
WHOLE := e2e chaos acceptance delivery console
ALONE := tests/chaos/test_recovery_time.py tests/chaos/test_twins.py tests/e2e/test_spark_cluster.py
LONG_FIRST := --dist loadfile --no-loadscope-reorder
PAIRS := -n 2 $(LONG_FIRST)
THREES := -n 3 $(LONG_FIRST)

.PHONY: test test/stacks test/all
test: setup ## Run every test that needs no whole stack; K=expression narrows, over all tests
ifeq ($(K),)
	@$(PYTEST) $(PAIRS) $(addprefix tests/,$(COMPUTING))
	@$(EXPLORE) $(SEEDS_OF_A_CHANGE)
	@$(PYTEST) $(THREES) $(addprefix tests/,$(SERVED)) --ignore=$(SPARK)
else
	@$(PYTEST) tests
endif

test/stacks: setup ## Run the tests of whole stacks and of Spark, and many seeds
	@$(EXPLORE) $(SEEDS_OF_A_LANDING)
	@$(PYTEST) $(PAIRS) $(SPARK)
	@$(PYTEST) $(THREES) $(addprefix tests/,$(WHOLE)) $(addprefix --ignore=,$(ALONE))
	@$(PYTEST) $(ALONE)

test/all: test test/stacks ## Run every test

.PHONY: check
check: lint test/unit test/property test/replay test/simulation test/architecture ## What a change needs before review

.PHONY: test/unit test/property test/replay test/simulation test/architecture test/conformance test/integration test/security test/e2e test/chaos test/acceptance test/delivery test/console
test/unit test/property test/replay test/architecture test/conformance test/integration test/security test/e2e test/chaos test/acceptance test/delivery test/console: setup ## Run one folder of tests; K=expression narrows
	@if [ -d tests/$(notdir $@) ]; then $(PYTEST) tests/$(notdir $@); fi

test/simulation: setup ## Run the simulations; SEEDS=n explores so many seeds, SEED=n one
ifneq ($(SEED)$(SEEDS),)
	@$(EXPLORE) $(if $(SEED),--seed $(SEED),--seeds $(SEEDS)) $(ARGS)
else
	@$(PYTEST) tests/simulation
ifeq ($(K),)
	@$(EXPLORE) $(SEEDS_OF_A_CHANGE)
endif
endif

.PHONY: longrun
longrun: setup ## Simulate 100,000 seeds, going on where it stopped; writes benchmarks/simulation.md
	@$(BIN)/python -m tests.simulation.longrun $(ARGS)

# Nothing else of the check runs these, so that a name they share with the product could change unnoticed.
RUN_BY_HAND := --explicit-package-bases $(addprefix -p tests.,bench cluster containers keycloak load observability proof storm upgrade)

.PHONY: lint lint/style lint/types lint/shape
lint: setup ## Check format, style, types, imports, words and the figures of the code
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target lint/types lint/style lint/shape

lint/style: setup
	@$(BIN)/ruff format --check $(SOURCES)
	@$(BIN)/ruff check $(SOURCES)

lint/types: setup
	@$(BIN)/mypy libs services cli workloads
	@$(BIN)/mypy $(RUN_BY_HAND)

lint/shape: setup
	@$(BIN)/lint-imports
	@$(BIN)/python scripts/console_bundle.py --check
	@$(BIN)/python -m scripts.prose_check
	@$(BIN)/python -m scripts.house_figures

# Vale checks the words of docs, comments and docstrings in `make lint`, which goes on without it. Go takes it
# as scripts/vale/go.sum has it, and compiles grammars written in C: that takes some minutes, once.
VALE := build/vale/vale
.PHONY: vale
vale: $(VALE) ## Build Vale for `make lint`; needs Go and a C compiler
$(VALE): scripts/vale/go.mod scripts/vale/go.sum
	@version=$$(sed -n 's|^.*/vale/v3 v\([^ ]*\).*$$|\1|p' scripts/vale/go.mod); \
	 echo "building Vale $$version into $@ ..."; \
	 cd scripts/vale && GOTOOLCHAIN=local go build -mod=readonly -ldflags "-s -w -X main.version=v$$version" \
	   -o $(CURDIR)/$@ github.com/vale-cli/vale/v3/cmd/vale
	@touch $@

.PHONY: fmt
fmt: setup ## Format and fix what can be fixed
	@$(BIN)/ruff check --fix --quiet $(SOURCES) || true
	@$(BIN)/ruff format $(SOURCES)

.PHONY: up down logs doctor
up: setup ## Start the embedded stack in the background
	@$(BIN)/noetl up
down: ## Stop the embedded stack; data stays
	@$(BIN)/noetl down
logs: ## Follow the logs of the embedded stack
	@$(BIN)/noetl logs --follow
doctor: setup ## Check this machine and the running stack
	@$(BIN)/noetl doctor

# Each is a module of tests/proof.
PROOFS := $(addprefix proof/,full analytics million leases tables tpch pipeline memory nearness slider lineage)
.PHONY: $(PROOFS)
$(PROOFS): proof/%: setup
	@$(BIN)/python -m tests.proof $* $(if $(SPEC),--spec $(SPEC))

.PHONY: proof
proof: setup $(if $(SPEC),$(PROOFS),$(filter-out %/lineage,$(PROOFS))) ## Show what is too long for the suite, all or as proof/NAME; writes benchmarks/proofs.md

.PHONY: bench
bench: setup ## Measure beside raw floors, writes benchmarks/benchmarks.md; ONLY="w1 w2", PEERS=1, COMPARE=ref
	@UV=$(UV) $(BIN)/python -m tests.bench $(if $(ONLY),--only $(ONLY)) $(if $(PEERS),--peers) \
		$(if $(COMPARE),--compare $(COMPARE)) $(ARGS)

.PHONY: storm
storm: setup ## Hurt a working stack for ten minutes, heal it, count everything; writes benchmarks/chaos.md
	@$(BIN)/python -m tests.storm $(ARGS)

# Each is a name of tests/load: LOADS="sweep" runs that one.
LOADS ?= concurrent sweep tenants
.PHONY: load soak
load: setup ## 10,000 executions at once, every GET over 100,000, one tenant flooding; LOADS="sweep"
	@for name in $(LOADS); do $(BIN)/python -m tests.load $$name $(ARGS); done
soak: setup ## An hour of every kind of work with memory watched; writes benchmarks/load.md
	@$(BIN)/python -m tests.load soak $(ARGS)

.PHONY: wheels
wheels: setup $(UV) ## Build the wheels into build/wheels; VERSION=1.2.3, else that of the tag
	@UV=$(UV) $(BIN)/python scripts/wheels $(if $(VERSION),--version $(VERSION))

# Images need Docker; where no registry is reached, deploy/docker/bases makes what they are built on.
IMAGES := planner worker projector outbox reaper
BASES ?=
.PHONY: images images/bases
images: setup ## Build the images of the services; IMAGES="planner worker-spark cli" builds these
	@for image in $(IMAGES); do \
	  docker build --quiet $(DOCKER_ARGS) --build-arg SERVICE=$$image $(if $(VERSION),--build-arg VERSION=$(VERSION)) \
	    --build-arg REVISION=$$(git rev-parse HEAD) --tag noetl-$$image --file deploy/docker/Dockerfile .; done
images/bases: setup ## Make the base images, and those of the servers, on this machine; BASES="prometheus collector" these
	@PYTHON=$(CURDIR)/$(BIN)/python deploy/docker/bases $(BASES)

# Runs by hand, where Docker is: it kills what it starts. `make images` comes before it. The suites of the ports go
# over servers in containers as they go over those of wheels.
.PHONY: test/containers
test/containers: setup ## Try the images, the ports over servers in containers, and compose; K=expression narrows
	@$(UV) pip install --quiet --python $(BIN)/python --require-hashes -r requirements/containers.txt
	@$(PYTEST) -rs tests/integration/containers tests/containers
ifeq ($(K),)
	@NOETL_TEST_SERVERS=containers $(PYTEST) -rs tests/conformance -k "not memory and not filesystem"
	@NOETL_TEST_SERVERS=containers $(PYTEST) -rs tests/integration/spark/test_spark_datasets.py -k opens_nothing_but
endif

# From the commit before the last change of the schema, or UPGRADE_FROM=ref.
.PHONY: test/upgrade
test/upgrade: setup ## Upgrade services one by one under load from an earlier commit, and roll them back
	@UPGRADE_FROM=$(UPGRADE_FROM) $(PYTEST) tests/upgrade

# A real Keycloak from Maven Central, 180 MB, over Java 17. Without them the lane skips and says so.
.PHONY: test/keycloak
test/keycloak: setup ## Sign people and programs in at a real Keycloak; needs Java and Maven; K=expression narrows
	@$(PYTEST) tests/keycloak

# Helm's own library as a wheel renders the charts; only this needs it.
.PHONY: test/charts
test/charts: setup ## Render, check and test the charts; K=expression narrows
	@$(UV) pip install --quiet --python $(BIN)/python --require-hashes -r requirements/charts.txt
	@$(PYTEST) tests/charts

# A real cluster of one node: root, Go, Docker with the images of `make images`, and etcd-server, containerd, ipset and
# containernetworking-plugins of Debian. Runs by hand.
.PHONY: cluster/tools test/cluster
cluster/tools: ## Build what the cluster of `make test/cluster` runs, from Go's module proxy; needs Go
	@nice -n 10 tests/cluster/tools/build
test/cluster: setup ## Install the charts on a real one-node cluster, and scale with KEDA; K=expression narrows
	@$(UV) pip install --quiet --python $(BIN)/python --require-hashes -r requirements/charts.txt
	@$(PYTEST) -rP tests/cluster

# promtool, Prometheus and a collector, from Go's module proxy. Without them the lane skips what needs them.
.PHONY: observability/tools test/observability
observability/tools: ## Build what `make test/observability` runs; needs Go
	@nice -n 10 tests/observability/tools/build
test/observability: setup ## Try alerts and dashboards in promtool, traces and logs in a collector; K=expression narrows
	@$(PYTEST) tests/observability

# The site builder has an environment of its own, which no test needs.
.PHONY: docs
docs: .venv-docs/.installed ## Build the site of docs/ into build/site; a dead link is an error
	@.venv-docs/bin/zensical build --strict --clean

.venv-docs/.installed: requirements/docs.txt | $(UV)
	@$(UV) venv --quiet --clear --python $(PYTHON) .venv-docs
	@$(UV) pip install --quiet --python .venv-docs/bin/python --require-hashes -r requirements/docs.txt
	@touch $@

.PHONY: lock
lock: $(UV) ## Pin every dependency with hashes again
	@UV=$(UV) $(PYTHON) scripts/lock

.PHONY: setup
setup: $(VENV)/.installed ## Make the environment: uv if it is missing, then everything pinned; the console
	@$(BIN)/python scripts/console_bundle.py

# Its bundle is part of the planner's package, and not of the repository.
.PHONY: console console/types
console: $(VENV)/.installed ## Build the console into the planner's package
	@$(BIN)/python scripts/console_bundle.py --strict
console/types: $(VENV)/.installed ## Write the console's types of the API anew
	@$(BIN)/python -m scripts.console_types

$(VENV)/.installed: requirements/dev.txt pyproject.toml $(addsuffix /pyproject.toml,$(MEMBERS)) | $(UV)
	@test -x $(BIN)/python || $(UV) venv --quiet --python $(PYTHON) $(VENV)
	@echo "installing the pinned environment into $(VENV) ..."
	@$(UV) pip install --quiet --python $(BIN)/python --require-hashes -r requirements/dev.txt
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation $(addprefix -e ,$(MEMBERS))
	@touch $@

.uv/bin/uv:
	@echo "uv is missing: installing it into .uv ..."
	@$(PYTHON) -m venv .uv
	@.uv/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.txt

.PHONY: clean
clean: ## Remove the environment and every cache
	@rm -rf $(VENV) .venv-docs build .uv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
