# make demo and make test set up what they need by themselves: python3, make and git are enough (on Debian and Ubuntu
# a missing venv module is installed with apt). So does make test-nvme on Debian, for QEMU and the kernel that it boots.
PYTHON ?= python3
DALI ?= nvidia-dali-cuda120==2.4.0
VENV := .venv
BIN := $(VENV)/bin
NVME_VM := .nvme_vm
NVME_VM_TOOLS := qemu-system-x86_64 mkfs.ext4 mkfs.xfs sfdisk
NVME_VM_PACKAGES := qemu-system-x86 e2fsprogs xfsprogs fdisk

.PHONY: install demo test test-nvme lint clean

install: $(VENV)/installed

$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); apt-get update -qq && apt-get install -y -qq python3-venv && $(PYTHON) -m venv $(VENV); }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[bench,test]' '$(DALI)'
	touch $@

demo: install
	$(BIN)/python benchmark.py demo

test: install
	$(BIN)/python -m pytest -q

test-nvme: install $(NVME_VM)/initramfs
	@PATH="$$PATH:/usr/sbin:/sbin" which $(NVME_VM_TOOLS) >/dev/null || \
		{ apt-get update -qq && apt-get install -y -qq --no-install-recommends $(NVME_VM_PACKAGES); }
	$(BIN)/python -m pytest -q tests/nvme_vm/test_*.py

$(NVME_VM)/initramfs: tests/nvme_vm/packages.py tests/nvme_vm/initramfs.py tests/nvme_vm/init | install
	$(BIN)/python -m tests.nvme_vm.packages $(NVME_VM)

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis demo $(NVME_VM)
