# make demo and make test set up what they need by themselves: python3, make and git are enough (on Debian and Ubuntu
# a missing venv module is installed with apt).
PYTHON ?= python3
DALI ?= nvidia-dali-cuda120==2.4.0
VENV := .venv
BIN := $(VENV)/bin

.PHONY: install demo test lint clean

install: $(VENV)/installed

$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); apt-get update -qq && apt-get install -y -qq python3-venv && $(PYTHON) -m venv $(VENV); }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[bench,test]' '$(DALI)'
	touch $@

demo: install
	$(BIN)/python benchmark.py demo

test: install
	$(BIN)/python -m pytest -q

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis demo
