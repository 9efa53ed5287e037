//! The file-lock manager of Linux as a library: POSIX, OFD and flock locks, leases, and the tree of blocked requests.
