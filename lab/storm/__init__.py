"""A storm: faults drawn from a seed on a lab with all our programs and load, then quiet, then invariants.

`faults` draws them, `acts` and `entrance` do them (by `proxy` before the API server, by `clock` in our programs), `kubelet` restarts
what died, `load` deploys applications, `watcher` tells when all is well again, `audit`, `history` and `levels` judge what happened,
`run` puts them together. What is judged comes from the API server's audit log, from objects and from /proc, never from what our
programs say of themselves.
"""
