//! No code: the manifest turns on the features that tests' dependencies need, for programs as well.
