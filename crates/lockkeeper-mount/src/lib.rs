//! A FUSE mount whose file locks are served by lockkeeper.
