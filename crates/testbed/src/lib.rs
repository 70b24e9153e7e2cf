//! One face for the embedded and the real cluster, for tests.
