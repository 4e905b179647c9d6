//! `onward validate`: shows every problem of a definition in its source text.

use crate::exit;
use crate::problems;
use lang::{Diagnostic, Syntax};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct Arguments {
    /// The file, or `-` for standard input
    file: PathBuf,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    /// The syntax of standard input; for a file, its extension decides
    #[arg(long, value_enum)]
    syntax: Option<Spelling>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Spelling {
    Json,
    Yaml,
}

pub fn run(arguments: Arguments) -> ExitCode {
    let name = arguments.file.display().to_string();
    let source = match read(&arguments.file) {
        Ok(source) => source,
        Err(error) => {
            eprintln!("error: cannot read {name}: {error}");
            return exit::INVALID.into();
        }
    };
    let syntax = arguments.syntax.map_or_else(
        || guess(&arguments.file, &source),
        |s| match s {
            Spelling::Json => Syntax::Json,
            Spelling::Yaml => Syntax::Yaml,
        },
    );
    let compiled = lang::read(&source, syntax).map_err(|m| m.0).and_then(|tree| lang::compile(&tree));
    if arguments.json {
        println!("{}", as_json(&compiled));
    } else {
        let shown: Vec<_> = found(&compiled).iter().map(problems::Shown::from).collect();
        problems::show(&name, &String::from_utf8_lossy(&source), &shown);
        if let Ok(compiled) = &compiled {
            let (form, steps) = (compiled.form, compiled.plan.nodes().len());
            println!("{name}: valid {form}, {steps} steps, {}", hash(&compiled.hash));
        }
    }
    if compiled.is_ok() { ExitCode::SUCCESS } else { exit::INVALID.into() }
}

pub fn read(file: &Path) -> std::io::Result<Vec<u8>> {
    if file.as_os_str() != "-" {
        return std::fs::read(file);
    }
    let mut bytes = Vec::new();
    std::io::stdin().lock().take(lang::DEFINITION_MAX as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Decides by the file's extension; without one, a document that begins like JSON is JSON.
pub fn guess(file: &Path, source: &[u8]) -> Syntax {
    match file.extension().and_then(|e| e.to_str()) {
        Some("yaml" | "yml") => Syntax::Yaml,
        Some("json") => Syntax::Json,
        _ => match source.iter().find(|b| !b.is_ascii_whitespace()) {
            Some(b'{' | b'[') | None => Syntax::Json,
            Some(_) => Syntax::Yaml,
        },
    }
}

/// The problems of a definition: warnings if it is valid.
fn found(compiled: &Result<lang::Compiled, Vec<Diagnostic>>) -> &[Diagnostic] {
    match compiled {
        Ok(compiled) => &compiled.warnings,
        Err(problems) => problems,
    }
}

fn as_json(compiled: &Result<lang::Compiled, Vec<Diagnostic>>) -> serde_json::Value {
    let problems = found(compiled).iter().map(problem_json);
    let ok = compiled.as_ref().ok();
    serde_json::json!({
        "valid": ok.is_some(),
        "hash": ok.map(|c| hash(&c.hash)),
        "form": ok.map(|c| c.form.as_str()),
        "steps": ok.map_or(Vec::new(), |c| c.plan.nodes().iter().map(|n| n.key.clone()).collect()),
        "problems": problems.collect::<Vec<_>>(),
    })
}

pub fn problem_json(problem: &Diagnostic) -> serde_json::Value {
    serde_json::json!({
        "severity": problem.severity.as_str(), "code": problem.code, "message": problem.message, "hint": problem.hint,
        "at": { "path": problem.path, "line": problem.line, "column": problem.column },
    })
}

pub fn hash(bytes: &[u8]) -> String {
    let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    format!("sha256:{hex}")
}
