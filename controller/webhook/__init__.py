"""A mutating admission webhook that gates pods on Kubernetes 1.34 and 1.35, which have no MutatingAdmissionPolicy v1."""
