"""AppGroups and a NetworkTopology with the field names of KEP-260 and of its slides, as YAML."""

from __future__ import annotations

# The proposal's example, with the field names of its text.
PROPOSAL_GROUP = """
apiVersion: scheduling.sigs.x-k8s.io/v1alpha1
kind: AppGroup
metadata: {name: a1}
spec:
  numMembers: 3
  topologySortingAlgorithm: KahnSort
  workloads:
    - workload: {kind: Deployment, apiVersion: apps/v1, namespace: default, name: P1}
      dependencies:
        - workload: {kind: Deployment, apiVersion: apps/v1, namespace: default, name: P2}
          minBandwidth: "100Mi"
          maxNetworkCost: 30
    - workload: {kind: Deployment, apiVersion: apps/v1, namespace: default, name: P2}
"""
# The slides' example: selectors, but dependencies inside the reference.
SLIDES_GROUP = """
apiVersion: scheduling.sigs.k8s.io/v1alpha1
kind: AppGroup
metadata: {name: a1}
spec:
  numMembers: 3
  topologySortingAlgorithm: KahnSort
  workloads:
    - workload:
        kind: Deployment
        name: P1-deployment
        selector: P1
        dependencies:
          - workload:
              kind: Deployment
              name: P2-deployment
              selector: P2
              minBandwidth: "100Mi"
              maxNetworkCost: 30
    - workload: {kind: Deployment, name: P2-deployment, selector: P2}
"""
PROPOSAL_TOPOLOGY = """
# Example Network CRD
apiVersion: diktyo.k8s.io/v1alpha1
kind: NetworkTopology
metadata: {name: net-topology-test, namespace: default}
spec:
  configMapName: "netperfMetrics"
  weights:
    - name: "UserDefined"
      costList: # between regions or between zones
        - topologyKey: "topology.kubernetes.io/region" # region costs
          originCosts:
            - origin: "us-west-1"
              costs: [{destination: "us-east-1", bandwidthCapacity: "10Gi", networkCost: 20}]
        - topologyKey: "topology.kubernetes.io/zone"
          originCosts:
            - origin: "z1"
              costs: [{destination: "z2", bandwidthCapacity: "1Gi", networkCost: 5}]
"""
