"""NVMe commands and memory of an NVIDIA GPU."""
