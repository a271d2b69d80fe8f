//! `choirctl`: how people operate Choir. Everything is in the library.

use std::process::ExitCode;

use choir_host::ctl::{self, Arguments};
use clap::Parser;

fn main() -> ExitCode {
    ctl::run(Arguments::parse())
}
