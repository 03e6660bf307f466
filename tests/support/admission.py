"""The resources of validating admission policies."""

from kubekit.wire import Resource

_GROUP = "admissionregistration.k8s.io"
POLICIES = Resource(_GROUP, "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy", is_namespaced=False)
POLICY_BINDINGS = Resource(
    _GROUP, "v1", "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", is_namespaced=False
)
