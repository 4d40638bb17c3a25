//! Which store a URL names.
