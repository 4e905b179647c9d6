//! The `onward` binary. This file parses the arguments and calls the command; each command has its own module.
//! No other crate reads the environment or ends the process.

mod bash_steps;
mod bench;
mod dev;
mod exit;
mod node;
mod problems;
mod remote;
mod runner;
mod serve;
mod test;
mod validate;
mod verify;
mod worker;

use clap::{CommandFactory, Parser, Subcommand};
use std::process::ExitCode;

/// Runs make many small allocations on several threads; mimalloc saves about a tenth of the cost of a task.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

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
    /// Run the server for other machines: on any address, and every request needs the admin key
    Serve(serve::Arguments),
    /// Workflows: list, show, apply, delete, enable, disable, pause, resume, history, diff
    Workflows(remote::workflows::Arguments),
    /// Start a run, and optionally wait for it or watch it
    Trigger(remote::trigger::Arguments),
    /// Runs: list, show, tail, explain, cancel, pause, resume, retry, replay, signal, approve, reject, delete
    Runs(remote::runs::Arguments),
    /// Approvals: list those that wait for a decision
    Approvals(remote::approvals::Arguments),
    /// Triggers: list, show, create, enable, disable, run, preview, deliveries, delete
    Triggers(remote::triggers::Arguments),
    /// Tasks: submit, list, show, events, cancel, retry, delete, bulk
    Tasks(remote::tasks::Arguments),
    /// Task types: list, show, put, pause, resume
    Types(remote::types::Arguments),
    /// List the workers that claimed tasks in the last day
    Workers(remote::workers::Arguments),
    /// Run your own command for each task: input on stdin, result on stdout, exit code says how it went
    Worker(worker::Arguments),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Measure how fast this machine runs workflows
    Bench(bench::Arguments),
    /// Run a definition to its end or to an approval, without a server (exit 0 done, 10 not valid, 20 wrong usage, 40 failed)
    Run(runner::RunArguments),
    /// Decide about the approval at which `run` stopped, and go on (the same exit codes)
    Resume(runner::ResumeArguments),
    /// Check a workflow definition and show every problem in it (exit 0 valid, 10 not valid, 20 wrong usage)
    Validate(validate::Arguments),
    /// Run the test cases beside workflow definitions (exit 0 passed, 1 failed, 2 a file cannot be used)
    Test(test::Arguments),
    /// Print the OpenAPI document of the HTTP API
    Openapi,
    /// Check that a store, stopped or in use, keeps every promise (exit 0 clean, 1 problems, 74 cannot read)
    Verify(verify::Arguments),
}

fn main() -> ExitCode {
    // The server starts this program again for each command of a bash step.
    if let Some(code) = bash::run_stage(std::env::args_os()) {
        return code;
    }
    match Arguments::try_parse() {
        Ok(arguments) => match arguments.command {
            Command::Dev(arguments) => dev::run(arguments),
            Command::Serve(arguments) => serve::run(arguments),
            Command::Bench(arguments) => bench::run(arguments),
            Command::Run(arguments) => runner::run(arguments),
            Command::Resume(arguments) => runner::resume(arguments),
            Command::Validate(arguments) => validate::run(arguments),
            Command::Test(arguments) => test::run(arguments),
            Command::Workflows(arguments) => remote::workflows::run(arguments),
            Command::Trigger(arguments) => remote::trigger::run(arguments),
            Command::Runs(arguments) => remote::runs::run(arguments),
            Command::Approvals(arguments) => remote::approvals::run(arguments),
            Command::Triggers(arguments) => remote::triggers::run(arguments),
            Command::Tasks(arguments) => remote::tasks::run(arguments),
            Command::Types(arguments) => remote::types::run(arguments),
            Command::Workers(arguments) => remote::workers::run(arguments),
            Command::Worker(arguments) => worker::run(arguments),
            Command::Completions { shell } => completions(shell),
            Command::Openapi => openapi(),
            Command::Verify(arguments) => verify::run(arguments),
        },
        Err(error) => {
            let _ = error.print();
            let has_own_codes = std::env::args()
                .nth(1)
                .is_some_and(|command| ["validate", "run", "resume"].contains(&command.as_str()));
            match error.exit_code() {
                0 => ExitCode::SUCCESS,
                _ if has_own_codes => exit::VALIDATE_USAGE.into(),
                _ => exit::USAGE.into(),
            }
        }
    }
}

fn openapi() -> ExitCode {
    print(format!("{:#}\n", server::document()).as_bytes())
}

fn completions(shell: clap_complete::Shell) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "onward", &mut script);
    print(&script)
}

fn print(bytes: &[u8]) -> ExitCode {
    use std::io::Write;
    match std::io::stdout().write_all(bytes) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => exit::INPUT_OUTPUT.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_names_every_command_and_flag() {
        fn walk(command: &clap::Command, path: &str, missing: &mut Vec<String>) {
            const PAGE: &str = include_str!("../../../docs/reference/cli.md");
            let name = command.get_name();
            let is_documented = PAGE.contains(&format!("`{path}")) || PAGE.contains(&format!("## {path}"));
            // A verb may stand beside its opposite: "`onward workflows enable WORKFLOW`, `disable`".
            if !is_documented && !PAGE.contains(&format!("`, `{name}")) {
                missing.push(path.to_owned());
            }
            for flag in command.get_arguments().filter_map(|argument| argument.get_long()) {
                if !["help", "version"].contains(&flag) && !PAGE.contains(&format!("--{flag}")) {
                    missing.push(format!("{path} --{flag}"));
                }
            }
            command.get_subcommands().for_each(|verb| walk(verb, &format!("{path} {}", verb.get_name()), missing));
        }
        let mut missing = Vec::new();
        Arguments::command().get_subcommands().for_each(|c| walk(c, &format!("onward {}", c.get_name()), &mut missing));
        assert_eq!(missing, Vec::<String>::new());
        Arguments::command().debug_assert();
    }

    /// The README is generated from the list of features.
    #[test]
    fn the_list_of_features_names_every_command_and_store() {
        use api::features::{ALL, COMMANDS, STORES, State, names};
        let arguments = Arguments::command();
        let commands = arguments.get_subcommands().map(clap::Command::get_name);
        assert_eq!(names(COMMANDS, State::Works), commands.collect());
        let listed = ALL.iter().find(|f| f.area == STORES && f.state == State::Works).expect("a row for stores").what;
        for location in ["sqlite:onward.db", "postgres://localhost/onward"] {
            let name = match location.parse().expect("a location") {
                store::Location::Sqlite(_) => "SQLite",
                store::Location::Postgres(_) => "Postgres",
            };
            assert!(listed.contains(name), "{name}");
        }
    }
}
