"""The readers in DALI's dynamic mode (nvidia.dali.experimental.dynamic)."""
