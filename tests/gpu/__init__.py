"""What a machine with an NVIDIA GPU can show without an NVMe drive: `make test-gpu`."""
