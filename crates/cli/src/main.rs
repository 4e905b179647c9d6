//! The one binary. This file only parses and dispatches; each command lives in its own module. It is
//! also the only crate that reads the environment or ends the process.

mod bench;
mod dev;
mod test;
mod validate;
mod verify;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// A durable workflow engine in one binary.
#[derive(Parser)]
#[command(name = "onward", version, disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the server for development: no key needed, loopback only
    Dev(dev::Arguments),
    /// Measure how fast this machine runs workflows
    Bench(bench::Arguments),
    /// Check a workflow definition and show every problem in it (exit 0 valid, 10 not valid, 20 wrong usage)
    Validate(validate::Arguments),
    /// Run the test cases beside workflow definitions (exit 0 passed, 1 failed, 2 a file cannot be used)
    Test(test::Arguments),
    /// Print the OpenAPI document of the HTTP API
    Openapi,
    /// Check that a store, stopped or in use, keeps every promise (exit 0 clean, 1 problems, 74 cannot read)
    Verify(verify::Arguments),
}

/// Wrong usage: most commands.
const EXIT_USAGE: u8 = 2;
/// Wrong usage: commands with documented exit codes of their own.
const EXIT_FLAGS: u8 = 20;

fn main() -> ExitCode {
    match Arguments::try_parse() {
        Ok(arguments) => match arguments.command {
            Command::Dev(arguments) => dev::run(arguments),
            Command::Bench(arguments) => bench::run(arguments),
            Command::Validate(arguments) => validate::run(arguments),
            Command::Test(arguments) => test::run(arguments),
            Command::Openapi => openapi(),
            Command::Verify(arguments) => verify::run(arguments),
        },
        Err(error) => {
            let _ = error.print();
            let own_codes = std::env::args().nth(1).is_some_and(|command| command == "validate");
            match error.exit_code() {
                0 => ExitCode::SUCCESS,
                _ if own_codes => EXIT_FLAGS.into(),
                _ => EXIT_USAGE.into(),
            }
        }
    }
}

fn openapi() -> ExitCode {
    use std::io::Write;
    let text = format!("{:#}\n", server::document());
    match std::io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::from(74),
    }
}
