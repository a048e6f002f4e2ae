# Everything starts from a bare clone: the targets below create .venv themselves and reuse it.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
STEPS ?= 200000
SEED ?=
JOBS ?= 1

SITE := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --config-file website/mkdocs.yml

# Workers and the programs that tests start would otherwise compile everything each time anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo quick test test-mongodb check site package format tour stress bench model lock clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(STAMP): requirements/dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("swampstore needs Python 3.11 or newer; set PYTHON=...") if sys.version_info < (3, 11) else None'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m compileall -q src  # commands start fast even where bytecode is never written
	@touch $@

demo: $(STAMP)  ## run the main job end to end on embedded defaults, with an account of it
	@$(BIN)/python demo/demo.py

quick: $(STAMP)  ## run the tests that need neither a server nor a JVM, and do not take long
	@$(BIN)/pytest -n 2 --dist worksteal -q --hypothesis-profile quick -m "not server and not spark and not slow"

test: $(STAMP)  ## run the whole test suite
	@$(BIN)/pytest -n 2 --dist worksteal -q

test-mongodb: $(STAMP)  ## build servers for the tests of MongoDB with Go and Maven, and run them; fails without
	@SWAMPSTORE_BUILD_SERVERS=1 $(BIN)/pytest -n 2 --dist worksteal -q tests/mongodb
	@SWAMPSTORE_BUILD_SERVERS=1 SWAMPSTORE_MONGODB_SERVER=java $(BIN)/pytest -n 2 --dist worksteal -q tests/mongodb

check: $(STAMP)  ## lint, types, import rules, and that the documents make a site
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@told=$$($(SITE) 2>&1) || { echo "$$told"; exit 1; }  # with --quiet, warnings would pass

site: $(STAMP)  ## make a site of the documents, in .site/
	@$(SITE)

package: $(STAMP)  ## build what is published, in dist/, and check it
	@rm -rf dist
	@$(BIN)/python -m build --no-isolation --outdir dist . > /dev/null
	@$(BIN)/twine check --strict dist/*

format: $(STAMP)  ## format the code and apply safe fixes
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

tour: $(STAMP)  ## take the tour of the documents in terminals of 80 and 100 columns; WRITE=1 keeps how it looks
	@$(BIN)/python -m tests.docs.tour $(if $(WRITE),--write)

stress: $(STAMP)  ## let simulated fleets run (STEPS=, SEED=, JOBS=), then real processes that are killed and paused
	@$(BIN)/python -m tests.fleet --steps $(STEPS) --seed "$(SEED)" --jobs $(JOBS) --variants "  nm c nt cp"
	@$(BIN)/python -m tests.stress
	@$(BIN)/python -m tests.support.killing_workflows --seeds 100

bench: $(STAMP)  ## measure the promised costs and print a table
	@$(BIN)/python benchmarks/run.py

model:  ## check the lock protocol with spin, and that each of its rules is needed
	@$(PYTHON) model/check.py

lock: $(STAMP)  ## resolve the dependencies again and write requirements/dev.txt
	@$(BIN)/pip install --quiet uv
	@$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header \
		--python-version 3.11 --all-extras --group dev pyproject.toml -o requirements/dev.txt

clean:  ## remove the environment and every cache
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .site dist
