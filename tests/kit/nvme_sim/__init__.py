"""The GPU's kernel as threads of the host, and a simulated NVMe controller that it submits to."""
