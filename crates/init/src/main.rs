// SPDX-License-Identifier: GPL-2.0-only
//! The program; all of it is in the library.

fn main() -> std::process::ExitCode {
    init::main()
}
