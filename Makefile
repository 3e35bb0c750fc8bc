# Two commands do everything: `make book` and `make test`. All that they need is installed into .venv.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
  $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && { echo $$p; break; }; done)
BIN := .venv/bin
# What Python has compiled is kept for the next process, of which the tests start many.
unexport PYTHONDONTWRITEBYTECODE
PORT ?= 8000

help:
	@echo 'make book    install the environment (1.1 GB), execute the chapters, build the site'
	@echo 'make check   while working: format and lint, then the tests but for the site and the slow ones'
	@echo 'make lint    are all files formatted by ruff, free of its warnings, and with types that mypy accepts?'
	@echo 'make test    all tests, with a strict build of the book and checks of the site'
	@echo 'make measure  the times of chapters 10 and 11 on your machine, with figures; under three minutes'
	@echo 'make differential  10,000 random cases against exact arithmetic (CASES=..., SEED=...)'
	@echo 'make site    the book, and its notebooks running in the browser'
	@echo 'make offline the same as one zip; the site of make site then offers it'
	@echo 'make pdf     the book as one PDF, printed by Chromium or Chrome; the site then offers it, too'
	@echo 'make serve   show the built site at http://127.0.0.1:$(PORT)'
	@echo 'make lab     open the chapters as notebooks in JupyterLab'
	@echo 'make mutants  wrong changes of the library, and whether the tests find them; 35 minutes'
	@echo 'make gpu-code  compile the CUDA kernels and execute what was compiled, without a GPU; 1 GB of packages'
	@echo 'make gpu-successor  compile the CUDA kernels with numba-cuda-mlir, which follows numba-cuda; 1 GB of packages'
	@echo 'make links   ask every external address that the book links to whether it is still there'
	@echo 'make clean   remove the environment and all that was built; .peers and measurements stay'

# pip would compile all packages on one core. Some hold files that are no Python, which is no error. The list is complete but for
# what requirements.in leaves out, so pip is to look for no dependencies.
.venv/installed: requirements.txt pyproject.toml
	@test -n '$(PYTHON)' || { echo 'Python 3.11, 3.12 or 3.13 is needed and was not found; set PYTHON=/path/to/python3.12'; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps -r requirements.txt
	@$(BIN)/python -m compileall -qq -j 0 .venv/lib || true
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

# MPI, for lnlib.sharded. Where there is no wheel, its programs run in its simulator, and its tests under MPI are skipped.
.venv/installed-mpi: .venv/installed requirements-mpi.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --only-binary :all: -r requirements-mpi.txt && touch $@ \
	  || echo 'No MPI: requirements-mpi.txt cannot be installed here. lnlib.sharded runs in its simulator.'

# All that pages are made of. Two files tell when pages and site were last built without an error: what was built after all
# of these is not built again for a PDF or a zip.
SOURCES := $(shell find book lnlib lnbook normcheck simt tools benchmarks/results _config.yml _toc.yml requirements*.txt CITATION.cff \
  -type f -not -name '*.pyc' -not -path '*/mine/*' 2>/dev/null)
PAGES := _build/built
LIVE := _build/html/lite/live.json
ifeq (,$(wildcard _build/html/book/index.html))
.PHONY: $(PAGES) $(LIVE)
endif

book: .venv/installed .venv/installed-mpi
	$(BIN)/python tools/build_book.py
	@touch $(PAGES)

$(PAGES): $(SOURCES)
	$(MAKE) book

lint: .venv/installed
	$(BIN)/ruff format --check --quiet . || { echo 'Run: .venv/bin/ruff format .'; exit 1; }
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy --no-error-summary

# Several processes share the cores: in each of them NumPy's products take one. Otherwise their threads wait for each other.
check test: export OPENBLAS_NUM_THREADS = 1

check: lint
	$(BIN)/python -m pytest -n 2 -m "not site and not slow"

# Three processes: one more than two cores, for some tests wait for a browser or for other processes.
# Two chapters run in a browser where there is one, after `make pyodide`; else these tests are skipped.
test: lint .venv/installed-mpi
	$(BIN)/python -m pytest -n 3

CASES ?= 10000
SEED ?= 0
differential: .venv/installed
	$(BIN)/python tests/differential.py --cases $(CASES) --seed $(SEED) --jobs 2

measure: .venv/installed
	$(BIN)/python -m lnbook.measure

pyodide: .venv/installed
	@$(BIN)/python tools/fetch_pyodide.py $(PYODIDE)

# PYODIDE=<folder>, an unpacked release archive of Pyodide 0.27.7, serves where neither it nor its package is reached.
site: .venv/installed .venv/installed-mpi
	$(BIN)/python tools/build_site.py $(PYODIDE)
	@touch $(PAGES)

$(LIVE): $(SOURCES)
	$(MAKE) site

offline: $(LIVE)
	$(BIN)/python tools/build_offline.py

pdf: $(PAGES)
	$(BIN)/python tools/build_pdf.py

# Sphinx's own link checker; _config.yml has its settings.
links: .venv/installed .venv/installed-mpi
	$(BIN)/jupyter-book build . --builder linkcheck --path-output _build/links

# NVIDIA's compiler, as packages. Once installed, it stays.
.peers/gpu-code/installed: requirements-gpu-code.txt requirements-gpu.txt requirements.txt
	$(PYTHON) -m venv .peers/gpu-code
	.peers/gpu-code/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-gpu-code.txt
	@touch $@

gpu-code: .peers/gpu-code/installed
	LN_REQUIRE_CUDA_COMPILER=1 .peers/gpu-code/bin/python -m pytest tests/lnlib/backends/test_gpu_code.py tests/ptx

# The same kernels by numba-cuda-mlir, which follows numba-cuda: do they compile? Nothing runs.
.peers/gpu-successor/installed: requirements-gpu-successor.txt
	$(PYTHON) -m venv .peers/gpu-successor
	.peers/gpu-successor/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-gpu-successor.txt
	@touch $@

gpu-successor: .peers/gpu-successor/installed
	LN_NUMBA_CUDA_MLIR=1 .peers/gpu-successor/bin/python -m benchmarks.gpu.code --output .peers/gpu-successor/kernels.json

# MUTANTS="--seed 7 --count 350" and others: see the first lines of the tool.
mutants: .venv/installed .venv/installed-mpi
	$(BIN)/python tools/mutants.py $(MUTANTS)

# What is there is shown as it is.
_build/html/index.html:
	$(MAKE) book

serve: _build/html/index.html
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory _build/html $(PORT)

# Chapters open as notebooks at a double click, and JupyterLab asks nobody for news or updates.
lab: .venv/installed
	@mkdir -p .venv/share/jupyter/lab/settings
	@cp tools/lab_overrides.json .venv/share/jupyter/lab/settings/overrides.json
	$(BIN)/python -m jupyter lab book

clean:
	rm -rf .venv _build .pytest_cache .hypothesis

.PHONY: help book lint check test measure differential pyodide site offline pdf gpu-code gpu-successor links mutants serve lab clean
