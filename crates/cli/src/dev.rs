//! `onward dev`: the server for development. It needs no key, so it listens on loopback only; its clock may be virtual.

use crate::bash_steps;
use crate::node::{self, AccessMode, ClockArguments, Config};
use engine::ClockMode;
use kernel::Span;
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    node: node::Flags,
    #[command(flatten)]
    bash: bash_steps::CommandFlags,
    /// `virtual` lets tests move time with POST /api/v1/dev/clock
    #[arg(long, env = "ONWARD_CLOCK", value_parser = ["real", "virtual"], default_value = "real")]
    clock: String,
    /// Where a new virtual clock begins, for example 2027-03-27T00:00:00Z
    #[arg(long, env = "ONWARD_CLOCK_START")]
    clock_start: Option<String>,
    /// How far a virtual clock jumps at the start, as if the server had been down for so long
    #[arg(long, env = "ONWARD_CLOCK_ADVANCE")]
    clock_advance: Option<String>,
}

pub fn run(arguments: Arguments) -> ExitCode {
    node::run(check(arguments), |_| Ok(AccessMode::Local))
}

/// The longest `--clock-advance`, ten years.
const ADVANCE_MAX: Span = Span::from_days(3_660);

fn check(arguments: Arguments) -> Result<Config, String> {
    let listen = arguments.node.listen.ip();
    if !listen.is_loopback() {
        return Err(format!("`dev` needs no key, so it listens on loopback only, not on {listen}; use `onward serve`"));
    }
    let mode = if arguments.clock == "virtual" { ClockMode::Virtual } else { ClockMode::Real };
    let start = match arguments.clock_start {
        Some(_) if mode == ClockMode::Real => return Err("`--clock-start` needs `--clock virtual`".into()),
        Some(text) => {
            Some(api::parse_rfc3339(&text).ok_or(format!("`{text}` is not a time such as 2027-03-27T00:00:00Z"))?)
        }
        None => None,
    };
    let advance = match arguments.clock_advance {
        Some(_) if mode == ClockMode::Real => return Err("`--clock-advance` needs `--clock virtual`".into()),
        Some(text) => node::duration("--clock-advance", &text, "3h", Span(0)..=ADVANCE_MAX)?,
        None => Span(0),
    };
    let bash = Some(bash_steps::of_dev(arguments.bash)?);
    node::check(arguments.node, ClockArguments { mode, start, advance }, bash)
}
