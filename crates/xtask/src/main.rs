//! Chores in Rust: `cargo xtask <command>`.
//!
//! - `tidy`: what must be absent is absent (see `tidy.rs`) and links between documents lead
//!   somewhere (`links.rs`); part of the fast tier.
//! - `docs [--check]`: writes the pages that come from code (`docs.rs`), and the blocks of others (`generated.rs`);
//!   or checks that they are up to date, and that nothing else says what is not built yet.
//! - `long`: the long test tier, with a summary for release notes.

mod docs;
mod features;
mod generated;
mod links;
mod long;
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

/// The workspace's folder: two above this crate's.
fn root() -> Result<PathBuf> {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).map(PathBuf::from).context("xtask lives two folders below the root")
}
