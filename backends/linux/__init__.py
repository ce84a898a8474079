"""Linux system calls that read and open files; independent of samples and extent maps."""
