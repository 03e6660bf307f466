"""The page: a read-only view of the cluster's network in a browser, served by the controller; browsers ask for news every two seconds.

It shows what `controller.views` computes and nothing else; it can change nothing, and loads nothing from anywhere else.
May import `controller.views` and `controller.cluster`; never the command line.
"""
