"""The Linux system calls that read and open files. Nothing here knows samples or extent maps."""
