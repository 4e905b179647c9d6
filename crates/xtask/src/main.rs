//! Repository tasks: `cargo xtask <command>`.
//!
//! - `tidy`: checks the sources (`tidy.rs`) and the links between documents (`links.rs`); part of the fast tier.
//! - `docs [--check]`: writes the generated pages (`docs.rs`) and the generated blocks of other pages (`generated.rs`),
//!   or checks that they are up to date and that no other page says what is not built yet.
//! - `long`: runs the long test tier and prints a summary for the release notes.

mod docs;
mod features;
mod generated;
mod links;
mod long;
mod names;
mod tidy;

use anyhow::{Context, Result, bail};
use std::path::PathBuf;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["tidy"] => tidy::run(&root()?),
        ["docs"] => docs::run(&root()?, false),
        ["docs", "--check"] => docs::run(&root()?, true),
        ["long"] => long::run(&root()?),
        _ => bail!("usage: cargo xtask tidy | docs [--check] | long"),
    }
}

/// The folder of the workspace, two levels above this crate.
fn root() -> Result<PathBuf> {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).map(PathBuf::from).context("xtask lives two folders below the root")
}
