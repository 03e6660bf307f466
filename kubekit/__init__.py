"""Parts of a Kubernetes controller: client, stores, work queue, leader election, events, HTTP server, settings, logs.

The client is our own because the official one takes 840 MB to list 10,000 nodes (docs/adr/0003-own-thin-client.md).
"""
