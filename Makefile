# Two commands do all the set-up: `make demo` and `make test`. They need python3 with venv, and make.
.PHONY: install demo docs release test test-system test-postgres lint size bench matrices proof soak clean
SHELL := /bin/bash -o pipefail
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

install: $(STAMP)

# Compiled once here: where PYTHONDONTWRITEBYTECODE is set, every process would compile it anew.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt uv
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python -c constraints.txt -e '.[all]' --group dev
	$(BIN)/python -m compileall -q flows tasks tests
	touch $@

# The main job on real input: raw digits -> shards -> model -> evaluated checkpoints -> report.
demo: install
	$(BIN)/tarmac example digits
	$(BIN)/tarmac run configs/digits-clip.yaml

# The pages of docs/ as a site, in site/. Any problem of a link or an anchor ends it.
docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# sdist, wheel, bill of materials and checksums of the commit in dist/, and what to do next. It publishes nothing.
release: install
	$(BIN)/python deploy/notice.py --check
	$(BIN)/python deploy/release.py

# Needs only Python.
test: install
	$(BIN)/pytest -m "not system and not proof" -n 4 --dist loadfile --no-loadscope-reorder

# Needs what .ci/run installs: a browser, Slurm, an emulator. Servers, workers and clusters are real, and run
# on this machine.
test-system: install
	$(BIN)/pytest -m "system and not proof" -n 3 --dist loadfile --no-loadscope-reorder $$(grep -rl mark.system tests --include='test_*.py')

# The tests of what flow runs survive and obey once more, with each server on PostgreSQL instead of SQLite.
test-postgres: install
	TARMAC_TEST_DATABASE=postgresql $(BIN)/pytest -m system -n 1 --dist loadfile \
		tests/system/test_control.py tests/system/test_taking_up.py tests/system/test_automations.py

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Files, lines and code lines by package.
size: install
	$(BIN)/python -m tests.size

# Ratios beside peers, measured in turns; it takes hours, goes on after an error, and ends with every promise. QUICK=1
# measures small sizes in some ten minutes, to show that all of it runs, and leaves the kept figures as they are.
bench: install
	$(BIN)/python -m tests.benchmarks $(if $(QUICK),--quick)

# What Tarmac and others make of the same damaged shards, and the tests of injected faults, as pages of docs/matrices; five
# minutes. Stalls are not produced anew: `make soak` does that.
matrices: install
	$(BIN)/python -m tests.soak.matrices

# All combinations, repeated kills and outages of which the daily sets hold one each, and the whole stall matrix.
proof: install
	$(BIN)/pytest -m proof -n 2 --dist loadfile --no-loadscope-reorder

# What takes hours: builds killed at a hundred random moments, a build of a million samples in as much
# memory as one of ten thousand; every one of twelve thousand flipped bits and cuts found by verify, and ten
# times the shards verified in as much memory; every stall and healthy training of the matrix, with its score.
soak: install
	$(BIN)/python -m tests.soak.kill_builds 100
	$(BIN)/python -m tests.soak.memory 10000 1000000
	$(BIN)/python -m tests.soak.fuzz_shards 10000 2000
	$(BIN)/python -m tests.soak.verify_memory 300 3000
	$(BIN)/python -m tests.soak.billion
	$(BIN)/python -m tests.soak.verdicts
	$(BIN)/python -m tests.soak.overhead 10 10000

clean:
	rm -rf .venv build dist site
