//! The first process of a command's namespace. When it ends, the kernel kills every other process in there, also those
//! that were forked twice or that ignore signals. So it ends with bash, and the supervisor's death ends it.

use super::{During, SetupError, above, die_with_parent, namespaces, protect_this_process, read_orders};
use super::{release_output, start, status_report};
use crate::wire::{self, Orders, StageReport};
use rustix::process::{Pid, WaitOptions, wait};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

pub fn run() -> ExitCode {
    let _ = protect_this_process();
    let Ok(above) = above() else { return ExitCode::FAILURE };
    let Ok(Some((orders, stdin))) = read_orders(&above) else { return ExitCode::FAILURE };
    let report = run_to_end(&above, &orders, &stdin).unwrap_or_else(SetupError::report);
    let _ = wire::send(&above, &report);
    ExitCode::SUCCESS
}

fn run_to_end(above: &UnixStream, orders: &Orders, stdin: &[u8]) -> Result<StageReport, SetupError> {
    die_with_parent(above).during("parent death signal")?;
    namespaces::mount(orders)?;
    let (child, below) = start("confine", orders, stdin).during("start")?;
    let bash = Pid::from_child(&child);
    release_output();
    loop {
        // Orphans of the namespace are this process's children: they are reaped here, too.
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == bash => {
                let said = below.set_nonblocking(true).and_then(|()| wire::receive::<StageReport>(&below));
                return Ok(said.ok().flatten().unwrap_or_else(|| status_report(status)));
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(SetupError::sandbox("wait")(&error)),
        }
    }
}
