//! Other systems than Linux: nothing runs, and the level says so.

use crate::error::Error;
use crate::isolation::{Containment, Feature, FeatureName, IsolationReport};
use crate::sandbox::Program;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

pub const ARGUMENT: &str = "__bash";

pub fn run_stage(_: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    None
}

pub fn protect_this_process() -> std::io::Result<()> {
    Ok(())
}

pub fn remove_leftovers(_: &Path) -> std::io::Result<(usize, Vec<String>)> {
    Ok((0, Vec::new()))
}

pub fn system_paths() -> impl Iterator<Item = &'static Path> {
    std::iter::empty()
}

pub fn probe(_: &Program) -> Result<IsolationReport, Error> {
    let missing = |name| Feature { name, available: false, why: "needs Linux".into() };
    Ok(IsolationReport::new(FeatureName::TRIED.map(missing).into(), Containment::default()))
}
