"""Program 2, central: prices the network, orders applications, answers the scheduler, moves what is misplaced.

Every flow is read -> plan -> execute: rules are pure functions over snapshots of the caches and live in ``plan`` functions.
Packages import one way, which the linter keeps: see docs/architecture.md. `manager` puts them together; `config` is their
configuration file.
"""
