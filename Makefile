# Everything runs in .venv, which the first command makes; the only needs are Python 3.11–3.13 and make.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin

.PHONY: help install run test test-slow test-hostile test-data test-browser test-ngspice test-kill compare reproduce zoo cifar10 studies lint format docs bench bench-memory bench-scaling bench-limit bench-training bench-circuits measure clean

help:  ## what can be made
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: .venv/.installed  ## the package and all that developing it needs, into .venv

.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

run: install  ## train a small ff-EBM on the bundled digits by equilibrium propagation (under a minute)
	$(BIN)/ffebm train

compare: install  ## one problem, every gradient estimator, side by side (about a minute)
	$(BIN)/python examples/three_estimators.py

test: install  ## the tests (about four minutes)
	$(BIN)/python -m pytest

test-slow: install  ## the tests that take longer
	$(BIN)/python -m pytest -m slow

test-hostile: install  ## thousands of files and command lines made to do harm, in processes with little memory (under ten minutes)
	$(BIN)/python -m pytest -m hostile

test-data: install  ## the tests on real CIFAR, in the folder that FFEBM_DATA names
	$(BIN)/python -m pytest -m data

test-browser: install  ## the tests of reports in a real browser: Debian's chromium
	$(BIN)/python -m pytest -m browser

test-ngspice: install  ## the tests that let a circuit simulator judge: Debian's ngspice
	$(BIN)/python -m pytest -m ngspice

test-kill: install  ## kill a run 100 times at random moments, resume it every time, compare the weights; then one of two processes
	$(BIN)/python benchmarks/kill_and_resume.py --kills 100
	$(BIN)/python benchmarks/kill_and_resume.py --processes 2

reproduce: install  ## the paper's figures and tables at an eighth of the width, into results/ (about a day; FFEBM_DATA names the data)
	$(BIN)/python benchmarks/reproduce.py

zoo: install  ## put trained models into the package, as far as `make measure` and `make reproduce` have made them
	$(BIN)/python benchmarks/zoo.py $(wildcard $(ZOO))

ZOO := runs/digits-seed0 runs/split-converged/cifar10-l12-bs2-ep-seed0 runs/split-converged/cifar10-l12-bs2-w4-ep-seed0

cifar10: install  ## limits on gain and sizes of blocks in short runs on real CIFAR-10, into results/ (two hours; FFEBM_DATA names the data)
	$(BIN)/python benchmarks/cifar10_small.py

lint: install  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: install  ## put the code in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: install  ## the documentation, into site/
	$(BIN)/mkdocs build --strict

studies: install  ## what hardware costs, and the studies that come along, into results/ (half an hour)
	$(BIN)/python benchmarks/costs_and_studies.py

bench: install  ## how fast and how true gradients are, into results/speed (half an hour, after `make cifar10`; FFEBM_DATA names CIFAR-10)
	$(BIN)/ffebm bench $(foreach run,$(TRAINED),--run runs/cifar10-small/$(run)-seed0) --rounds 2 --output results/speed/trained
	$(BIN)/ffebm bench $(foreach run,$(LARGER),--run runs/cifar10-small/$(run)-seed0) --rounds 2 --output results/speed/larger
	$(BIN)/ffebm bench $(foreach run,$(TIGHT),--run runs/cifar10-small/$(run)-seed0) --rounds 2 --output results/speed/tight
	$(BIN)/ffebm bench --all --no-quality --rounds 3 --output results/speed/grid
	cp results/speed/trained/speed.png docs/images/speed.png
	cp results/speed/grid/speed.png docs/images/speed-grid.png

TRAINED := bs2-limit-0.5-2-epochs bs2-limit-0.2-2-epochs bs2-limit-0.1-2-epochs \
	bs2-limit-0.5-feedback-0.3-2-epochs bs2-limit-0.5-feedback-0.1-2-epochs
LARGER := bs3-limit-0.2-2-epochs bs4-limit-0.2-2-epochs
TIGHT := bs3-limit-0.1-2-epochs

bench-memory: install  ## what gradients keep in memory, into results/
	$(BIN)/python benchmarks/memory.py

bench-scaling: install  ## how time and memory grow with depth, width, batch, block size and sweeps, into results/
	$(BIN)/python benchmarks/scaling.py

bench-training: install  ## what training costs besides gradients, and what a second process brings (FFEBM_DATA names CIFAR-10)
	$(BIN)/python benchmarks/end_to_end.py

measure: install  ## the measurements that the docs cite, into results/: the digits, and how true gradients are
	for seed in 0 1 2 3; do test -e runs/digits-seed$$seed || $(BIN)/ffebm train seed=$$seed --output runs/digits-seed$$seed || exit; done
	$(BIN)/ffebm report runs/digits-seed* --no-microscope --title 'The bundled digits' --output results/digits
	awk '/^## / { on = $$2 == "Results"; next } on' results/digits/report.md > results/digits/results.md
	rm results/digits/report.html results/digits/accuracy.*
	$(BIN)/python benchmarks/gradient_quality.py
	$(BIN)/python benchmarks/nudge_window.py
	$(BIN)/python benchmarks/held_pooling.py
	$(BIN)/python benchmarks/contrast_accuracy.py
	$(BIN)/python benchmarks/converter_law.py
	$(BIN)/python benchmarks/meter_cost.py

bench-limit: install  ## what limits on the gain of blocks do to learning, sweeps and price, into results/ (FFEBM_DATA names CIFAR-10)
	$(BIN)/python benchmarks/gain_limit.py

CHECKED := runs/circuit
bench-circuits: install  ## a trained circuit held against ngspice, learning through it, and its speed, into results/circuits (ten minutes)
	test -e $(CHECKED) || $(BIN)/ffebm train digits-resistive 'model.dense=[32, 10]' --output $(CHECKED)
	$(BIN)/ffebm circuit check $(CHECKED) | tee results/circuits/check.txt
	for n in 1e-6 1e-4 1e-2 1; do $(BIN)/ffebm circuit check $(CHECKED) --ideality $$n --json > results/circuits/ideality-$$n.json || true; done
	$(BIN)/python examples/physical_training.py --output docs/images/moons.png | tee results/circuits/moons.txt
	$(BIN)/python benchmarks/ngspice_speed.py

clean:  ## remove what the other commands made, but not runs and results
	rm -rf .venv site dist .pytest_cache .ruff_cache .hypothesis
