"""Whether pods are kept to the bandwidth that their annotations name: found out from the kernel, and repaired if asked to."""
