"""What can be measured beside Choral: each file opens one library with the weights and settings of a `PeerConfig`."""
