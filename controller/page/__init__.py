"""The page: a read-only view of the cluster's network in a browser, served by the controller and live by server-sent events.

It shows what `controller.views` computes and nothing else; it can change nothing, and loads nothing from anywhere else.
May import `controller.views` and `controller.cluster`; never the command line.
"""
