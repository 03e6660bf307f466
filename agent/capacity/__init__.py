"""What the node's network can carry: from links and their speeds to the extended resource ``network.aware.com/bandwidth``."""
