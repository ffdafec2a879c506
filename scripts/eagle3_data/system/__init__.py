"""The operating system: processes and their limits, devices, files and permissions."""
