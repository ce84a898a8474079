"""libxnvme: devices, files, queues of commands, memory; independent of samples and maps."""
