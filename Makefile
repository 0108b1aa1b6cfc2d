# make lab      JupyterLab on the course
# make work     your own copies of the assignments, in work/; RENEW=06_buckets puts your answers into a text that has changed
# make test     everything, as the maintainers run it
# make quick    lint, and the tests and notebooks of what has changed, in two minutes
# make gpu      what must hold on a machine with GPUs, step by step, as one table
# make build    the notebooks, from their text in course/
# make portable   the notebooks, as other processors and two threads compute them
# make mutants  faults planted in the package, each of which a test must see
# make bench    ours beside PyTorch's own
# make release DIR=../students   the course without solutions, to hand out
# make site     the course as web pages, in build/site; ADDRESS=OWNER/NAME for the links to Colab, Binder and Codespaces
# make proof NAME=foundation   what one capability must show, in full size
PYTHON ?=
VENV ?= .venv
JOBS ?= 2
LAB_FLAGS ?=
THREADS ?= 1

BIN := $(VENV)/bin
NOTEBOOKS = $(sort $(wildcard notebooks/*.ipynb))
# Jupyter refuses to start as root unless told that this is meant.
AS_ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)

# Compiled files are kept, whatever the caller's habits: the notebooks alone import the package some hundred times.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: lab work test quick lint unit alone nbval portable portable-sse portable-avx2 portable-threads mutants gpu build site release bench proof
.NOTPARALLEL:

lab: $(VENV)/.course
	$(BIN)/jupyter lab $(AS_ROOT) --LabApp.default_url=/lab/tree/$(firstword $(NOTEBOOKS) README.md) $(LAB_FLAGS)

work: $(VENV)/.course
	@$(BIN)/python -m minicheck work $(if $(RENEW),--renew $(RENEW))

# tests/all.py says what each part runs. One that fails stops no other.
test lint unit alone nbval: $(VENV)/.test
	@$(BIN)/python -m tests.all $(filter-out test,$@) --jobs $(JOBS) --threads $(THREADS)

quick: $(VENV)/.test
	$(BIN)/python -m tests.quick

# Each of PyTorch, MKL and oneDNN chooses its own instructions, and sums in the order that these suggest.
portable: portable-sse portable-avx2 portable-threads

portable-sse:
	ATEN_CPU_CAPABILITY=default MKL_ENABLE_INSTRUCTIONS=SSE4_2 ONEDNN_MAX_CPU_ISA=SSE41 $(MAKE) nbval

portable-avx2:
	ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 ONEDNN_MAX_CPU_ISA=AVX2 $(MAKE) nbval

portable-threads:
	$(MAKE) nbval THREADS=2

mutants: $(VENV)/.test
	$(BIN)/python -m tests.mutants --jobs $(JOBS) $(NAME)

gpu: $(VENV)/.test
	$(BIN)/python -m tests.gpu.first_hour

build: $(VENV)/.test
	$(BIN)/python course/build.py --jobs $(JOBS)
	$(BIN)/python course/questions.py
	$(BIN)/python course/way.py
	$(BIN)/python course/film.py
	$(BIN)/python course/frameworks.py

site: $(VENV)/.test
	$(BIN)/python course/website.py $(if $(ADDRESS),--address $(ADDRESS)) $(if $(SITE),--site $(SITE))

# It needs no more than Python itself.
release:
	$(if $(DIR),@$(FIND_PYTHON) && "$$python" -m course.release $(DIR),$(error say where to: make release DIR=../students))

bench: $(VENV)/.course
	set -e; for name in all_reduce start world data_parallel tensor pipeline pipedream zero remat \
		fuse compiled amp optim slow_link simulate; do \
		$(BIN)/python -m benchmarks.$$name; done

proof: $(VENV)/.test
	$(BIN)/python -m benchmarks.proof $(NAME)

comma := ,
# The Python of $(VENV), or $(PYTHON), or the first that fits; where there is none, what to do about it.
FIND_PYTHON = python=$$(sh course/python.sh "$(VENV)" "$(or $(MAKECMDGOALS),lab)" "$(PYTHON)")

# $(call install,EXTRAS): into $(VENV), with what is being done to be seen. One that was made for it goes again if that fails.
define install
	@$(FIND_PYTHON) && "$$python" course/install.py "$(VENV)" "$(1)" "$$python"
endef

# The stamps are as old as the last install.
$(VENV)/.course: pyproject.toml constraints.txt | $(BIN)/python
	$(call install,course)
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(BIN)/python
	$(call install,course$(comma)teach$(comma)test$(comma)train$(comma)site)
	@touch $(VENV)/.course $@

# The Python that made the environment may have gone since, with an update of the system.
$(BIN)/python:
	@test ! -L $@ || { $(FIND_PYTHON); }
