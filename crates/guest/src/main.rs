// SPDX-License-Identifier: GPL-2.0-only
//! The guest's program; all of it is in the library.

fn main() -> std::process::ExitCode {
    guest::main()
}
