"""A cluster of ten thousand nodes on one machine, for the API server and for our controller: what holds, and what would break.

API server, etcd, controller manager, scheduler, and our controller and extender are the real programs. Kubelets are played by kwok;
agents are simulated (`lab.scale.agents`), one for each zone, which reads the zone's plan and writes what all its agents would.
"""
