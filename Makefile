# Every target installs what it needs; python3, make and git are enough. On Debian and Ubuntu,
# apt-get installs a missing venv module. On Debian, as root, it also installs g++ for test and test-gpu
# (tests that need it are skipped elsewhere) and for test-frameworks, QEMU and a kernel for test-nvme,
# buildah and debootstrap for test-image, and Open MPI for test-dlio.
PYTHON ?= python3
DALI ?= nvidia-dali-cuda120==2.4.0
CUDA ?= 12
VENV := .venv
GPU_VENV := .venv-cuda$(CUDA)
TENSORFLOW_VENV := .venv-tensorflow
PADDLE_VENV := .venv-paddle
RAY_VENV := .venv-ray
DLIO_VENV := .venv-dlio
OTHER_DALIS := 1.53.0 2.0.0 2.2.0 2.3.0
PYTHON_VENV := .venv-dali-newest-python
DOCS_VENV := .venv-docs
RELEASE_VENV := .venv-release
BIN := $(VENV)/bin
NVME_VM := .nvme_vm
NVME_VM_TOOLS := g++ qemu-system-x86_64 mkfs.ext4 mkfs.xfs sfdisk exportfs ip tc
NVME_VM_PACKAGES := g++ qemu-system-x86 e2fsprogs xfsprogs fdisk nfs-kernel-server iproute2
IMAGE_PACKAGES := buildah debootstrap
GXX := which g++ >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends g++; } || true

# Where this is set, each of the many processes of the tests compiles torch, DALI and pytest anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install demo test test-dali $(OTHER_DALIS:%=test-dali-%) test-dali-newest-python test-all test-soak test-stress test-frameworks test-dlio test-distributed test-gpu test-nvme test-image lint docs figures release clean

install: $(VENV)/installed

$(VENV)/installed: PACKAGES = -e '.[bench,test]' '$(DALI)'
$(VENV)/demo: PACKAGES = -e '.[bench,object-store]' '$(DALI)'
$(GPU_VENV)/installed: PACKAGES = -e '.[bench,cuda$(CUDA)]' 'pytest>=8'
$(TENSORFLOW_VENV)/installed: PACKAGES = -e . '$(DALI)' 'pytest>=8' pillow tensorflow-cpu==2.21.0 setuptools wheel
$(PADDLE_VENV)/installed: PACKAGES = -e . '$(DALI)' 'pytest>=8' pillow paddlepaddle==3.3.1
$(PYTHON_VENV)/installed: PACKAGES = -e '.[object-store]' '$(DALI)' 'pytest>=8' pytest-xdist hypothesis lmdb pillow prometheus_client pyarrow pycocotools python-rapidjson rich setuptools soundfile==0.13.1 wheel xxhash
$(PYTHON_VENV)/installed: PYTHON = $(NEWEST_PYTHON)
$(DOCS_VENV)/installed: PACKAGES = -e '.[docs]'
$(RAY_VENV)/installed: PACKAGES = -e . '$(DALI)' 'pytest>=8' pillow 'ray[train]==2.60.0' torch==2.13.0 setuptools

$(VENV)/installed $(VENV)/demo $(GPU_VENV)/installed $(TENSORFLOW_VENV)/installed $(PADDLE_VENV)/installed $(RAY_VENV)/installed $(PYTHON_VENV)/installed $(DOCS_VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(@D) || { rm -rf $(@D); apt-get update -qq && apt-get install -y -qq python3-venv && $(PYTHON) -m venv $(@D); }
	$(@D)/bin/python -m pip install --quiet --no-compile --disable-pip-version-check $(PACKAGES)
	touch $@

# Verifies and times the readers hot, cold, over S3 and decoded; as root, also on a disk of its own. It
# installs less than the tests need.
demo: $(if $(wildcard $(VENV)/installed),install,$(VENV)/demo)
	@$(BIN)/python benchmark.py demo

# Three processes for two processors, because tests wait for disks and servers.
PYTEST := $(BIN)/python -m pytest -q -n 3 --dist loadfile

# Every promise once. ARGS are options of pytest: make test ARGS="-k loader --durations=20"
test: install
	@$(GXX)
	$(PYTEST) $(ARGS)

# All but the machines (test-gpu, test-nvme, test-image), with long random runs.
test-all: install
	@$(GXX)
	$(PYTEST) --tier all $(ARGS)
	@$(MAKE) --no-print-directory test-frameworks test-dlio test-distributed

# For hours, by hand: random parity, Ctrl-C at random moments.
test-soak: install
	$(BIN)/python -m pytest -q --tier soak $(ARGS)

# RUNS runs of make test, in another order each, beside four busy loops and a writer.
RUNS ?= 5
test-stress: install
	$(BIN)/python -m tests.kit.stress --runs $(RUNS) -- $(ARGS)

# TensorFlow and Paddle, on the CPU, in environments of their own: 4.5 GB.
test-frameworks: $(TENSORFLOW_VENV)/plugin $(PADDLE_VENV)/installed
	$(TENSORFLOW_VENV)/bin/python -m pytest -q --tier all tests/frameworks/test_tensorflow.py
	$(PADDLE_VENV)/bin/python -m pytest -q --tier all tests/frameworks/test_paddle.py

# Other versions of DALI, and a newer Python with its newest NumPy. make test-dali-2.2.0 is one of them.
DALI_TESTS = $(DALI_PYTEST) tests/contract tests/dali tests/dynamic tests/ops tests/order tests/readers tests/reading $(NO_DALI:%=--ignore=%)
DALI_PYTEST = -m pytest -q -n 2 --dist loadfile $(ARGS)
# What does not import DALI, whatever its version. It runs with the newer Python, where no DALI is found.
NO_DALI := $(addprefix tests/contract/test_,catalog.py errors.py families.py object_backend.py options.py probes.py ranges.py span_backend.py)
NO_DALI += $(addprefix tests/order/test_,dealing.py jumps.py libstdcxx.py mixture.py own_order.py sampling.py sources.py)
NO_DALI += $(addprefix tests/reading/test_,batches.py buffers.py lanes.py prefetch.py prefetch_states.py source.py)
test-dali: $(OTHER_DALIS:%=test-dali-%) test-dali-newest-python

$(OTHER_DALIS:%=test-dali-%): test-dali-%: .venv-dali-%/installed
	.venv-dali-$*/bin/python $(DALI_TESTS) tests/loaders

test-dali-newest-python:
	$(if $(NEWEST_PYTHON),@$(MAKE) --no-print-directory $(PYTHON_VENV)/installed,@echo "$@: skipped, because there is no Python 3.12 or 3.13")
	$(if $(NEWEST_PYTHON),$(PYTHON_VENV)/bin/python $(DALI_TESTS))
	$(if $(NEWEST_PYTHON),$(PYTHON_VENV)/bin/python $(DALI_PYTEST) -p tests.kit.no_dali $(NO_DALI))

# One that runs: pyenv puts commands on the PATH for Pythons that are not chosen.
NEWEST_PYTHON = $(shell for version in 3.13 3.12; do \
	for each in python$$version "$$(pyenv prefix $$version 2>/dev/null)/bin/python"; do \
		"$$each" -c "" 2>/dev/null && echo "$$each" && exit; done; done)

# DALI with what it needs; the rest, such as torch, is that of .venv, behind it on the path.
.venv-dali-%/installed: | $(VENV)/installed
	$(BIN)/python -m venv --without-pip $(@D)
	$(BIN)/python -m pip --python $(@D)/bin/python install --quiet --disable-pip-version-check nvidia-dali-cuda120==$*
	echo "import site; site.addsitedir('$$($(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")')" \
		> $$(echo $(@D)/lib/python*/site-packages)/packages_of_venv.pth
	touch $@

# DLIO, the engine of MLPerf Storage, with its ranks under mpirun.
test-dlio: $(DLIO_VENV)/installed
	@which mpirun >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends openmpi-bin libopenmpi-dev; }
	$(DLIO_VENV)/bin/python -m pytest -q --tier all tests/frameworks/test_dlio.py

# DLIO with what it needs; torch, DALI and the rest are those of .venv, behind it on the path. DLIO's
# own requirements would install DALI for CUDA 11 and TensorFlow.
$(DLIO_VENV)/installed: pyproject.toml | $(VENV)/installed
	$(BIN)/python -m venv $(@D)
	echo "import site; site.addsitedir('$$($(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")')" \
		> $$(echo $(@D)/lib/python*/site-packages)/packages_of_venv.pth
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[dlio]'
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps dlio-benchmark==2.0.0
	touch $@

# Ray and torchrun themselves, on the CPU, in network namespaces of their own: 2 GB.
test-distributed: $(RAY_VENV)/installed
	$(RAY_VENV)/bin/python -m pytest -q --tier all tests/distributed

# DALI's plugin is compiled against the TensorFlow that is installed.
$(TENSORFLOW_VENV)/plugin: $(TENSORFLOW_VENV)/installed
	@$(GXX)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps \
		'$(subst nvidia-dali-,nvidia-dali-tf-plugin-,$(DALI))'
	touch $@

# Needs an NVIDIA GPU. CUDA=13 takes the packages for CUDA 13 instead of 12. FIGURES=file.xml also
# writes what it measures.
test-gpu: $(GPU_VENV)/installed
	@$(GXX)
	$(GPU_VENV)/bin/python -m pytest -q --confcutdir=tests/gpu tests/gpu $(if $(FIGURES),--junitxml=$(FIGURES))

test-nvme: install $(NVME_VM)/initramfs
	@PATH="$$PATH:/usr/sbin:/sbin" which $(NVME_VM_TOOLS) >/dev/null || \
		{ apt-get update -qq && apt-get install -y -qq --no-install-recommends $(NVME_VM_PACKAGES); }
	$(BIN)/python -m pytest -q --tier all tests/nvme_vm/test_*.py

$(NVME_VM)/initramfs: tests/nvme_vm/boot_files tests/nvme_vm/init
	tests/nvme_vm/boot_files $(NVME_VM)

test-image: install
	@PATH="$$PATH:/usr/sbin:/sbin" which $(IMAGE_PACKAGES) >/dev/null || \
		{ apt-get update -qq && apt-get install -y -qq --no-install-recommends $(IMAGE_PACKAGES); }
	$(BIN)/python -m pytest -q --tier all tests/image

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# The site, in site/. Every link must lead somewhere; the packages need a network, the build none.
docs: $(DOCS_VENV)/installed
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --strict --quiet
	@echo "The site: file://$(CURDIR)/site/index.html"

# Measures, and writes the tables of docs/benchmarks.md. ONLY=files-hot: one of them; OPTIONS are of benchmark.py.
figures: install
	$(BIN)/python -m benchmarks.figures $(ONLY) --options="$(OPTIONS)"

# The sdist and the wheel in dist/, checked; the wheel proves a small data set in an empty environment.
# TAG=v0.1.0 also compares the version. RELEASING.md says what comes next.
release:
	test -d $(RELEASE_VENV) || $(PYTHON) -m venv $(RELEASE_VENV)
	$(RELEASE_VENV)/bin/python -m pip install --quiet --disable-pip-version-check build twine
	rm -rf dist build/release
	$(RELEASE_VENV)/bin/python -m build --outdir dist .
	$(RELEASE_VENV)/bin/twine check --strict dist/*
	$(RELEASE_VENV)/bin/python -m tests.packaging.release dist $(TAG)
	$(PYTHON) -m venv build/release
	build/release/bin/python -m pip install --quiet --disable-pip-version-check dist/*.whl '$(DALI)'
	mkdir -p build/release/data/class && for n in 1 2 3 4 5 6 7; do echo $$n >build/release/data/class/$$n.jpg; done
	cd build/release && bin/python -m dali_storage prove data

clean:
	rm -rf site $(RELEASE_VENV) $(DOCS_VENV) $(VENV) .venv-cuda* .venv-dali-* $(TENSORFLOW_VENV) $(PADDLE_VENV) $(RAY_VENV) $(DLIO_VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis demo $(NVME_VM) .image
