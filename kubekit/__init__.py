"""The platform: what a program needs to live in a Kubernetes cluster. Knows nothing about networks, zones or costs.

The official Python client costs 46 MB per process just to import and 840 MB to list 10,000 nodes; an agent on every
node and a controller that caches every node cannot afford either (docs/adr/0003-own-thin-client.md).
"""
