# Two commands do everything: `make demo` and `make test`. `make quick` is the daily loop, `make check` is all there is.
PYTHON ?= python3
PY ?= python3.13
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test quick check slow exhaustive lint types layers tests verification verification-full docs bench times test-core wheel clean

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[dev]'
	touch $@ $(VENV)/.installed

demo: $(VENV)/.installed
	@echo "The headline: correlated noise under Balls-in-Bins compared with DP-SGD under Poisson sampling."
	$(BIN)/dpmech compare --plan docs/examples/cifar10_amplified.toml
	@echo "Without amplification, as in the first column of the paper's table, compared with the same DP-SGD."
	$(BIN)/dpmech compare --plan docs/examples/cifar10.toml
	mkdir -p build/demo
	$(BIN)/dpmech calibrate --strategy lambda-cgd --lam 0.9 --dataset-size 50000 --batch-size 128 --epochs 10 \
	    --sampling balls-in-bins --eps 8 --delta 1e-5 --clip-norm 1 --out build/demo/certificate.json --force
	$(BIN)/dpmech verify build/demo/certificate.json --details
	@echo "The same for a reviewer, as a page: verified again, with what an attacker could do (about a minute)."
	$(BIN)/dpmech report build/demo/certificate.json --out build/demo/review.html
	@echo "Sigma 2 % lower: edited by hand, and with every hash computed anew. Both must be refused."
	$(BIN)/python docs/examples/tamper.py build/demo/certificate.json build/demo
	! $(BIN)/dpmech verify build/demo/edited.json
	! $(BIN)/dpmech verify build/demo/rehashed.json

# One file that decides certificates, with numpy and python-flint alone: python checker.pyz certificate.json
checker.pyz: $(wildcard dpmech/checker/*.py)
	rm -rf build/checker
	mkdir -p build/checker/checker
	cp dpmech/checker/*.py build/checker/checker/
	printf 'import sys\n\nfrom checker.__main__ import main\n\nsys.exit(main())\n' > build/checker/__main__.py
	$(PYTHON) -m zipapp build/checker --output $@

# The wheel of this checkout, the same bytes wherever it is built.
wheel: $(VENV)/.installed
	$(BIN)/python -m pip --disable-pip-version-check wheel --quiet --no-deps --wheel-dir dist .

# What needs one core each goes first, two at a time and the longest first; the tests take both cores.
test: $(VENV)/.dev
	$(MAKE) --jobs=2 --output-sync=target docs types verification layers lint
	$(MAKE) tests

# Lint, types, layers, and the tests that matter for what differs from the last commit.
quick: lint types layers
	HYPOTHESIS_PROFILE=quick $(PYTEST) -m "not slow" $$($(BIN)/python tests/support/changed.py)

# Everything but the mutations and the planted faults, whose pages say how they are run.
check: test slow exhaustive verification-full

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/.dev
	$(BIN)/mypy

layers: $(VENV)/.dev
	$(BIN)/lint-imports

# A process for each of two cores; threads of their own would only get in each other's way. Compiled files are kept:
# tests start hundreds of interpreters.
PYTEST := env -u PYTHONDONTWRITEBYTECODE OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal

# COV holds options of pytest-cov; the full gate sets them (.ci/run).
COV ?=

# Fewer examples of every property; the full gate and the slow tests draw all of them.
tests: $(VENV)/.dev
	HYPOTHESIS_PROFILE=$${HYPOTHESIS_PROFILE:-quick} $(PYTEST) -m "not slow" $(COV)

slow: $(VENV)/.dev
	$(PYTEST) -m "slow and not exhaustive" $(COV)

# The slow cases that the gate leaves out.
exhaustive: $(VENV)/.dev
	$(PYTEST) -m exhaustive $(COV)

# Both halves: which tests take over three times the CPU seconds that they have (tests/support/times.py).
times: export DPMECH_TIMES = check
times: tests slow

verification: $(VENV)/.dev
	$(BIN)/python -m verification

# All statements but the amplified Table 4, which takes twenty minutes more.
verification-full: $(VENV)/.dev
	$(BIN)/python -m verification --full $(foreach part,cgd.tab4_amp $(addprefix cgd.tab4_amp_,full bandmf blt bandinv),--skip $(part))

docs: $(VENV)/.dev
	rm -rf docs/generated docs/_build/html/_modules  # pages of names that are gone
	$(BIN)/python -m sphinx -n -W -q docs docs/_build/html

bench: $(VENV)/.dev
	$(BIN)/python -m pytest tests/bench -o addopts="" -q --benchmark-only -s

# The torch-free suite on another interpreter: make test-core PY=python3.12
test-core:
	test -x .venv-$(PY)/bin/python || $(PY) -m venv .venv-$(PY)
	.venv-$(PY)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	.venv-$(PY)/bin/python -m pytest -q -m "not slow"

clean:
	rm -rf $(VENV) .venv-* docs/_build docs/generated build dist .mypy_cache .ruff_cache .pytest_cache
