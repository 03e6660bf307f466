"""Gates pods where the API server has no MutatingAdmissionPolicy: a mutating admission webhook that knows nothing but the pod it is asked about."""
