"""The page: a read-only web view of the cluster's network, served by the controller and refreshed every two seconds while visible.

It shows what `controller.views` and `controller.diagnosis` compute, and loads nothing from elsewhere. Never imports the command line.
"""
