# make tutorial   set up, run every notebook on the embedded model, leave audio and an HTML index under outputs/
# make test       set up, run every test and check the notebooks' stored outputs
# make setup      only prepare .venv
# make lab        open JupyterLab on notebook 00
#
# Options: PYTHON=python3.11   VENV=.venv   NOTEBOOKS=00 (some notebooks only, by number)
#          TORCH_INDEX=address of a package index to take PyTorch from (see README)
#          TESTS=what pytest is given

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
TORCH_INDEX ?=
NOTEBOOKS ?=
TESTS ?= tests --nbval $(wildcard notebooks/*.ipynb)

PIP := $(VENV)/bin/python -m pip install --disable-pip-version-check
STAMP := $(VENV)/.setup-done

.PHONY: tutorial test setup lab clean

tutorial: setup
	$(VENV)/bin/python -m fstrt_helpers.show.tutorial $(NOTEBOOKS)

test: setup
	$(VENV)/bin/python -m pytest $(TESTS)

lab: setup
	$(VENV)/bin/python -m jupyterlab notebooks/00_environment.ipynb

setup: $(STAMP)

$(STAMP): requirements.txt requirements-nodeps.txt requirements-triton.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(if $(TORCH_INDEX),$(PIP) --index-url $(TORCH_INDEX) $(shell grep '^torch==' requirements.txt))
	$(PIP) -r requirements.txt
	$(PIP) --no-deps -r requirements-nodeps.txt -e .
	$(VENV)/bin/python -c 'import triton' 2>/dev/null || $(PIP) --no-deps -r requirements-triton.txt
	touch $(STAMP)

clean:
	rm -rf outputs .venv
