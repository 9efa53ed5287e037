//! Lock scripts: the test language for file locks, with executors for the lockkeeper library and for real directories.
