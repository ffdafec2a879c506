"""What the operating system gives: processes and their limits, devices, files and their modes."""
