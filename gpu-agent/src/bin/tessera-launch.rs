//! Starts attempts' programs as their users, for a `tessera-shepherd`. It is not started by hand.

use std::process::ExitCode;

fn main() -> ExitCode {
    tessera_launch::helper::main()
}
