"""libxnvme: devices, files, queues of commands, memory. Nothing here knows samples or maps."""
