"""What a program needs to run in a Kubernetes cluster: client, stores, work queue, leader election, events, HTTP server, settings, logs.

Knows nothing of networks, zones or costs. It has its own client because the official one takes 840 MB to list 10,000 nodes
(docs/adr/0003-own-thin-client.md).
"""
